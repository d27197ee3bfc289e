"""Opening a stored graph: nothing in it is believed before it was checked."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule

from . import host
from .host_codec import decode
from .host_errors import HostProgramError
from .host_sizes import to_host
from .host_verify import verify
from .seam.request import Artifact
from .service import StoredGraph
from .sym import as_size, naming
from .symbols import Symbols


def open_stored(
    found: StoredGraph, gm: GraphModule, symbols: Symbols | None = None
) -> tuple[host.HostProgram, list[Artifact]]:
    """Return a stored graph's program and its artifacts, in the order of the program's kernels.

    Raises HostProgramError unless the program is well-formed, takes and returns what ``gm`` does,
    and every kernel is the one that it names.
    """
    program = decode(found.program)
    verify(program)
    _check_signature(program, gm, Symbols(gm) if symbols is None else symbols)
    artifacts = []
    for i, kernel in enumerate(program.kernels):
        artifact = found.kernels.get(kernel.key)
        if artifact is None:
            raise HostProgramError(f"kernels[{i}].key", f"no kernel {kernel.name} came with it")
        if artifact.metadata.name != kernel.name:
            raise HostProgramError(
                f"kernels[{i}].key", f"it leads to {artifact.metadata.name}, not to {kernel.name}"
            )
        artifacts.append(artifact)
    return program, artifacts


def _check_signature(program: host.HostProgram, gm: GraphModule, symbols: Symbols) -> None:
    """Hold a program's inputs and outputs against the graph's: a wrong one may not run."""
    placeholders = gm.graph.find_nodes(op="placeholder")
    if len(program.inputs) != len(placeholders):
        raise HostProgramError(
            "inputs", f"{len(program.inputs)} inputs for a graph of {len(placeholders)}"
        )
    for i, (entry, node) in enumerate(zip(program.inputs, placeholders, strict=True)):
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and not _fits(entry.spec, value, symbols):
            raise HostProgramError(f"inputs[{i}].spec", "the graph's input is another tensor")
    (output,) = gm.graph.find_nodes(op="output")
    results = output.args[0]
    wanted = len(results) if isinstance(results, tuple | list) else 1
    if len(program.outputs) != wanted:
        raise HostProgramError("outputs", f"{len(program.outputs)} outputs for a graph of {wanted}")


def _fits(spec: host.TensorSpec | None, value: Any, symbols: Symbols) -> bool:
    if spec is None:
        return False
    with naming(symbols.rename):
        sizes = tuple(to_host(as_size(size)) for size in value.shape)
    return spec.sizes == sizes and f"torch.{spec.dtype}" == str(value.dtype)
