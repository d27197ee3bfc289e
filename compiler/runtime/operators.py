"""Library calls of a program, by their fastest equal form.

``torch.ops.aten.mm.default`` and ``torch.mm`` run the same kernel; the second parses its arguments
two to three microseconds faster. Only operators whose Python form takes exactly the schema's
arguments, by position and by keyword, are listed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .. import host_ops

_SAME: dict[str, Callable[..., Any]] = {
    **{
        f"aten.{name}.{overload}": getattr(torch, name)
        for name in ("mm", "bmm", "addmm", "baddbmm")
        for overload in ("default", "out")
    },
    "aten.convolution.default": torch.convolution,
}


def resolve(op: str) -> Callable[..., Any]:
    """Return a callable for ``op``; raises HostProgramError when a program may not call it."""
    overload: Callable[..., Any] = host_ops.resolve(op)
    return _SAME.get(op, overload)
