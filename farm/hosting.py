"""How a broker is hosted: options that travel from its starter to its process."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from .limits import Limits, usable_slots

#: How a zygote is started; tests put a module of theirs here that injects faults.
ENTRY = ("-P", "-m", __name__.rpartition(".")[0] + ".zygote")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How a broker is hosted: where, for how long without clients (seconds), with which zygotes.

    ``limits`` overrides fields of Limits by name; ``slots`` 0 means what the machine has room for.
    """

    directory: str
    idle: float = 60.0
    entry: tuple[str, ...] = ENTRY
    limits: dict[str, Any] | None = None
    slots: int = 0

    def to_json(self) -> str:
        """Return the options as the process takes them."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ServerOptions:
        """Rebuild options."""
        data = json.loads(text)
        return cls(**{**data, "entry": tuple(data["entry"])})

    def slot_count(self) -> int:
        """Return how many runs there may be at once, now."""
        return self.slots or usable_slots()

    def make_limits(self) -> Limits:
        """Return the limits with their overrides."""
        overrides = dict(self.limits or {})
        if "deadlines" in overrides:
            overrides["deadlines"] = tuple(overrides["deadlines"])  # type: ignore[arg-type, assignment]
        return Limits(**overrides)  # type: ignore[arg-type]
