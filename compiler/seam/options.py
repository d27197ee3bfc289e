"""Every field of the backend's parsed options, by name: what of them a request carries.

The asking side parses options once, with its own environment and defaults; a worker rebuilds the
same object field by field and never parses, because a field that is None would there be filled
from the worker's environment. Device libraries travel as the digest of their content.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .canonical import Plain, encode, plain
from .digests import FileDigests
from .errors import LibraryMissing, OptionsError, RequestError
from .installation import triton_root
from .target import Target
from .versions import DERIVED_OPTIONS, options_class

#: In force unless a caller says otherwise; explicit, since Triton's own defaults change.
_DEFAULTS: dict[str, object] = {
    "enable_fp_fusion": True,
    "debug": False,
    "sanitize_overflow": False,
}

#: Fields that name a file of the asking machine, which no worker may be asked to read.
_REFUSED = ("ir_override",)


#: Key parts of options objects in use (held with their owner, so that no id is reused): the same
#: few objects serve every kernel of a graph, and encoding one's fields takes 60 us.
_PARTS: dict[int, tuple[Options, tuple[tuple[str, bytes], ...]]] = {}
_MAX_PARTS = 256


@dataclass(frozen=True, slots=True)
class Options:
    """A backend's options: ``fields`` are (name, plain value), sorted by name.

    ``extern_libs`` holds (library name, sha256 of its content) pairs in link order.
    """

    backend: str
    fields: tuple[tuple[str, Plain], ...]

    def get(self, name: str, default: Plain = None) -> Plain:
        """Return one field's value, or ``default`` where this backend has no such field."""
        return dict(self.fields).get(name, default)

    @property
    def num_warps(self) -> int:
        """Warps per program, as asked for (a warp-specialised kernel ends up with more)."""
        return _integer(self.get("num_warps"))

    @property
    def num_stages(self) -> int:
        """Pipeline stages of loops over loads."""
        return _integer(self.get("num_stages"))

    @property
    def libraries(self) -> tuple[tuple[str, str], ...]:
        """The device libraries as (name, sha256 hex), in link order."""
        pairs: Any = self.get("extern_libs") or ()
        return tuple((str(name), str(digest)) for name, digest in pairs)

    def key_parts(self) -> tuple[tuple[str, bytes], ...]:
        """Return ("options.<field>", canonical bytes) for every field."""
        # By identity, not equality: 1 and True are equal and encode differently.
        known = _PARTS.get(id(self))
        if known is not None and known[0] is self:
            return known[1]
        parts = tuple(
            (f"options.{name}", encode(value, f"option {name}")) for name, value in self.fields
        )
        if len(_PARTS) >= _MAX_PARTS:
            _PARTS.clear()
        _PARTS[id(self)] = (self, parts)
        return parts

    def to_wire(self) -> dict[str, object]:
        """Return the options as values that msgpack takes."""
        return {"backend": self.backend, "fields": [list(pair) for pair in self.fields]}

    @staticmethod
    def from_wire(wire: Mapping[str, Any]) -> Options:
        """Rebuild options from `to_wire`'s form; raises RequestError for anything else."""
        try:
            backend, rows = wire["backend"], wire["fields"]
            fields = tuple((str(name), plain(value, f"option {name}")) for name, value in rows)
        except (KeyError, TypeError, ValueError) as error:
            raise RequestError("options", f"not a wire form of options: {error!r}") from error
        if backend not in ("cuda", "hip"):
            raise RequestError("options", f"unknown backend {backend!r}")
        return Options(backend, fields)


def _integer(value: Plain) -> int:
    assert isinstance(value, int)
    return value


def backend_options(target: Target, **overrides: object) -> Options:
    """Parse options for a target in this process, as Triton would, and return every field.

    Overrides are fields of Triton's options (``num_warps``, ``num_stages``, ...); None means the
    default. Imports triton. Raises OptionsError for a field that the backend does not have.
    """
    known = options_class(target.backend).__dataclass_fields__
    for name in overrides:
        if name not in known:
            raise OptionsError(name, target.backend, f"unknown; it has {', '.join(sorted(known))}")
    asked = _DEFAULTS | {name: value for name, value in overrides.items() if value is not None}
    # The target decides the architecture, not TRITON_OVERRIDE_ARCH.
    asked.setdefault("arch", f"sm{target.arch}" if target.backend == "cuda" else target.arch)
    try:
        parsed = backend_of(target).parse_options(asked)
    except (ValueError, AssertionError, TypeError) as error:
        raise OptionsError(", ".join(overrides) or "?", target.backend, str(error)) from error
    return options_of(target.backend, parsed)


def options_of(backend: str, parsed: object) -> Options:
    """Read an options object that Triton parsed (a stages hook is handed one) into `Options`.

    Raises OptionsError for a field whose value cannot be part of a request.
    """
    fields = []
    for name, value in sorted(vars(parsed).items()):
        if name in _REFUSED and value is not None:
            raise OptionsError(name, backend, "names a file of this machine; compile it locally")
        if name == "extern_libs":
            value = tuple((lib, _digests().file(str(path))) for lib, path in value)
        try:
            fields.append((name, plain(value, f"option {name}")))
        except RequestError as error:
            raise OptionsError(name, backend, error.reason) from error
    return Options(backend, tuple(fields))


def rebuild_options(options: Options, kernel: str) -> Any:
    """Return the backend's options object with exactly the shipped fields; nothing is parsed.

    Raises OptionsError where the installed Triton has other fields, LibraryMissing where no device
    library here has the content that the options name.
    """
    cls = options_class(options.backend)
    shipped = dict(options.fields)
    missing = sorted(cls.__dataclass_fields__.keys() - shipped.keys())
    unknown = sorted(shipped.keys() - cls.__dataclass_fields__.keys() - DERIVED_OPTIONS)
    for name in missing + unknown:
        side = "asking" if name in missing else "installed"
        raise OptionsError(name, options.backend, f"{kernel}: the {side} triton does not have it")
    rebuilt = object.__new__(cls)
    for name, value in options.fields:
        if name == "extern_libs":
            value = tuple((lib, find_library(lib, digest)) for lib, digest in options.libraries)
        object.__setattr__(rebuilt, name, value)
    return rebuilt


def find_library(name: str, digest: str) -> str:
    """Return the path of the device library on this machine whose sha256 is ``digest`` (hex).

    Looks at the library that the environment names and at Triton's own, by content only.
    """
    root = triton_root()
    candidates = [os.environ.get("TRITON_LIBDEVICE_PATH", "")] if name == "libdevice" else []
    for folder in ("nvidia", "amd"):
        found = sorted((root / "backends" / folder / "lib").glob("*.bc"))
        candidates += [str(path) for path in sorted(found, key=lambda path: name not in path.name)]
    searched = [path for path in candidates if path and os.path.isfile(path)]
    for path in searched:
        if _digests().file(path) == digest:
            return path
    raise LibraryMissing(name, digest, searched)


def backend_of(target: Target) -> Any:
    """Return Triton's backend object for a target, cached; asks no driver."""
    return _backend(target.backend, target.arch, target.device_model.warp_size)


@lru_cache(maxsize=32)
def _backend(backend: str, arch: str, warp_size: int) -> Any:
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    return make_backend(GPUTarget(backend, int(arch) if backend == "cuda" else arch, warp_size))


@lru_cache(maxsize=1)
def _digests() -> FileDigests:
    return FileDigests()
