"""Stored graphs are checked against the live graph before anything of them is used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from kernelfarm.compiler import host
from kernelfarm.compiler.host_codec import encode
from kernelfarm.compiler.host_errors import HostProgramError
from kernelfarm.compiler.seam.artifact import Artifact, KernelMetadata
from kernelfarm.compiler.service import StoredGraph
from kernelfarm.compiler.stored import open_stored

KEY = b"k" * 32
SPEC = host.TensorSpec((8,), (1,), "float32")
PROGRAM = host.HostProgram(
    inputs=(host.Input("arg0", SPEC),),
    kernels=(host.KernelDef("kf_sin", KEY, ("*fp32", "*fp32")),),
    lines=(
        host.Allocate("buf0", SPEC),
        host.KernelCall(0, (host.Ref("arg0"), host.Ref("buf0")), host.GridSpec(1)),
    ),
    outputs=(host.Ref("buf0"),),
)


@pytest.fixture(scope="module")
def graph() -> GraphModule:
    """The graph that PROGRAM is for."""
    return make_fx(lambda x: [x.sin()], tracing_mode="fake")(torch.zeros(8))


def stored(program: host.HostProgram, name: str = "kf_sin", key: bytes = KEY) -> StoredGraph:
    """A stored graph with one kernel."""
    return StoredGraph(encode(program), {key: Artifact(b"", "cubin", KernelMetadata(name))})


def test_the_right_program_is_opened(graph: GraphModule) -> None:
    """A program that fits comes back with its artifacts in order."""
    program, artifacts = open_stored(stored(PROGRAM), graph)
    assert program == PROGRAM
    assert [a.metadata.name for a in artifacts] == ["kf_sin"]


OTHER = host.Input("arg0", replace(SPEC, dtype="int32"))
LARGER = host.Input("arg0", replace(SPEC, sizes=(9,)))
SPOILED: dict[str, Callable[[], StoredGraph]] = {
    "kernels[0].key: no kernel": lambda: stored(PROGRAM, key=b"x" * 32),
    "kernels[0].key: it leads to": lambda: stored(PROGRAM, name="kf_cos"),
    "inputs: 2 inputs": lambda: stored(
        replace(PROGRAM, inputs=(*PROGRAM.inputs, host.Input("arg1", SPEC)))
    ),
    "inputs[0].spec: the graph's input": lambda: stored(replace(PROGRAM, inputs=(OTHER,))),
    "inputs[0].spec: the": lambda: stored(replace(PROGRAM, inputs=(LARGER,))),
    "inputs[0].spec": lambda: stored(
        replace(PROGRAM, inputs=(host.Input("arg0", None),), lines=(), outputs=(1,))
    ),
    "outputs: 2 outputs": lambda: stored(replace(PROGRAM, outputs=(*PROGRAM.outputs, 1))),
    "lines[0].spec.strides": lambda: stored(
        replace(PROGRAM, lines=(host.Allocate("buf0", replace(SPEC, strides=())),))
    ),
    "its root": lambda: StoredGraph(b"\x91" * 5000, {}),
}


@pytest.mark.parametrize("where", SPOILED)
def test_a_program_that_does_not_fit_is_refused(graph: GraphModule, where: str) -> None:
    """The refusal names the field; neither a GPU nor a runtime is needed to find out."""
    with pytest.raises(HostProgramError) as caught:
        open_stored(SPOILED[where](), graph)
    assert where in str(caught.value)
