"""What code generation assumes about sizes: guards in the program, in the tracer, in the store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any

import pytest
import torch
from generated import Recording, context
from symbolic import Interpreted, check_sizes, symbolic

from kernelfarm.compiler import kernel as kernels_module
from kernelfarm.compiler.generate import generate
from kernelfarm.compiler.host import Guard, SizeExpr
from kernelfarm.compiler.host_codec import decode
from kernelfarm.compiler.host_errors import SizesOutOfRange
from kernelfarm.compiler.lower.context import Lowering
from kernelfarm.compiler.pipeline import compile_graph, settle
from kernelfarm.compiler.seam.artifact import Artifact, KernelMetadata
from kernelfarm.compiler.service import Compiled, KeyParts, StoredGraph
from kernelfarm.compiler.symbols import Symbols


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Dynamo remembers nothing, and code generation takes CPU tensors for the target's."""
    monkeypatch.setattr(
        "kernelfarm.compiler.generate.Lowering", lambda gm, device, s: Lowering(gm, "cpu", s)
    )
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def narrow_limit(monkeypatch: pytest.MonkeyPatch) -> int:
    """Pretend that integers of kernels end early, so that small tensors break a guard."""
    monkeypatch.setattr(kernels_module, "_GRID_ROOM", 0)
    monkeypatch.setattr(kernels_module, "_LOOP_ROOM", 0)
    monkeypatch.setattr(kernels_module, "INT32_LIMIT", 1000)
    return 1000


def double(x: torch.Tensor) -> torch.Tensor:
    """A function whose kernel indexes with two symbols."""
    return x.sin() * 2


def test_addresses_in_32_bits_are_a_guard() -> None:
    """A kernel that computes in 32 bits is good for sizes whose product fits, and says so."""
    gm = symbolic(double, [torch.randn(3, 5)])
    program, kernels, _ = generate(gm, context(Recording()))
    (kernel,) = kernels
    assert kernel.arg_kinds == ("*fp32", "*fp32", "i32", "i32")
    (guard,) = program.guards
    product = SizeExpr("mul", (SizeExpr("sym", ("s0",)), SizeExpr("sym", ("s1",))))
    assert guard.size == SizeExpr("add", (2**22, product)) and guard.limit == 2**31 - 1


def test_sizes_beyond_the_guard_raise_before_anything_is_touched(narrow_limit: int) -> None:
    """A call with other sizes than were guarded leaves its arguments and says what is wrong."""
    call = check_sizes(double, [torch.randn(3, 5)])
    arguments = [torch.randn(40, 50)]
    with pytest.raises(SizesOutOfRange, match="2000 is more than the 1000"):
        call(arguments)
    assert len(arguments) == 1


def test_larger_sizes_get_a_program_of_their_own(narrow_limit: int) -> None:
    """A false guard makes Dynamo compile again; the second program takes every size."""
    backend = Interpreted()
    compiled = torch.compile(double, backend=backend, dynamic=True)
    for sizes in ((3, 5), (6, 9), (40, 50), (70, 80), (4, 4)):
        x = torch.randn(sizes)
        torch.testing.assert_close(compiled(x), double(x))
    assert backend.compiled == 2


def test_where_the_tracer_takes_no_more_guards_large_sizes_run_op_by_op(
    narrow_limit: int,
) -> None:
    """A graph that is compiled too late for guards checks them itself, and is never wrong."""
    gm = symbolic(lambda x: (double(x),), [torch.randn(3, 5)])
    gm.shape_env.freeze()
    backend = Interpreted()
    call = compile_graph(gm, [], backend.ctx)
    for sizes in ((3, 5), (40, 50)):
        x = torch.randn(sizes)
        torch.testing.assert_close(call([x])[0], double(x))


def test_guards_that_others_imply_are_left_out() -> None:
    """Of several bounds on one product only the tightest is kept."""
    symbols = Symbols(symbolic(double, [torch.randn(3, 5)]))
    s0, s1 = symbols.table.values()
    assert symbols.allow([(s0 * s1, 1000), (s0, 1000), (2 * s0 * s1, 1000), (s1 - 1, 1000)])
    assert [g.size for g in symbols.guards()] == [
        SizeExpr("mul", (2, SizeExpr("sym", ("s0",)), SizeExpr("sym", ("s1",))))
    ]


def test_nothing_is_assumed_that_is_false_now() -> None:
    """Sizes at hand that break a bound add no guard at all."""
    symbols = Symbols(symbolic(double, [torch.randn(3, 5)]))
    s0, s1 = symbols.table.values()
    assert not symbols.allow([(s0, 100), (s0 * s1, 14)])
    assert symbols.guards() == ()


def test_guards_over_unknown_symbols_do_not_hold() -> None:
    """A planted guard over a symbol that the graph does not have is a miss."""
    symbols = Symbols(symbolic(double, [torch.randn(3, 5)]))
    assert not symbols.holds([Guard(SizeExpr("sym", ("s7",)), 100)])
    assert symbols.holds([Guard(SizeExpr("sym", ("s1",)), 5)])
    assert not symbols.holds([Guard(SizeExpr("sym", ("s1",)), 4)])


class Finished(Recording):
    """A service whose kernels are there at once."""

    def submit(self, request: Any, priority: Any = None) -> Any:
        """Settle a request with an artifact named like it."""
        future = super().submit(request)
        future.set_result(Compiled(digest(request.entry), artifact(request.entry), "compiled"))
        return future


def digest(name: str) -> bytes:
    """A kernel's key."""
    return sha256(name.encode()).digest()


def artifact(name: str) -> Artifact:
    """A kernel's binary, which nobody loads here."""
    return Artifact(b"binary", "cubin", KernelMetadata(name), registers=1, spills=0, min_driver=0)


class Graphs:
    """A graph store in memory."""

    def __init__(self) -> None:
        self.saved: dict[KeyParts, bytes] = {}

    def load(self, parts: KeyParts) -> StoredGraph | None:
        """What was saved."""
        program = self.saved.get(parts)
        if program is None:
            return None
        names = [k.name for k in decode(program).kernels]
        return StoredGraph(program, {digest(n): artifact(n) for n in names})

    def save(self, parts: KeyParts, program: bytes, kernels: Sequence[bytes]) -> None:
        """Keep what comes first."""
        self.saved.setdefault(parts, program)

    def refuse(self, parts: KeyParts) -> None:
        """Forget."""
        self.saved.pop(parts, None)


def _warm(graphs: Graphs, rows: int, columns: int) -> tuple[dict[str, int], int]:
    """Compile `double` as a process of its own would; returns graphs by outcome and submissions."""
    service = Finished()
    ctx = context(service, graphs=graphs)
    x = torch.randn(rows, columns)
    gm = symbolic(double, [x])
    inputs = [n.meta["val"] for n in gm.graph.find_nodes(op="placeholder")]
    compile_graph(gm, inputs, ctx)
    assert settle(ctx) == []
    return ctx.report.graphs, len(service.requests)


def test_a_stored_program_serves_other_sizes() -> None:
    """A second process, tracing at other sizes, compiles nothing."""
    graphs = Graphs()
    assert _warm(graphs, 3, 5)[0]["compiled"] == 1
    found, submitted = _warm(graphs, 70, 9)
    assert (found["from_store"], found["compiled"], submitted) == (1, 0, 0)


def test_a_stored_program_whose_guard_is_false_gets_a_second_variant(narrow_limit: int) -> None:
    """Sizes that break a stored program's guards are compiled and kept beside it."""
    graphs = Graphs()
    for sizes, compiled in (((3, 5), 1), ((40, 50), 1), ((4, 6), 0), ((60, 70), 0)):
        assert _warm(graphs, *sizes)[0]["compiled"] == compiled
    assert [len(decode(p).guards) for p in graphs.saved.values()] == [1, 0]


def test_guards_of_a_stored_program_are_added_to_the_tracers() -> None:
    """A hit makes the live ShapeEnv guard what the stored program assumes."""
    graphs = Graphs()
    _warm(graphs, 3, 5)
    gm = symbolic(double, [torch.randn(6, 7)])
    before = len(gm.shape_env.guards)
    inputs = [n.meta["val"] for n in gm.graph.find_nodes(op="placeholder")]
    compile_graph(gm, inputs, context(Finished(), graphs=graphs))
    assert len(gm.shape_env.guards) == before + 1
