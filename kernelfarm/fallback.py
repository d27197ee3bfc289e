"""Running a graph without compiling it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def eager(graph: Callable[..., Any]) -> Callable[[list[Any]], list[Any]]:
    """Return a callable of one list that runs ``graph`` op by op and empties the list."""

    def run(inputs: list[Any]) -> list[Any]:
        arguments = tuple(inputs)
        inputs.clear()
        return list(graph(*arguments))

    return run
