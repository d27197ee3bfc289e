"""Gives a CPU build of torch what fake tensors on "cuda" need: a guard, and a seeming accelerator.

Both are a few lines of C++ (shim.cpp, shim_hooks.cpp), compiled once per torch build into the
user's cache directory and loaded after torch. A CUDA or ROCm build has a guard of its own, which
FakeTensorMode keeps from touching a driver; where there is a GPU nothing at all is needed.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from .errors import ShimUnavailable

_GUARD = Path(__file__).with_name("shim.cpp")
_HOOKS = Path(__file__).with_name("shim_hooks.cpp")
_FLAGS = ("-std=c++20", "-O1", "-shared", "-fPIC", "-fvisibility=hidden")
_COMPILE_SECONDS = 180.0
#: Bytes of the sha256 that a finished library ends in.
_SEAL = 32
_REMEDY_COMPILER = "install g++ (or set CXX to a C++20 compiler), or use a CUDA build of torch"
_lock = threading.Lock()


def ensure_device_guard() -> bool:
    """Make sure that fake tensors on "cuda" work in this process; return whether we had to act.

    Takes about 2 s once per torch build and user, milliseconds afterwards, and nothing on a CUDA
    or ROCm build. Call it before the first backward of the process: autograd counts devices then.
    Raises ShimUnavailable, whose text says what to install.
    """
    if torch.backends.cuda.is_built():
        return False
    with _lock:
        return _install()


def gpu_present() -> bool:
    """Is there a GPU that torch can use? The truth, whatever ``torch.cuda`` says during a trace."""
    return torch.backends.cuda.is_built() and torch._C._cuda_getDeviceCount() > 0


@contextlib.contextmanager
def pretended_accelerator() -> Iterator[None]:
    """While inside, autograd takes "cuda" for an accelerator, so fake gradients can be traced.

    Does nothing where there is a GPU. Raises ShimUnavailable.
    """
    if gpu_present():
        yield
        return
    with _lock:
        pretend = _hooks()
        pretend(1)
    try:
        yield
    finally:
        with _lock:
            pretend(0)


@functools.cache
def _install() -> bool:
    return bool(_function(_GUARD, "kernelfarm_install_guard")())


@functools.cache
def _hooks() -> Callable[[int], object]:
    return _function(_HOOKS, "kernelfarm_pretend_accelerator")


def _function(source: Path, name: str) -> Callable[..., object]:
    """Return a function out of the library made from ``source``, building that if need be."""
    library = _shared_directory() / f"{source.stem}-{_digest(source)}.so"
    if _is_whole(library):
        with contextlib.suppress(OSError, AttributeError):  # of another build: make it again
            return _loaded(library, name)
    build(source, library)
    try:
        return _loaded(library, name)
    except (OSError, AttributeError) as error:
        raise ShimUnavailable(
            f"{source.name} was built but does not load ({error})",
            f"delete {library} and try again, or use a CUDA build of torch",
        ) from error


def _is_whole(library: Path) -> bool:
    """Does the file end in the digest of the rest? Loading a short one kills."""
    try:
        content = library.read_bytes()
    except OSError:
        return False
    return content[-_SEAL:] == hashlib.sha256(content[:-_SEAL]).digest()


def _loaded(library: Path, name: str) -> Callable[..., object]:
    function: Callable[..., object] = getattr(ctypes.CDLL(str(library)), name)
    return function


def _digest(source: Path) -> str:
    """Name the build by everything that its machine code depends on."""
    parts = (
        source.read_bytes(),
        torch.__version__.encode(),
        str(torch.version.git_version).encode(),
        str(torch.compiled_with_cxx11_abi()).encode(),
        " ".join(_FLAGS).encode(),
        os.uname().machine.encode(),
    )
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "little") + part)
    return whole.hexdigest()[:32]


def _shared_directory() -> Path:
    """Return a directory that only this user can write: a library in it is code that we run."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    directory = Path(home) / "kernelfarm" / "shim"
    with contextlib.suppress(OSError):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.lstat()
        private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o022
        if private and found.st_uid == os.geteuid() and os.access(directory, os.W_OK):
            return directory
    # No usable home: a fresh private directory, at the price of one compile per process.
    return Path(tempfile.mkdtemp(prefix="kernelfarm-shim-"))


def find_compiler() -> str:
    """Return a C++ compiler: ``CXX``, else g++, c++ or clang++ on the path."""
    wanted = os.environ.get("CXX")
    for name in (wanted,) if wanted else ("g++", "c++", "clang++"):
        found = shutil.which(name)
        if found:
            return found
    looked = f"CXX={wanted} is not on the path" if wanted else "no C++ compiler was found"
    raise ShimUnavailable(looked, _REMEDY_COMPILER)


def build(source: Path, library: Path) -> None:
    """Compile ``source`` against the running torch's headers, put it at ``library`` atomically.

    Raises ShimUnavailable: no compiler, no headers, a failed or endless compile, a full disk.
    """
    root = Path(torch.__file__).parent
    if not (root / "include" / "c10").is_dir():
        raise ShimUnavailable(
            f"torch at {root} comes without its C++ headers", "reinstall torch from its wheel"
        )
    compiler = find_compiler()
    try:
        with tempfile.TemporaryDirectory(dir=library.parent, prefix="build-") as scratch:
            made = Path(scratch) / library.name
            command = [compiler, *_FLAGS, f"-I{root / 'include'}", str(source), "-o", str(made)]
            command += [f"-L{root / 'lib'}", "-ltorch_cpu", "-lc10"]
            _compile(command)
            with made.open("r+b") as file:
                digest = hashlib.sha256(file.read()).digest()
                file.write(digest)  # after the end of the ELF image, where no loader looks
            os.replace(made, library)
    except OSError as error:
        raise ShimUnavailable(
            f"{library.parent} cannot hold the compiled shim ({error})",
            "set XDG_CACHE_HOME to a writable directory",
        ) from error


def _compile(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ShimUnavailable(
            f"{command[0]} did not finish within {_COMPILE_SECONDS:.0f} s", _REMEDY_COMPILER
        ) from error
    if done.returncode != 0:
        first = next(
            (line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()
        )
        raise ShimUnavailable(
            f"{command[0]} failed on {Path(command[-6]).name} ({first[:300]})", _REMEDY_COMPILER
        )
