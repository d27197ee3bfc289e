"""What is compiled for: an architecture, and the device model that heuristics decide for.

Binaries are keyed by ``arch_key``; everything that a heuristic decided is keyed by the model.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast

from .device import (
    DEVICE_MODELS,
    DeviceModel,
    architectures,
    default_model,
    model_named,
    model_of_device,
)
from .errors import UnknownTarget

Backend = Literal["cuda", "hip"]


@dataclass(frozen=True, slots=True)
class Target:
    """An architecture ("90", "gfx942") of a backend and a device model's name out of the table."""

    backend: Backend
    arch: str
    model: str

    @staticmethod
    def parse(text: str) -> Target:
        """Read ``h200``, ``cuda:90``, ``sm_90``, ``mi300x``, ``hip:gfx942`` or ``cuda:90/h200``.

        A bare architecture means its default model. Raises UnknownTarget, which names what is
        supported.
        """
        wanted = text.strip().lower()
        arch_text, slash, model_text = wanted.partition("/")
        if not slash and (model := model_named(wanted)) is not None:
            return _of_model(model)
        pair = _parse_arch(arch_text)
        model = default_model(*pair) if pair else None
        if model is not None and slash:
            model = model_named(model_text)
            if model is not None and (model.backend, model.arch) != pair:
                model = None
        if model is None:
            raise UnknownTarget(text, supported_targets())
        return _of_model(model)

    @staticmethod
    def of_device_name(name: str, capability: tuple[int, int]) -> Target:
        """Map a live device to the table by the name and capability that its driver reports.

        An unknown name of a known architecture becomes that architecture's default model; an
        unknown architecture raises UnknownTarget.
        """
        model = model_of_device(name, capability)
        if model is None:
            raise UnknownTarget(f"{name} (capability {capability})", supported_targets())
        return _of_model(model)

    @property
    def device_model(self) -> DeviceModel:
        """The table's facts for this target."""
        model = model_named(self.model)
        if model is None or (model.backend, model.arch) != (self.backend, self.arch):
            raise UnknownTarget(str(self), supported_targets())
        return model

    @property
    def arch_key(self) -> str:
        """What binaries are keyed by: ``cuda:90``, ``hip:gfx942``."""
        return f"{self.backend}:{self.arch}"

    @property
    def binary_kind(self) -> Literal["cubin", "hsaco"]:
        """The kind of binary that the back half makes for this backend."""
        return "cubin" if self.backend == "cuda" else "hsaco"

    def __str__(self) -> str:
        return f"{self.arch_key}/{self.model}"


def supported_targets() -> tuple[str, ...]:
    """Return every architecture and every device model that ``Target.parse`` reads."""
    archs = tuple(f"{backend}:{arch}" for backend, arch in architectures())
    return archs + tuple(model.name for model in DEVICE_MODELS)


def _of_model(model: DeviceModel) -> Target:
    return Target(cast(Backend, model.backend), model.arch, model.name)


def _parse_arch(text: str) -> tuple[str, str] | None:
    # The "a" of sm_90a is implied: Triton compiles for it from sm_90 upwards.
    if match := re.fullmatch(r"(?:cuda:|(?:cuda:)?sm_?)(\d{2,3})a?", text):
        return "cuda", match.group(1)
    if match := re.fullmatch(r"(?:hip:)?(gfx[0-9a-f]{3,4})", text):
        return "hip", match.group(1)
    return None
