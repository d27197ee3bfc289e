"""The levels of compiler.service.Priority; a smaller number is served first.

Kept apart from events.py because the client needs them, and not the classes there. A test holds
them equal to the compiler's, which the farm does not import.
"""

from __future__ import annotations

WAITING, EMITTED, AUTOTUNE, SPECULATIVE = range(4)
