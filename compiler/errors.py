"""Errors of the compiler.

CompilerError
├── LoweringError      an ATen node could not be turned into loops; names node, op and reason
├── CodegenError       a fused group could not be printed as a kernel
└── GraphError         a graph as a whole cannot be compiled (opaque values, unknown devices)

The seam, the tracer and the host program keep their own trees beside their code.
"""

from __future__ import annotations


class CompilerError(Exception):
    """Base of everything that the compiler raises on purpose."""


class LoweringError(CompilerError):
    """An ATen node could not be lowered and could not fall back either."""

    def __init__(self, node: str, op: str, reason: str) -> None:
        super().__init__(f"cannot lower {op} (node {node}): {reason}")
        self.node = node
        self.op = op
        self.reason = reason


class CodegenError(CompilerError):
    """A group of loop nests could not be printed as one kernel."""

    def __init__(self, group: str, reason: str) -> None:
        super().__init__(f"cannot generate a kernel for {group}: {reason}")
        self.group = group
        self.reason = reason


class GraphError(CompilerError):
    """A graph cannot be compiled at all; the caller runs it eagerly instead."""
