"""Where the installed triton is, its version, and which of its files a compile may read."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from .errors import TritonMissing

#: Directories under triton/ that no compile reads.
_SKIPPED = frozenset({"__pycache__", "profiler", "include", "bin", "cupti", "cupti-blackwell"})
_SKIPPED_FILES = frozenset({"libproton.so"})
_SUFFIXES = (".py", ".so", ".bc", ".ll")


def triton_root() -> Path:
    """Return the directory of the triton package that an import would find, without importing."""
    loaded = sys.modules.get("triton")
    if loaded is not None and getattr(loaded, "__file__", None):
        return Path(str(loaded.__file__)).parent
    return Path(_find_root(tuple(sys.path)))


@lru_cache(maxsize=8)
def _find_root(search_path: tuple[str, ...]) -> str:
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        raise TritonMissing()
    return os.path.dirname(spec.origin)


def triton_version(root: Path | None = None) -> str:
    """Return triton's version text, read from its sources."""
    return _version_text(str(root or triton_root()))


@lru_cache(maxsize=8)
def _version_text(root: str) -> str:
    with open(os.path.join(root, "__init__.py"), encoding="utf-8") as file:
        match = re.search(r"^__version__\s*=\s*['\"]([^'\"]+)['\"]", file.read(), re.MULTILINE)
    if match is None:
        raise TritonMissing(root)
    return match.group(1)


def compiler_files(root: Path) -> tuple[str, ...]:
    """Return the paths, relative to ``root`` and sorted, of all files that a compile may read."""
    return tuple(sorted(_walk(str(root), "")))


def is_compiler_file(name: str) -> bool:
    """Say whether a path relative to triton's directory is one that `compiler_files` lists."""
    *folders, file = name.split("/")
    return _SKIPPED.isdisjoint(folders) and _counts(file)


def _counts(file: str) -> bool:
    return file.endswith(_SUFFIXES) and file not in _SKIPPED_FILES


def _walk(directory: str, prefix: str) -> Iterator[str]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name not in _SKIPPED:
                    yield from _walk(entry.path, f"{prefix}{entry.name}/")
            elif _counts(entry.name):
                yield prefix + entry.name
