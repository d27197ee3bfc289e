"""FILE.py:FUNCTION: finding it, running it, and saying clearly what is wrong with it."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import FunctionFailed, FunctionNotFound

#: Frames of the user's traceback that a message shows.
TAIL = 4


def locate(text: str) -> tuple[Path, str]:
    """Take FILE.py:FUNCTION apart without running anything; raises FunctionNotFound."""
    file_text, colon, name = text.rpartition(":")
    if not colon or not file_text or not name:
        raise FunctionNotFound(f"{text!r} is not FILE.py:FUNCTION, such as examples/gpt2.py:infer")
    file = Path(file_text).expanduser()
    if not file.is_file():
        raise FunctionNotFound(f"there is no file {file} (looked in {Path.cwd()})")
    if file.suffix != ".py":
        raise FunctionNotFound(f"{file} is no Python file; its name must end in .py")
    return file, name


class Files:
    """The files of one command, each imported once."""

    def __init__(self) -> None:
        self._modules: dict[Path, ModuleType] = {}

    def function(self, file: Path, name: str) -> Callable[[], Any]:
        """Import ``file`` and return its function ``name``.

        Its folder joins sys.path, as a script's does. Raises FunctionNotFound, or FunctionFailed
        when the file itself raises.
        """
        place = file.resolve()
        module = self._modules.get(place)
        if module is None:
            module = self._modules[place] = _imported(file)
        function: Callable[[], Any] | None = getattr(module, name, None)
        if not callable(function):
            own = [key for key, value in vars(module).items() if _is_own(value, module.__name__)]
            shown = ", ".join(sorted(own)) or "none"
            raise FunctionNotFound(f"{file} has no function {name!r}; its functions are: {shown}")
        return function


def _imported(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"kernelfarm_user_{file.stem}", file)
    assert spec is not None and spec.loader is not None  # the name ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look their module up there
    sys.path.insert(0, str(file.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # its sys.exit() must not pass for our success
        raise FunctionFailed(str(file), tail_of(error)) from error
    return module


def tail_of(error: BaseException) -> str:
    """Return the end of a traceback as its reader needs it: the exception and where it comes from.

    Without frames of our own, and without those of installed packages below the last line that
    the user wrote, as long as there is such a line.
    """
    ours = str(Path(__file__).parent)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((ours, "<frozen"))
    ]
    written = [i for i, frame in enumerate(frames) if not _is_installed(frame.filename)]
    if written:
        frames = frames[: written[-1] + 1]
    lines = traceback.format_list(frames[-TAIL:]) + traceback.format_exception_only(error)
    return "".join(lines).rstrip()


def _is_installed(file: str) -> bool:
    return "site-packages" in Path(file).parts or "dist-packages" in Path(file).parts


def _is_own(value: object, module: str) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module
