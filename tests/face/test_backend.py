"""The torch backend: what it compiles, and what it does when it cannot."""

from __future__ import annotations

import logging

import pytest
import torch

torch._dynamo.config.suppress_errors = False


@pytest.fixture
def backend(monkeypatch, tmp_path):
    """The backend over a store and a farm of its own, with fresh notices."""
    monkeypatch.setenv("KERNELFARM_FARM", "0")
    from kernelfarm import backend, compose
    from kernelfarm.cache.store import MemoryStore
    from kernelfarm.inline import InlineFarm
    from kernelfarm.notices import Notices
    from kernelfarm.tally import Tally

    said: list[str] = []
    monkeypatch.setattr(backend, "NOTICES", Notices(said.append))
    monkeypatch.setattr(backend, "TALLY", Tally())
    monkeypatch.setattr(
        backend,
        "shared_world",
        lambda knobs: compose.World(knobs, backend.NOTICES, MemoryStore(), InlineFarm()),
    )
    backend.heard = said
    torch._dynamo.reset()
    yield backend
    torch._dynamo.reset()


def small(x: torch.Tensor) -> torch.Tensor:
    """Something to fuse, with a reduction."""
    return torch.softmax(x * 2 + 1, dim=-1)


def compiled(backend, **options):
    """The function under torch.compile with our backend."""
    return torch.compile(small, backend=backend.kernelfarm, options=options, dynamic=False)


def test_kernels_run_by_the_interpreter_give_eagers_values(backend):
    """On CPU tensors with the interpreter, the compiled function computes what eager does."""
    x = torch.randn(16, 40)
    got = compiled(backend, interpret=True, strict=True)(x)
    torch.testing.assert_close(got, small(x), rtol=1e-5, atol=1e-6)
    assert backend.heard == []


def test_a_graph_without_a_gpu_tensor_runs_eagerly_with_one_notice(backend):
    """CPU code is not generated: the graph runs as it is, and a person hears of it once."""
    x = torch.randn(4, 8)
    run = compiled(backend)
    assert torch.equal(run(x), small(x))
    assert torch.equal(run(torch.ones(5, 8)), small(torch.ones(5, 8)))
    assert len(backend.heard) == 1
    assert "run eagerly" in backend.heard[0]


def test_a_failure_of_ours_runs_the_graph_eagerly(backend, monkeypatch):
    """A compiler that fails costs one notice and a counter, and the result is right."""

    def fail(*_):
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(backend, "compile_graph", fail)
    x = torch.randn(4, 8)
    torch.testing.assert_close(compiled(backend, interpret=True)(x), small(x))
    assert backend.NOTICES.counts() == {"eager_RuntimeError": 1}
    assert "a bug of ours" in backend.heard[0]


def test_a_failure_before_the_graph_runs_it_eagerly_too(backend, monkeypatch):
    """A store, toolchain or tracer that raises ends no job."""

    def fail(*_, **__):
        raise OSError("no space left on device")

    monkeypatch.setattr(backend, "compile_fx", fail)
    x = torch.randn(4, 8)
    assert torch.equal(compiled(backend, interpret=True)(x), small(x))
    assert backend.NOTICES.counts() == {"eager_OSError": 1}


def test_a_backward_that_cannot_be_compiled_runs_eagerly(backend, monkeypatch):
    """The backward graph is compiled inside the user's backward(), which must not fail for it."""
    real = backend.compile_graph
    seen = []

    def only_forward(gm, inputs, context):
        seen.append(gm)
        if len(seen) > 1:
            raise RuntimeError("no backward today")
        return real(gm, inputs, context)

    monkeypatch.setattr(backend, "compile_graph", only_forward)
    x = torch.randn(4, 8, requires_grad=True)
    y = torch.randn(4, 8, requires_grad=True)
    y.data.copy_(x.data)
    compiled(backend, interpret=True)(x).square().sum().backward()
    small(y).square().sum().backward()
    assert len(seen) == 2
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-5, atol=1e-6)


def test_strict_raises_what_went_wrong(backend, monkeypatch):
    """With the strict knob the failure itself reaches the caller."""

    def fail(*_):
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(backend, "compile_graph", fail)
    with pytest.raises(Exception, match="a bug of ours"):
        compiled(backend, interpret=True, strict=True)(torch.randn(4, 8))


def test_a_misspelt_option_is_an_error_that_names_the_right_one(backend):
    """An option that no knob is called is refused."""
    with pytest.raises(Exception, match="did you mean strict"):
        compiled(backend, stirct=True)(torch.randn(4, 8))


def test_without_a_gpu_and_a_target_the_message_says_what_to_set(backend, monkeypatch):
    """Asking for GPU code where there is no GPU names the settings that help."""
    from kernelfarm.errors import NoTarget
    from kernelfarm.knobs import resolve

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(NoTarget, match="KERNELFARM_TARGET"):
        backend.live_target(resolve({}, environ={}))


def test_torch_finds_the_backend_by_name(backend):
    """The entry point of an installed kernelfarm leads to this function."""
    from importlib.metadata import entry_points

    found = [point for point in entry_points(group="torch_dynamo_backends", name="kernelfarm")]
    if not found:
        pytest.skip("kernelfarm is not installed in this environment")
    assert found[0].load() is backend.kernelfarm


def test_notices_go_to_the_logger_and_never_to_warnings(caplog):
    """A job that turns warnings into errors does not die of a notice."""
    from kernelfarm.notices import Notices

    notices = Notices()
    with caplog.at_level(logging.WARNING, logger="kernelfarm"):
        notices.tell("reason", "50% of a store is gone")
        notices.tell("reason", "50% of a store is gone")
    assert [record.getMessage() for record in caplog.records] == ["50% of a store is gone"]
    assert notices.counts() == {"reason": 2}


def test_graphs_of_one_process_share_their_service():
    """Two graphs get the same service, so that equal kernels in flight are one job."""
    from kernelfarm import compose
    from kernelfarm.cache.store import MemoryStore
    from kernelfarm.compiler.seam.target import Target
    from kernelfarm.inline import InlineFarm
    from kernelfarm.knobs import Knobs
    from kernelfarm.notices import Notices
    from kernelfarm.tally import Tally

    world = compose.World(Knobs(), Notices(), MemoryStore(), InlineFarm())
    tally = Tally()
    first, second = (world.session(Target.parse("h200"), tally) for _ in range(2))
    assert first.service is second.service
    assert world.session(Target.parse("h200")).service is not first.service


def test_a_forked_child_has_worlds_of_its_own(monkeypatch):
    """What a parent composed is not used in its child, whose threads it does not have."""
    import os

    from kernelfarm import compose
    from kernelfarm.knobs import Knobs

    built = []
    monkeypatch.setattr(compose, "_WORLDS", {})

    def build(knobs):
        built.append(os.getpid())
        return object()

    mine = compose.shared_world(Knobs(), build)
    assert compose.shared_world(Knobs(), build) is mine
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        assert compose.shared_world(Knobs(), build) is not mine


CONJUGATED = {
    "product": lambda x: x * x.conj(),
    "imaginary part": lambda x: x.conj().imag + 1,
    "resolved": lambda x: torch.view_as_real(x.conj().resolve_conj()) + 1,
    "view of one": lambda x: x.conj()[1:].t().real.sin(),
    "transposed": lambda x: x.t().conj() + x.mH,
    "twice": lambda x: (x.conj() * 2).conj().imag.exp(),
    "returned": lambda x: (x.conj(), x.imag),
    "negated": lambda x: torch._neg_view(x) * 2,
}


@pytest.mark.parametrize("name", CONJUGATED)
def test_lazy_conjugation_and_negation_reach_the_result(backend, name):
    """What eager only marks on a view is computed, before a kernel or a library call reads it."""
    x = torch.randn(4, 6, dtype=torch.complex64)
    fn = CONJUGATED[name]
    run = torch.compile(
        fn, backend=backend.kernelfarm, options={"interpret": True, "strict": True}, dynamic=False
    )
    torch.testing.assert_close(run(x), fn(x))


def test_a_marked_input_is_never_read_as_plain_memory(backend):
    """A conjugated or negated view as a graph's input runs eagerly, and right."""
    x = torch.randn(4, 6, dtype=torch.complex64).conj()
    for fn, value in ((lambda v: v[1:] * 2, x), (lambda v: v + 1, x.imag)):
        run = torch.compile(
            fn, backend=backend.kernelfarm, options={"interpret": True}, dynamic=False
        )
        torch.testing.assert_close(run(value), fn(value))


def test_a_tensor_made_in_the_function_is_a_constant_of_the_program(backend):
    """Constants are made while AOTAutograd's fake mode is on, and are real all the same."""
    run = torch.compile(
        lambda x: x + torch.tensor([1.0, 2.0, 3.0]),
        backend=backend.kernelfarm,
        options={"interpret": True, "strict": True},
        dynamic=False,
    )
    assert torch.equal(run(torch.zeros(3)), torch.tensor([1.0, 2.0, 3.0]))


def test_a_symbolic_float_that_cannot_stay_one_is_traced_anew(backend):
    """Where Dynamo must take a number as it is after all, it restarts, and nothing falls back."""
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
    run = torch.compile(
        model, backend=backend.kernelfarm, options={"interpret": True}, dynamic=True
    )
    run(torch.randn(2, 1, 5, 6)).sum().backward()
    assert model[0].weight.grad is not None
    assert backend.heard == []


def test_a_nested_tensor_runs_op_by_op_and_says_why(backend):
    """A ragged dimension has no one size: the graph runs op by op, with one notice of why."""
    rows = [torch.randn(2, 4), torch.randn(3, 4)]
    nested = torch.nested.nested_tensor(rows, layout=torch.jagged)
    run = torch.compile(
        lambda x: (x * 2).sin(), backend=backend.kernelfarm, options={"interpret": True}
    )
    torch.testing.assert_close(run(nested).values(), (nested * 2).sin().values())
    assert len(backend.heard) == 1 and "nested tensor's ragged dimension" in backend.heard[0]
