"""What can go wrong between a request and its artifact.

    SeamError
    ├── UnknownTarget         a target text or device that no table entry describes
    ├── OptionsError          an option that the backend does not have, or cannot be sent
    ├── ToolchainError        the installed compiler cannot be identified
    │   ├── TritonMissing     triton is not installed
    │   ├── RecordMismatch    identity "release" asked of an installation that was changed
    │   ├── LibraryMissing    no library with the digest that a request names
    │   └── ToolchainMismatch a worker was handed another toolchain's request
    ├── RequestError          a request or artifact that does not decode or cannot be encoded
    ├── FrontHalfError        kernel text that does not become TTIR
    └── BackHalfError         TTIR that does not become a binary

Every class pickles and keeps its context as attributes, because errors cross process borders.
"""

from __future__ import annotations

from collections.abc import Sequence


class SeamError(Exception):
    """The root of everything raised in this folder."""

    def __reduce__(self) -> tuple[object, ...]:
        """Rebuild from attributes: the constructors' arguments are not ``args``."""
        return (_rebuild, (type(self), self.args, dict(self.__dict__)))


def _rebuild(cls: type[SeamError], args: tuple[object, ...], state: dict[str, object]) -> SeamError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class UnknownTarget(SeamError):
    """A target text or a live device that no table entry describes; ``supported`` names those."""

    def __init__(self, text: str, supported: Sequence[str]) -> None:
        self.text = text
        self.supported = tuple(supported)
        super().__init__(
            f"unknown target {text!r}: use an architecture or a device model out of "
            + ", ".join(self.supported)
        )


class OptionsError(SeamError):
    """An option that the backend does not have, or whose value cannot be part of a request."""

    def __init__(self, option: str, backend: str, reason: str) -> None:
        self.option = option
        self.backend = backend
        self.reason = reason
        super().__init__(f"option {option!r} of the {backend} backend: {reason}")


class ToolchainError(SeamError):
    """The compiler that is installed here cannot be identified."""


class TritonMissing(ToolchainError):
    """Triton is not installed in this environment."""

    def __init__(self, where: str = "") -> None:
        self.where = where
        super().__init__(
            "triton is not installed"
            + (f" under {where}" if where else "")
            + ": install triton 3.6 to 3.9 to compile kernels"
        )


class RecordMismatch(ToolchainError):
    """Identity "release" was asked of an installation that does not match its own RECORD."""

    def __init__(self, root: str, reason: str, files: Sequence[str] = ()) -> None:
        self.root = root
        self.reason = reason
        self.files = tuple(files)
        named = ", ".join(self.files[:5]) + (" ..." if len(self.files) > 5 else "")
        super().__init__(
            f"toolchain identity 'release' refused for {root}: {reason}"
            + (f" ({named})" if named else "")
            + "; reinstall triton from a wheel or use the identity 'content'"
        )


class LibraryMissing(ToolchainError):
    """No device library on this machine has the content that a request names."""

    def __init__(self, name: str, digest: str, searched: Sequence[str]) -> None:
        self.name = name
        self.digest = digest
        self.searched = tuple(searched)
        super().__init__(
            f"device library {name!r} with sha256 {digest[:16]} is not here (looked at "
            f"{', '.join(self.searched) or 'nothing'}): install the asking side's triton version"
        )


class ToolchainMismatch(ToolchainError):
    """A worker was handed a request for another toolchain; ``parts`` names what differs."""

    def __init__(self, kernel: str, parts: Sequence[tuple[str, str | None, str | None]]) -> None:
        self.kernel = kernel
        self.parts = tuple(parts)
        shown = "; ".join(
            f"{name}: asked {_short(asked)}, here {_short(here)}"
            for name, asked, here in self.parts[:4]
        )
        super().__init__(
            f"{kernel}: this worker has another toolchain than the request ({shown}); "
            "route it to a worker with that toolchain or compile it where it was asked for"
        )


def _short(value: str | None) -> str:
    return "unset" if value is None else value[:16] if len(value) == 64 else repr(value)


class RequestError(SeamError):
    """A request or an artifact that does not decode, or a value that has no canonical encoding."""

    def __init__(self, what: str, reason: str) -> None:
        self.what = what
        self.reason = reason
        super().__init__(f"{what}: {reason}")


class FrontHalfError(SeamError):
    """Kernel text that does not become TTIR; ``log`` is the compiler's own account."""

    def __init__(self, kernel: str, stage: str, log: str) -> None:
        self.kernel = kernel
        self.stage = stage
        self.log = log
        super().__init__(f"kernel {kernel} failed in the front half ({stage}): {log}")


class BackHalfError(SeamError):
    """TTIR that does not become a valid binary; ``stage`` is the step, ``log`` its output."""

    def __init__(self, kernel: str, stage: str, log: str) -> None:
        self.kernel = kernel
        self.stage = stage
        self.log = log
        super().__init__(f"kernel {kernel} failed in the back half ({stage}): {log}")
