"""The identity of the compiler that is installed here, computed without importing it.

Identity "content" is sha256 over the files that turn Python into a binary: Triton's Python
sources, libtriton, its device libraries. Identity "release" is Triton's version text and the
same without the shared objects, for an installation whose files match its own RECORD; it is equal
for the wheels of one version that are built for different Pythons, which differ in exactly those
(checked: 3.6.0 for Python 3.11 and 3.12). Both add the bytes of the assembler that is
really used for the architecture, and every environment variable that code generation reads.
An assembler that is a script counts by the script, not by what the script runs.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from . import environment, record
from .digests import FileDigests
from .environment import codegen_environment as codegen_environment
from .installation import compiler_files, triton_root, triton_version
from .target import Target
from .versions import Version, parse_version, ptxas_names

Identity = Literal["content", "release"]


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A compiler as named parts, and whether what it makes must stay on this machine.

    ``parts`` are ("toolchain.triton", hex digest), ("toolchain.ptxas", ...), ("env.NAME", value).
    """

    identity: Identity
    parts: tuple[tuple[str, str], ...]
    local: bool = False

    def key_parts(self) -> tuple[tuple[str, bytes], ...]:
        """Return the parts for a key, the identity first: the two kinds never meet."""
        head = (("toolchain.identity", self.identity.encode()),)
        return head + tuple(
            (name, value.encode("utf-8", "surrogateescape")) for name, value in self.parts
        )

    def differences(self, other: Toolchain) -> tuple[tuple[str, str | None, str | None], ...]:
        """Return (name, mine, theirs) of every part in which two toolchains differ."""
        mine = dict(self.parts) | {"toolchain.identity": self.identity}
        theirs = dict(other.parts) | {"toolchain.identity": other.identity}
        return tuple(
            (name, mine.get(name), theirs.get(name))
            for name in sorted(mine.keys() | theirs.keys())
            if mine.get(name) != theirs.get(name)
        )


def current_toolchain(
    target: Target,
    identity: Identity = "content",
    environ: Mapping[str, str] | None = None,
    *,
    memo_dir: Path | None = None,
) -> Toolchain:
    """Identify the compiler of this environment for one target.

    ``environ`` None means ``os.environ``. Costs about a second the first time on a machine and
    some milliseconds later. Raises TritonMissing, RecordMismatch (identity "release") or OSError.
    """
    environ = os.environ if environ is None else environ
    root = triton_root()
    version = triton_version(root)
    digests = _digests(memo_dir)
    parts: list[tuple[str, str]] = []
    if identity == "release":
        parts.append(("toolchain.release", version))
        parts.append(("toolchain.sources", _release_digest(str(root), memo_dir)))
    else:
        parts.append(("toolchain.triton", _compiler_digest(str(root), memo_dir)))
    if target.backend == "cuda":
        parts += _ptxas_parts(root, parse_version(version), int(target.arch), environ, digests)
    else:
        parts += _amd_parts(root, identity, environ, digests)
    parts += _plugin_parts(environ, digests)
    variables = environment.codegen_variables(environ)
    parts += [(f"env.{name}", value) for name, value in variables.items()]
    return Toolchain(identity, tuple(parts), environment.is_local(environ))


@lru_cache(maxsize=4)
def _digests(memo_dir: Path | None) -> FileDigests:
    return FileDigests(memo_dir)


@lru_cache(maxsize=8)
def _compiler_digest(root: str, memo_dir: Path | None) -> str:
    # Cached for the life of the process: what was imported stays, whatever happens to the files.
    return _digest_of(root, compiler_files(Path(root)), memo_dir)


@lru_cache(maxsize=8)
def _release_digest(root: str, memo_dir: Path | None) -> str:
    names = compiler_files(Path(root))
    record.verify(Path(root), names, _digests(memo_dir))
    portable = tuple(name for name in names if not name.endswith(".so"))
    return _digest_of(root, portable, memo_dir)


def _digest_of(root: str, names: tuple[str, ...], memo_dir: Path | None) -> str:
    paths = [os.path.join(root, name) for name in names]

    def compute() -> str:
        hasher = hashlib.sha256()
        for name, path in zip(names, paths, strict=True):
            with open(path, "rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            hasher.update(f"{len(name)} {name} {content}\n".encode())
        return hasher.hexdigest()

    return _digests(memo_dir).remembered("compiler", paths, compute)


def _ptxas_parts(
    root: Path, version: Version | None, arch: int, environ: Mapping[str, str], digests: FileDigests
) -> list[tuple[str, str]]:
    parts = []
    for name in ptxas_names(version, arch):
        variable = f"TRITON_{name.upper().replace('-', '_')}_PATH"
        # Triton falls back on its own binary where the named one does not run, so with an
        # override both count: which of the two it was is then covered either way.
        for override in environment.files_named(variable, environ):
            parts.append((f"toolchain.{name}.override", _content(override, digests)))
        bundled = root / "backends" / "nvidia" / "bin" / name
        if bundled.is_file():
            parts.append((f"toolchain.{name}", digests.file(str(bundled))))
    return parts


def _amd_parts(
    root: Path, identity: Identity, environ: Mapping[str, str], digests: FileDigests
) -> list[tuple[str, str]]:
    for override in environment.files_named("TRITON_AMD_CODEGEN_PATH", environ):
        return [("toolchain.lld", _content(override, digests))]
    library = root / "backends" / "amd" / "lib" / "libtriton_amd_codegen.so"
    # Without that library the assembler and lld are inside libtriton, which the other parts name.
    if identity == "content" and library.is_file():
        return [("toolchain.lld", digests.file(str(library)))]
    return [("toolchain.lld", "bundled")]


def _content(path: str, digests: FileDigests) -> str:
    return digests.file(path) if os.path.isfile(path) else "missing"


def _plugin_parts(environ: Mapping[str, str], digests: FileDigests) -> list[tuple[str, str]]:
    parts = []
    for name in ("TRITON_PLUGIN_PATHS", "LLVM_PASS_PLUGIN_PATH", "TRITON_SWAP_MIR"):
        if paths := environment.files_named(name, environ):
            contents = [_tree_digest(path, digests) for path in paths]
            parts.append((f"toolchain.file.{name}", ",".join(contents)))
    return parts


def _tree_digest(path: str, digests: FileDigests) -> str:
    if os.path.isfile(path):
        return digests.file(path)
    hasher = hashlib.sha256()
    for directory, folders, files in os.walk(path):
        folders.sort()
        for name in sorted(files):
            full = os.path.join(directory, name)
            hasher.update(f"{os.path.relpath(full, path)} {digests.file(full)}\n".encode())
    return hasher.hexdigest()


@lru_cache(maxsize=1)
def devicelib_digest() -> str:
    """Return the sha256 of devicelib.py, the helper module that emitted kernels call."""
    path = Path(__file__).with_name("devicelib.py")
    return hashlib.sha256(path.read_bytes()).hexdigest()
