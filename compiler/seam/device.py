"""The device models: every fact about a GPU that may reach a decision, in one table.

Only the table is asked, never a live device, so that warming on a CPU and running on the GPU
decide alike. Sizes are in bytes, registers are 32-bit, bandwidth is the data sheet's. For AMD a
multiprocessor is a compute unit and the L2 figure is one die's, as HIP reports it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_KIB = 1024
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """One GPU model. ``live_names`` are fragments of the name that its driver reports."""

    name: str
    backend: str
    arch: str
    capability: tuple[int, int]
    multiprocessors: int
    registers_per_sm: int
    shared_per_sm: int
    shared_per_block: int
    max_threads_per_sm: int
    warp_size: int
    bandwidth_gbps: int
    l2_bytes: int
    flash_attention: bool
    channels_last: bool
    live_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Arch:
    """What all models of one architecture share."""

    backend: str
    arch: str
    capability: tuple[int, int]
    shared_per_sm: int
    shared_per_block: int
    max_threads_per_sm: int
    warp_size: int
    flash_attention: bool
    channels_last: bool


def _cuda(arch: int, shared_kib: int, block_kib: int, threads: int) -> _Arch:
    return _Arch(
        "cuda",
        str(arch),
        divmod(arch, 10),
        shared_kib * _KIB,
        block_kib * _KIB,
        threads,
        32,
        flash_attention=arch >= 80,
        channels_last=arch >= 80,
    )


def _hip(arch: str, capability: tuple[int, int], shared_kib: int) -> _Arch:
    # Channels-last convolutions are no gain in MIOpen's default layouts.
    return _Arch(
        "hip",
        arch,
        capability,
        shared_kib * _KIB,
        shared_kib * _KIB,
        2048,
        64,
        flash_attention=True,
        channels_last=False,
    )


_SM75 = _cuda(75, 64, 64, 1024)
_SM80 = _cuda(80, 164, 163, 2048)
_SM86 = _cuda(86, 100, 99, 1536)
_SM89 = _cuda(89, 100, 99, 1536)
_SM90 = _cuda(90, 228, 227, 2048)
_SM100 = _cuda(100, 228, 227, 2048)
_SM103 = _cuda(103, 228, 227, 2048)
_SM120 = _cuda(120, 100, 99, 1536)
_GFX90A = _hip("gfx90a", (9, 0), 64)
_GFX942 = _hip("gfx942", (9, 4), 64)
_GFX950 = _hip("gfx950", (9, 5), 160)


def _model(
    name: str, arch: _Arch, sms: int, gbps: int, l2_mib: int, *live_names: str
) -> DeviceModel:
    return DeviceModel(
        name=name,
        backend=arch.backend,
        arch=arch.arch,
        capability=arch.capability,
        multiprocessors=sms,
        registers_per_sm=64 * _KIB,
        shared_per_sm=arch.shared_per_sm,
        shared_per_block=arch.shared_per_block,
        max_threads_per_sm=arch.max_threads_per_sm,
        warp_size=arch.warp_size,
        bandwidth_gbps=gbps,
        l2_bytes=l2_mib * _MIB,
        flash_attention=arch.flash_attention,
        channels_last=arch.channels_last,
        live_names=live_names,
    )


#: The first model of an architecture is its default: what ``cuda:90`` means.
DEVICE_MODELS: tuple[DeviceModel, ...] = (
    _model("h200", _SM90, 132, 4800, 50, "H200", "GH200 144G"),
    _model("h100-sxm", _SM90, 132, 3350, 50, "H100 80GB HBM3", "H100 SXM"),
    _model("h100-pcie", _SM90, 114, 2039, 50, "H100 PCIe"),
    _model("h100-nvl", _SM90, 132, 3938, 50, "H100 NVL"),
    _model("gh200", _SM90, 132, 4000, 50, "GH200"),
    _model("h20", _SM90, 78, 4000, 60, "H20"),
    _model("b200", _SM100, 148, 8000, 126, "B200", "GB200"),
    _model("b300", _SM103, 148, 8000, 126, "B300", "GB300"),
    _model("a100-sxm-80gb", _SM80, 108, 2039, 40, "A100-SXM4-80GB", "A100 SXM4 80GB"),
    _model("a100-sxm-40gb", _SM80, 108, 1555, 40, "A100-SXM4-40GB", "A100 SXM4 40GB"),
    _model("a100-pcie-80gb", _SM80, 108, 1935, 40, "A100 80GB PCIe"),
    _model("a100-pcie-40gb", _SM80, 108, 1555, 40, "A100-PCIE-40GB"),
    _model("a30", _SM80, 56, 933, 24, "A30"),
    _model("a10g", _SM86, 80, 600, 6, "A10G"),
    _model("a10", _SM86, 72, 600, 6, "A10"),
    _model("a40", _SM86, 84, 696, 6, "A40"),
    _model("rtx-a6000", _SM86, 84, 768, 6, "RTX A6000"),
    _model("rtx-3090", _SM86, 82, 936, 6, "RTX 3090"),
    _model("l40s", _SM89, 142, 864, 96, "L40S"),
    _model("l40", _SM89, 142, 864, 96, "L40"),
    _model("l4", _SM89, 58, 300, 48, "L4"),
    _model("rtx-4090", _SM89, 128, 1008, 72, "RTX 4090"),
    _model("rtx-5090", _SM120, 170, 1792, 96, "RTX 5090"),
    _model("rtx-pro-6000", _SM120, 188, 1792, 128, "RTX PRO 6000 Blackwell"),
    _model("t4", _SM75, 40, 320, 4, "T4"),
    _model("mi300x", _GFX942, 304, 5300, 4, "MI300X"),
    _model("mi300a", _GFX942, 228, 5300, 4, "MI300A"),
    _model("mi325x", _GFX942, 304, 6000, 4, "MI325X"),
    _model("mi355x", _GFX950, 256, 8000, 4, "MI355X"),
    _model("mi350x", _GFX950, 256, 8000, 4, "MI350X"),
    _model("mi250x", _GFX90A, 110, 1638, 8, "MI250X"),
    _model("mi210", _GFX90A, 104, 1638, 8, "MI210"),
)

_BY_NAME = {model.name: model for model in DEVICE_MODELS}
_DEFAULTS: dict[tuple[str, str], DeviceModel] = {}
for _entry in DEVICE_MODELS:
    _DEFAULTS.setdefault((_entry.backend, _entry.arch), _entry)


def model_named(name: str) -> DeviceModel | None:
    """Return the table's model of that name (``h200``), or None."""
    return _BY_NAME.get(name)


def default_model(backend: str, arch: str) -> DeviceModel | None:
    """Return the default model of an architecture (``"cuda", "90"``), or None."""
    return _DEFAULTS.get((backend, arch))


def architectures() -> tuple[tuple[str, str], ...]:
    """Return the (backend, arch) pairs of the table, in its order."""
    return tuple(_DEFAULTS)


def model_of_device(name: str, capability: tuple[int, int]) -> DeviceModel | None:
    """Return the model that a live device's reported name and capability mean.

    The longest fragment that occurs in the name as whole words wins, so that "NVIDIA L40S" is no
    L40. An unknown name of a known architecture is that architecture's default model; an unknown
    architecture is None.
    """
    amd = "AMD" in name or "Instinct" in name or "Radeon" in name
    backend = "hip" if amd else "cuda"
    best: tuple[int, DeviceModel] | None = None
    fallback: DeviceModel | None = None
    for model in DEVICE_MODELS:
        if model.backend != backend or model.capability != tuple(capability):
            continue
        fallback = fallback or model
        for fragment in model.live_names:
            pattern = rf"(?<![A-Za-z0-9]){re.escape(fragment)}(?![A-Za-z0-9])"
            if re.search(pattern, name) and (best is None or len(fragment) > best[0]):
                best = (len(fragment), model)
    return best[1] if best else fallback
