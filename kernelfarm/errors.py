"""What can go wrong in the face, as a tree.

::

    KernelfarmError
    |-- UsageError            the caller asked for something that cannot be done; exit status 2
    |   |-- KnobError             a setting has a value that it cannot have
    |   |-- FunctionNotFound      FILE.py:FUNCTION names no file or no function
    |   |-- FunctionFailed        FUNCTION raised; ``tail`` is the end of its traceback
    |   `-- NoTarget              no GPU is there and no target was named
    `-- NothingTraced         the model was called, and Dynamo handed us no graph

The three folders have their own trees; their messages reach a person as they are. (What FUNCTION
may return is the tracer's to say.)
"""

from __future__ import annotations


class KernelfarmError(Exception):
    """Every error of the face."""


class UsageError(KernelfarmError):
    """The caller asked for something that cannot be done; the message says what to change."""


class KnobError(UsageError):
    """A setting has a value that it cannot have."""

    def __init__(self, name: str, value: object, origin: str, expected: str) -> None:
        super().__init__(f"{origin}: {name} = {value!r} is not {expected}")
        self.name = name
        self.value = value
        self.origin = origin


class FunctionNotFound(UsageError):
    """FILE.py:FUNCTION names no file, a file that cannot be read, or no function in it."""


class FunctionFailed(UsageError):
    """The user's function or file raised while it was run for a target."""

    def __init__(self, name: str, tail: str, remedy: str = "") -> None:
        advice = f"\n{remedy}" if remedy else ""
        super().__init__(f"{name} raised; the end of its traceback:\n{tail}{advice}")
        self.name = name
        self.tail = tail


class NoTarget(UsageError):
    """There is no GPU to compile for and none was named."""

    def __init__(self) -> None:
        super().__init__(
            "no GPU is visible and no target is named; set KERNELFARM_TARGET=h200 (or another), "
            'pass options={"target": "h200"}, or use `kernelfarm warm --target`'
        )


class NothingTraced(KernelfarmError):
    """The function ran without handing the compiler a single graph."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name}: nothing was compiled, since no tensor operation reached the compiler; "
            "return the module and its arguments instead of calling it"
        )


def is_clear(error: BaseException) -> bool:
    """Say whether an exception's text is made for a person: raised on purpose, by us."""
    from .cache.errors import CacheError
    from .compiler.errors import CompilerError
    from .compiler.host_errors import HostError
    from .compiler.seam.errors import SeamError
    from .compiler.trace.errors import TraceError
    from .farm.errors import FarmError

    ours = (KernelfarmError, CacheError, CompilerError, HostError, SeamError, TraceError, FarmError)
    return isinstance(error, ours)


def said(error: BaseException) -> str:
    """Return an error's message; its type comes first unless the message is made for a person."""
    return str(error) if is_clear(error) else f"{type(error).__name__}: {error}"
