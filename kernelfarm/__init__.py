"""kernelfarm: a build farm and shared compile cache for Triton kernels.

``torch.compile(model, backend="kernelfarm")`` compiles through it, ``kernelfarm warm`` and
`warm_start` compile ahead of time for GPUs that are not there.

knobs     every setting: its type, its default, whether it changes generated code
compose   who gets which store and which farm
service   kernels from the store, else from the farm (contract: what is asked of a farm)
graphs    graphs from the store
backend   what torch.compile calls
warm      the same flow on fake tensors, for explicit targets (warm_report: what it did)
stats     what a store holds and what a process did with it
cli       the command line; progress is its bar

Importing this package imports none of them, and neither torch nor Ray nor rich.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import KernelfarmError
    from .knobs import Knobs
    from .warm import warm_start
    from .warm_report import WarmReport

__version__ = "0.1.0"

__all__ = ["KernelfarmError", "Knobs", "WarmReport", "__version__", "warm_start"]

#: Public name -> the module that defines it.
_HOMES = {
    "KernelfarmError": "errors",
    "Knobs": "knobs",
    "WarmReport": "warm_report",
    "warm_start": "warm",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'kernelfarm' has no attribute {name!r}")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
