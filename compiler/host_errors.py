"""Errors of the host program and of everything that runs it.

HostError (a CompilerError)
├── HostProgramError   a host program is not well-formed; names the field's path and the reason
└── RunError           a program could not be loaded or run on this machine
    ├── LaunchError    the GPU or its driver refused a kernel; names the kernel and the next step
    ├── LayoutError    a tensor does not have the sizes and strides that the program was built for
    └── SizesOutOfRange  a guard of the program is false for the sizes of this call
"""

from __future__ import annotations

from .errors import CompilerError


class HostError(CompilerError):
    """Base of what host programs and runtimes raise on purpose."""


class HostProgramError(HostError):
    """A host program breaks the grammar; nothing of it was printed or run.

    ``path`` leads to the offending field, for example ``lines[3].spec.dtype``.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"bad host program at {path or 'its root'}: {reason}; it was not run")
        self.path = path
        self.reason = reason


class RunError(HostError):
    """A program could not be loaded or run on this machine."""


class LaunchError(RunError):
    """A kernel could not be loaded or launched."""

    def __init__(self, kernel: str, reason: str, advice: str) -> None:
        super().__init__(f"kernel {kernel}: {reason}; {advice}")
        self.kernel = kernel
        self.reason = reason
        self.advice = advice


class SizesOutOfRange(RunError):
    """The sizes of a call break a guard; its arguments were not touched and nothing ran."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"a size of {size} is more than the {limit} that this program was compiled for"
        )


class LayoutError(RunError):
    """A tensor has other sizes or strides than the program was compiled for."""

    def __init__(self, message: str, expected: object, found: object) -> None:
        super().__init__(f"{message}: expected sizes and strides {expected}, found {found}")
        self.expected = expected
        self.found = found
