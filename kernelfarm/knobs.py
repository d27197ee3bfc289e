"""Every setting of kernelfarm in one typed table.

Precedence: argument, then environment (``KERNELFARM_STORE`` for ``store``), then
``[tool.kernelfarm]`` in the nearest pyproject.toml above the working directory, then default.
A knob that changes generated code is part of every graph key (`Knobs.key_parts`).
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .errors import KnobError

PREFIX = "KERNELFARM_"

#: Reads one value, given as text or as TOML; raises ValueError.
Reader = Callable[[Any], Any]


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    words = {"1": True, "true": True, "yes": True, "on": True}
    words |= {"0": False, "false": False, "no": False, "off": False, "": False}
    if isinstance(value, str) and value.strip().lower() in words:
        return words[value.strip().lower()]
    raise ValueError


def _bytes(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        amount = value
    else:
        text = str(value).strip().lower().removesuffix("b").removesuffix("i")
        scale = {"k": 10, "m": 20, "g": 30, "t": 40}.get(text[-1:], 0)
        amount = int(text[:-1] if scale else text) << scale
    if amount <= 0:
        raise ValueError
    return amount


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not 0 < float(value) < float("inf"):
        raise ValueError
    return float(value)


def _path(value: Any) -> Path | None:
    if isinstance(value, str | os.PathLike):
        text = os.fspath(value)
        return Path(text).expanduser() if text else None
    raise ValueError


def _text(value: Any) -> str | None:
    if not isinstance(value, str):
        raise ValueError
    return value.strip() or None


def _identity(value: Any) -> str:
    if value not in ("content", "release"):
        raise ValueError
    return str(value)


#: What a reader accepts, for messages.
_EXPECTED: dict[Reader, str] = {
    _boolean: "true or false",
    _bytes: "a number of bytes, such as 8GiB",
    _seconds: "a positive number of seconds",
    _path: "a path",
    _text: "text",
    _identity: '"content" or "release"',
}


def _knob(default: Any, read: Reader, doc: str, *, changes_code: bool = False) -> Any:
    return field(default=default, metadata={"read": read, "doc": doc, "changes_code": changes_code})


@dataclass(frozen=True, slots=True)
class Knobs:
    """The settings in force; ``origins`` says where each one came from. Build with `resolve`."""

    store: Path | None = _knob(
        None, _path, "directory of the local store; unset: the default place of this user"
    )
    store_bytes: int = _knob(8 << 30, _bytes, "how much the local store may hold")
    target: str | None = _knob(
        None, _text, "what torch.compile compiles for; unset: the GPU that is there"
    )
    identity: Literal["content", "release"] = _knob(
        "content",
        _identity,
        "how a toolchain is identified: by its bytes, or by its release (shares across Pythons)",
    )
    farm: bool = _knob(True, _boolean, "compile in the farm; off: in this process")
    farm_dir: Path | None = _knob(None, _path, "directory of the broker's socket")
    wait_seconds: float = _knob(
        600.0, _seconds, "how long loading a graph waits for its kernels before it gives up"
    )
    interpret: bool = _knob(
        False,
        _boolean,
        "run kernels on CPU tensors by Triton's interpreter: for tests, very slow",
        changes_code=True,
    )
    fallback_random: bool = _knob(
        False,
        _boolean,
        "random operators run as eager's, with eager's numbers; otherwise in our kernels",
        changes_code=True,
    )
    strict: bool = _knob(
        False, _boolean, "raise our own failures instead of falling back to eager; for CI"
    )
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)

    def key_parts(self) -> tuple[tuple[str, bytes], ...]:
        """Return the knobs that change generated code, as named parts of a graph key."""
        return tuple(
            (f"knob.{knob.name}", repr(getattr(self, knob.name)).encode())
            for knob in table()
            if knob.metadata["changes_code"]
        )


def table() -> tuple[dataclasses.Field[Any], ...]:
    """Return the knobs in order; each field's metadata has ``read``, ``doc``, ``changes_code``."""
    return tuple(knob for knob in dataclasses.fields(Knobs) if "read" in knob.metadata)


def resolve(
    arguments: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    directory: Path | None = None,
    notice: Callable[[str], None] | None = None,
) -> Knobs:
    """Return the knobs in force; an argument that is None counts as not given.

    ``environ`` and ``directory`` replace os.environ and the working directory. ``notice``
    receives a line for each setting that no knob is called. Raises KnobError.
    """
    environ = os.environ if environ is None else environ
    given = {name: value for name, value in (arguments or {}).items() if value is not None}
    names = {knob.name for knob in table()}
    for name in given:
        if name not in names:
            raise KnobError(name, given[name], "argument", f"a setting{_nearest(name, names)}")
    file, settings = _project_settings(directory or Path.cwd())
    if notice is not None:
        _tell_unknown(environ, file, settings, names, notice)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for knob in table():
        variable = PREFIX + knob.name.upper()
        if knob.name in given:
            raw, origin = given[knob.name], "argument"
        elif variable in environ:
            raw, origin = environ[variable], f"environment variable {variable}"
        elif knob.name in settings:
            raw, origin = settings[knob.name], f"[tool.kernelfarm] in {file}"
        else:
            origins[knob.name] = "default"
            continue
        read = knob.metadata["read"]
        try:
            values[knob.name] = read(raw)
        except (ValueError, TypeError):
            raise KnobError(knob.name, raw, origin, _EXPECTED[read]) from None
        origins[knob.name] = origin
    return Knobs(**values, origins=origins)


def _tell_unknown(
    environ: Mapping[str, str],
    file: Path | None,
    settings: Mapping[str, Any],
    names: set[str],
    notice: Callable[[str], None],
) -> None:
    for variable in sorted(environ):
        name = variable.removeprefix(PREFIX).lower()
        if variable.startswith(PREFIX) and name not in names:
            hint = _nearest(name, names, lambda near: PREFIX + near.upper())
            notice(f"kernelfarm: no setting is called {variable}{hint}; it has no effect")
    for name in settings:
        if name not in names:
            notice(
                f"kernelfarm: [tool.kernelfarm] in {file}: no setting is called "
                f"{name}{_nearest(name, names)}; it has no effect"
            )


def _nearest(name: str, names: set[str], show: Callable[[str], str] = str) -> str:
    near = difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.5)
    return f" (did you mean {show(near[0])}?)" if near else ""


def _project_settings(directory: Path) -> tuple[Path | None, Mapping[str, Any]]:
    """Return the nearest pyproject.toml and its [tool.kernelfarm]; unreadable counts as absent."""
    for folder in (directory, *directory.parents):
        file = folder / "pyproject.toml"
        try:
            text = file.read_text(encoding="utf-8")
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError):
            return None, {}
        try:
            settings = tomllib.loads(text).get("tool", {}).get("kernelfarm", {})
        except (tomllib.TOMLDecodeError, AttributeError):
            return None, {}
        return file, settings if isinstance(settings, dict) else {}
    return None, {}
