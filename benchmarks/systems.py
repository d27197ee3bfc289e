"""The systems that are measured, and what each says of its own compiling."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from clock import Clock


def prepare(system: str, model: torch.nn.Module, clock: Clock) -> Callable[..., Any]:
    """Return the model as ``system`` runs it; compilation happens in its first call."""
    if system == "eager":
        return model
    inner: Callable[..., Any]
    if system == "kernelfarm":
        from kernelfarm.backend import kernelfarm as inner
    elif system == "inductor":
        from torch._dynamo.backends.registry import lookup_backend

        inner = lookup_backend("inductor")
    else:
        inner = floor(clock)

    def backend(gm: Any, inputs: Any, **options: Any) -> Any:
        with clock.inside():
            return inner(gm, inputs, **options)

    return torch.compile(model, backend=backend, dynamic=False)


def floor(clock: Clock) -> Callable[..., Any]:
    """Return a backend that traces as kernelfarm does and compiles nothing."""
    from kernelfarm.backend import live_target
    from kernelfarm.compiler.pipeline import run_eagerly
    from kernelfarm.compiler.trace.dynamo import compile_fx
    from kernelfarm.knobs import resolve

    def backend(gm: Any, inputs: Any) -> Any:
        return compile_fx(
            gm,
            inputs,
            compile_graph=lambda graph, _inputs, _info: run_eagerly(graph),
            target=live_target(resolve({"farm": False})),
            record=clock.add,
        )

    return backend


def phases(system: str) -> dict[str, float]:
    """Return the seconds that the compiler says it spent so far, by phase."""
    if system == "inductor":
        from torch._dynamo.utils import compilation_time_metrics

        return {name: sum(times) for name, times in compilation_time_metrics.items()}
    if system == "kernelfarm":
        from kernelfarm.backend import REPORT

        return dict(REPORT.phases)
    return {}


def details(system: str, forward: Mapping[str, float] | None) -> dict[str, Any]:
    """Return what the compiler itself reports; of ours also graphs, kernels and speculation.

    ``forward`` are the phases up to the end of the forward pass: with it, those of the backward
    are told apart.
    """
    whole = phases(system)
    found: dict[str, Any] = {}
    if whole:
        found["phases_s"] = {name: round(s, 4) for name, s in whole.items() if s >= 0.005}
    if whole and forward is not None:
        after = {name: s - forward.get(name, 0.0) for name, s in whole.items()}
        found["phases_backward_s"] = {n: round(s, 4) for n, s in after.items() if s >= 0.005}
    if system == "kernelfarm":
        found |= ours()
    return found


def ours() -> dict[str, Any]:
    """Return kernelfarm's graphs, kernels, fallbacks and speculation of this process."""
    from kernelfarm.backend import NOTICES, REPORT, TALLY

    fallbacks = {name: n for name, n in NOTICES.counts().items() if name.startswith("eager_")}
    found: dict[str, Any] = {
        "graphs": dict(REPORT.graphs),
        "kernels": TALLY.kernels(),
        "submit_us": TALLY.submit_us(),
        "fallback_operators": dict(REPORT.operators["fallback"]),
    }
    if fallbacks:  # then what was measured is not ours
        found["fell_back"] = fallbacks
    return found | speculation(TALLY)


def speculation(tally: Any) -> dict[str, Any]:
    """Return how much of the compiling went on while kernels were still being generated."""
    spans = tally.spans()
    built = [span for span in spans if span.started]
    if not built:
        return {}
    last = max(span.submitted for span in spans)
    early = sum(span.started < last for span in built)
    return {
        "speculation": {
            "distinct": len(built),
            "started_before_last_submit": early,
            "share": round(early / len(built), 3),
            "first_submit_to_last_s": round(last - min(s.submitted for s in spans), 4),
            "last_submit_to_last_finish_s": round(max(s.finished for s in built) - last, 4),
        }
    }
