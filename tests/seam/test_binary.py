"""Reading binaries, and refusing what is none."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelfarm.compiler.seam.back import back_half
from kernelfarm.compiler.seam.binary import MalformedBinary, inspect_binary
from kernelfarm.compiler.seam.front import front_half
from kernelfarm.compiler.seam.installation import triton_root
from kernelfarm.compiler.seam.request import Artifact, SourceRequest

MakeRequest = Callable[..., SourceRequest]


@pytest.fixture(scope="module", params=["sm_90", "gfx942"])
def artifact(request: pytest.FixtureRequest) -> Artifact:
    """A real binary of each kind."""
    make: MakeRequest = request.getfixturevalue("make_request_for_module")
    return back_half(front_half(make("kf_reduction", request.param)))


def test_any_truncation_is_noticed(artifact: Artifact) -> None:
    """A file that lost its end, at whatever length, is refused."""
    for cut in [*range(0, len(artifact.binary) - 1, 97), len(artifact.binary) - 1]:
        with pytest.raises(MalformedBinary):
            inspect_binary(artifact.kind, artifact.binary[:cut], "kf_reduction")


def test_another_kernel_or_kind_is_noticed(artifact: Artifact) -> None:
    """A binary without the entry, or for another machine, is refused by what it lacks."""
    with pytest.raises(MalformedBinary, match="kf_reduction"):
        inspect_binary(artifact.kind, artifact.binary, "kf_other")
    other = "hsaco" if artifact.kind == "cubin" else "cubin"
    with pytest.raises(MalformedBinary, match="not a"):
        inspect_binary(other, artifact.binary, "kf_reduction")
    with pytest.raises(MalformedBinary, match="no ELF"):
        inspect_binary(artifact.kind, b"", "kf_reduction")


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
@pytest.mark.parametrize("maxnreg", [None, 32])
def test_registers_and_spills_are_what_the_vendors_tool_says(
    make_request: MakeRequest, tmp_path: Path, arch: str, maxnreg: int | None
) -> None:
    """The figures read from the file equal cuobjdump's, with and without spills."""
    request = make_request("kf_spilling", arch, block=64, maxnreg=maxnreg)
    made = back_half(front_half(request))
    path = tmp_path / "k.cubin"
    path.write_bytes(made.binary)
    tool = triton_root() / "backends" / "nvidia" / "bin" / "cuobjdump"
    said = subprocess.run(
        [str(tool), "-res-usage", str(path)], capture_output=True, text=True, check=True
    ).stdout
    assert f"REG:{made.registers} STACK:{made.spills * 4} " in said
    assert (made.spills > 0) == (maxnreg is not None)
