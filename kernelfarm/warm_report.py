"""What a warm start did: of each function, and summed over functions and targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

GRAPHS = ("total", "compiled", "from_store")
KERNELS = ("distinct", "compiled", "from_store", "failed")


@dataclass(frozen=True, slots=True)
class FunctionReport:
    """One function's graphs, kernels and seconds, summed over its targets.

    A kernel that another function had compiled before is from the store here. ``error`` says why
    the function could not be carried out for all targets; what was traced until then counts.
    """

    function: str
    graphs: Mapping[str, int]
    kernels: Mapping[str, int]
    seconds: float
    failures: tuple[str, ...] = ()
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the report as a part of the object that ``--json`` prints."""
        report: dict[str, Any] = {
            "function": self.function,
            "graphs": dict(self.graphs),
            "kernels": dict(self.kernels),
            "seconds": round(self.seconds, 3),
        }
        if self.failures:
            report["failures"] = list(self.failures)
        if self.error:
            report["error"] = self.error
        return report


@dataclass(frozen=True, slots=True)
class WarmReport:
    """What a warm start did, summed over its functions and targets.

    ``graphs`` has total, compiled, from_store; ``kernels`` has distinct, compiled, from_store,
    failed, and distinct is the sum of the other three: a kernel that several functions have counts
    once. ``compiled_by`` maps places to kernels, ``failures`` holds one message per failed kernel
    or graph. ``seconds`` is the wall clock from the call (of the command: from its beginning, the
    import of torch and of the files included) until everything is stored; ``phases`` says what
    took them.
    """

    graphs: dict[str, int]
    kernels: dict[str, int]
    targets: tuple[str, ...]
    compiled_by: dict[str, int]
    seconds: float
    store: str
    failures: tuple[str, ...] = ()
    phases: dict[str, float] = field(default_factory=dict)
    functions: tuple[FunctionReport, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        errors = any(function.error for function in self.functions)
        return not (self.kernels["failed"] or self.failures or errors)

    def to_json(self) -> dict[str, Any]:
        """Return the report as the one object that ``--json`` prints."""
        report: dict[str, Any] = {
            "graphs": self.graphs,
            "kernels": self.kernels,
            "targets": list(self.targets),
            "functions": [function.to_json() for function in self.functions],
            "compiled_by": self.compiled_by,
            "seconds": round(self.seconds, 3),
            "phases": {name: round(seconds, 3) for name, seconds in self.phases.items()},
            "store": self.store,
        }
        if self.failures:
            report["failures"] = list(self.failures)
        return report


#: What a person is told of the phases, which are named as the tracer and the compiler name them.
_SPENT = (
    ("importing", ("import",)),
    ("building models", ("function",)),
    ("tracing", ("dynamo", "aot")),
    ("generating kernels", ("compile_graph",)),
    ("waiting for them", ("wait",)),
)


def render(report: WarmReport) -> str:
    """Return the report as lines for a person."""
    by = ", ".join(f"{count} {place}" for place, count in report.compiled_by.items())
    spent = ", ".join(
        f"{sum(report.phases.get(name, 0.0) for name in names):.1f} {what}"
        for what, names in _SPENT
    )
    rows = [("targets", ", ".join(report.targets))]
    if len(report.functions) > 1:
        rows += [("function", _function(function)) for function in report.functions]
    rows += [
        ("graphs", f"{report.graphs['total']} total: {_graphs(report.graphs)}"),
        ("kernels", f"{report.kernels['distinct']} distinct: {_kernels(report.kernels, by)}"),
        ("seconds", f"{report.seconds:.1f}: {spent}"),
        ("store", report.store),
    ]
    if report.ok and not report.graphs["compiled"] and not report.kernels["compiled"]:
        rows.append(("", "nothing was compiled: all of it was in the store"))
    return "\n".join(f"{name:<9}{text}" for name, text in rows)


def _function(report: FunctionReport) -> str:
    if report.error and not report.graphs["total"]:
        return f"{report.function}: could not be carried out"
    stopped = "; it could not be carried out to its end" if report.error else ""
    return (
        f"{report.function}: {report.graphs['total']} graphs: {_graphs(report.graphs)}; "
        f"{report.kernels['distinct']} kernels: {_kernels(report.kernels)}; "
        f"{report.seconds:.1f} s{stopped}"
    )


def _graphs(counts: Mapping[str, int]) -> str:
    return f"{counts['compiled']} compiled, {counts['from_store']} from store"


def _kernels(counts: Mapping[str, int], by: str = "") -> str:
    return (
        f"{counts['compiled']} compiled{f' ({by})' if by else ''}, "
        f"{counts['from_store']} from store, {counts['failed']} failed"
    )
