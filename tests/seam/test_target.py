"""Targets and the table of device models."""

from __future__ import annotations

import pytest

from kernelfarm.compiler.seam.device import DEVICE_MODELS, model_of_device
from kernelfarm.compiler.seam.errors import UnknownTarget
from kernelfarm.compiler.seam.target import Target, supported_targets


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h200", "cuda:90/h200"),
        ("cuda:90", "cuda:90/h200"),
        ("sm_90", "cuda:90/h200"),
        ("sm_90a", "cuda:90/h200"),
        (" SM90 ", "cuda:90/h200"),
        ("cuda:90/h100-sxm", "cuda:90/h100-sxm"),
        ("cuda:100", "cuda:100/b200"),
        ("mi300x", "hip:gfx942/mi300x"),
        ("hip:gfx942", "hip:gfx942/mi300x"),
        ("gfx942", "hip:gfx942/mi300x"),
    ],
)
def test_parse_reads_every_documented_form(text: str, expected: str) -> None:
    """A model, an architecture in three spellings and a target's own printed form are read."""
    assert str(Target.parse(text)) == expected


@pytest.mark.parametrize(
    "text", ["", "h300", "cuda:42", "cuda:90/b200", "hip:90", "cuda", "sm_90b"]
)
def test_parse_refuses_the_rest_and_names_what_is_supported(text: str) -> None:
    """A text that means no table entry raises an error that lists the table."""
    with pytest.raises(UnknownTarget) as caught:
        Target.parse(text)
    assert caught.value.text == text
    assert "cuda:90" in str(caught.value) and "mi300x" in str(caught.value)


def test_every_supported_text_parses_and_prints_back() -> None:
    """Everything that errors advertise is read, and what a target prints means the same target."""
    for text in supported_targets():
        target = Target.parse(text)
        assert Target.parse(str(target)) == target
        assert target.device_model.arch == target.arch


@pytest.mark.parametrize(
    ("name", "capability", "model"),
    [
        ("NVIDIA H200", (9, 0), "h200"),
        ("NVIDIA H100 80GB HBM3", (9, 0), "h100-sxm"),
        ("NVIDIA H100 PCIe", (9, 0), "h100-pcie"),
        ("NVIDIA GH200 480GB", (9, 0), "gh200"),
        ("NVIDIA A100-SXM4-40GB", (8, 0), "a100-sxm-40gb"),
        ("NVIDIA L40S", (8, 9), "l40s"),
        ("NVIDIA L4", (8, 9), "l4"),
        ("NVIDIA A10G", (8, 6), "a10g"),
        ("NVIDIA B200", (10, 0), "b200"),
        ("AMD Instinct MI300X", (9, 4), "mi300x"),
        ("AMD Instinct MI325X", (9, 4), "mi325x"),
    ],
)
def test_live_devices_map_to_models(name: str, capability: tuple[int, int], model: str) -> None:
    """A device's reported name finds its model, never one whose name it merely contains."""
    assert Target.of_device_name(name, capability).model == model


def test_an_unknown_name_of_a_known_architecture_is_its_default_model() -> None:
    """A rebranded card decides like its architecture's default; an unknown architecture fails."""
    assert Target.of_device_name("NVIDIA Strange 9000", (9, 0)).model == "h200"
    assert model_of_device("NVIDIA Strange 9000", (3, 5)) is None
    with pytest.raises(UnknownTarget):
        Target.of_device_name("NVIDIA Strange 9000", (3, 5))


def test_the_table_is_sound() -> None:
    """Names are unique, and no figure contradicts another."""
    assert len({model.name for model in DEVICE_MODELS}) == len(DEVICE_MODELS)
    for model in DEVICE_MODELS:
        assert 0 < model.shared_per_block <= model.shared_per_sm, model.name
        assert model.warp_size == (32 if model.backend == "cuda" else 64), model.name
        assert model.max_threads_per_sm % model.warp_size == 0, model.name
        if model.backend == "cuda":
            assert model.arch == f"{model.capability[0]}{model.capability[1]}", model.name


def test_binaries_are_keyed_by_architecture_only() -> None:
    """Two models of one architecture have the same architecture key and differ as targets."""
    first, second = Target.parse("h200"), Target.parse("h100-sxm")
    assert first.arch_key == second.arch_key == "cuda:90"
    assert first != second
