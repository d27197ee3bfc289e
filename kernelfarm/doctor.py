"""Which settings are in force and where each came from, for `kernelfarm doctor`."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

from .knobs import Knobs, table

#: Packages whose versions decide what happens.
PACKAGES = ("kernelfarm", "torch", "triton", "lmdb", "msgpack", "zstandard", "xxhash", "numpy")


def collect(knobs: Knobs) -> dict[str, Any]:
    """Return the versions and every knob: its value, its origin, whether it changes code."""
    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "knobs": {
            knob.name: {
                "value": _plain(getattr(knobs, knob.name)),
                "origin": knobs.origins.get(knob.name, "default"),
                "changes_code": knob.metadata["changes_code"],
                "meaning": knob.metadata["doc"],
            }
            for knob in table()
        },
    }


def render(found: dict[str, Any]) -> str:
    """Return the same for a person."""
    versions = ", ".join(f"{name} {version}" for name, version in found["packages"].items())
    lines = [f"python {found['python']}, {versions}", ""]
    for name, knob in found["knobs"].items():
        mark = " (changes generated code)" if knob["changes_code"] else ""
        lines.append(f"{name} = {knob['value']}    from: {knob['origin']}{mark}")
        lines.append(f"    {knob['meaning']}")
    return "\n".join(lines)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _plain(value: object) -> Any:
    return value if isinstance(value, bool | int | float | str | None) else str(value)
