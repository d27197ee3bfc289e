"""What can go wrong between a Python callable and its canonical graph.

TraceError
├── ShimUnavailable      tracing for a GPU needs a small C++ library and it cannot be built here
├── FunctionFailed       the user's function raised, or returned something we cannot trace
├── NotTraceable         Dynamo or AOTAutograd could not turn the callable into graphs
└── Unkeyable            a graph that has no exact key: compiled, not cached

A TraceError's text names the thing, the cause and what to do next.
"""

from __future__ import annotations


class TraceError(Exception):
    """Base of everything that tracing raises on purpose."""


class ShimUnavailable(TraceError):
    """The device-guard library could not be built or loaded, so no GPU trace without a GPU.

    ``cause`` is the underlying message, ``remedy`` the next step for a person.
    """

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"cannot trace for a GPU on this machine: {cause}; {remedy}")
        self.cause = cause
        self.remedy = remedy


class FunctionFailed(TraceError):
    """The function to warm raised, or returned neither (module, args) nor (module, args, mode)."""

    def __init__(self, function: str, cause: str, remedy: str) -> None:
        super().__init__(f"{function}: {cause}; {remedy}")
        self.function = function
        self.cause = cause
        self.remedy = remedy


class NotTraceable(TraceError):
    """The callable could not be traced to the end; ``cause`` holds the tracer's own message."""

    def __init__(self, function: str, cause: str) -> None:
        super().__init__(
            f"{function} cannot be traced without running it: {cause}; "
            "run it once under torch.compile on a machine with the GPU to see the full error"
        )
        self.function = function
        self.cause = cause


class Unkeyable(TraceError):
    """A graph that no key describes exactly; it is compiled and not cached.

    ``op`` and ``node`` name the first node in the way, ``reason`` says what about it is opaque.
    """

    def __init__(self, reason: str, *, op: str = "", node: str = "") -> None:
        where = f" (op {op}, node {node})" if op else ""
        super().__init__(f"this graph is compiled but not cached: {reason}{where}")
        self.reason = reason
        self.op = op
        self.node = node
