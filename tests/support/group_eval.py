"""Run fused groups through the body evaluator: what fusion made, without kernel text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from body_eval import BodyRun, _call, evaluate_index, poisoned, storage_of, torch_dtype, view_of

from kernelfarm.compiler.body import Stmt, varies
from kernelfarm.compiler.fuse import Group, fuse, live_after, merged_body
from kernelfarm.compiler.ir import Buffer, LoweredGraph, View


class GroupRun(BodyRun):
    """A merged body may store along its reduction loops as well."""

    def run(self) -> None:
        """Execute all statements, knowing which vary along the reduction loops."""
        self.inner = varies(self.body.stmts)
        super().run()

    def _store(self, stmt: Stmt, value: torch.Tensor) -> None:
        if not self.inner[len(self.values)]:
            return super()._store(stmt, value)
        name, index, mode, dtype = stmt.attrs
        flat = self.memory[name]
        assert torch_dtype(dtype) == flat.dtype and mode == "set"
        at = evaluate_index(index, self.env, self.values).expand(self.sizes).reshape(-1)
        assert at.unique().numel() == at.numel(), f"{stmt} stores twice to one element"
        assert bool(((at >= 0) & (at < flat.numel())).all()), f"{stmt} writes outside {name}"
        flat[at] = value.expand(self.sizes).reshape(-1).to(flat.dtype)
        return None


def execute_groups(
    graph: LoweredGraph, inputs: Sequence[Any], groups: Sequence[Group] | None = None
) -> list[Any]:
    """Run a graph as fused groups; buffers that no group should store stay poisoned."""
    groups = fuse(graph) if groups is None else groups
    live = live_after(groups, graph.outputs)
    memory: dict[str, torch.Tensor] = {}
    for buffer, tensor in zip(graph.inputs, inputs, strict=True):
        if isinstance(buffer, Buffer):
            memory[buffer.name] = storage_of(tensor, buffer)
    for name, data in graph.constants.items():
        memory[name] = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(
            torch_dtype(graph.buffers[name].dtype)
        )
    for group in groups:
        if group.extern is not None:
            _call(group.extern, memory)
            continue
        for name in live[group.number]:
            buffer = graph.buffers[name]
            memory[name] = poisoned(int(buffer.extent()), buffer.dtype)
        body = merged_body(group, live[group.number])
        assert body.writes() == live[group.number]
        if body.numel != 0:
            GroupRun(body, memory).run()
    return [view_of(o, memory) if isinstance(o, View) else o for o in graph.outputs]
