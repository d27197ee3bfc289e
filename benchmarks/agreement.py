"""Whether compiled results agree with eager's: float64 settles what is an error, and whose.

Compared are the logits of an inference; of training the loss, the gradients of all parameters and
the buffers that the forward pass updated. An error is the norm of a result's difference from
float64's over the norm of float64's; where that is nothing beside the largest of its kind, such
as the gradient of a bias ahead of a batch norm, over the largest's.

Ours is wrong if it is more than half as large again as eager's plus a slack: the smallest step of
the parameters' type, and in float32 that of sixteen bits, since libraries choose their algorithms
anew for other memory formats. float32 is compared without TF32, which would hide what is sought.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from comparing import called, inferred, loss_of, trained

#: Results of which a line names the worst.
SHOWN = 4
#: A norm that is this part of the largest is that of rounding errors.
NOTHING = 1e-6
Results = dict[str, torch.Tensor]


def compare(subject: Any, call: Callable[..., Any], batches: list[int]) -> dict[str, Any]:
    """Compare ``call``, the compiled model, with eager at the full batch and at smaller ones."""
    report: dict[str, Any] = {"wrong": False, "batches": []}
    model = subject.model
    start = copy.deepcopy(model.state_dict())
    results = _trained if subject.training else _inferred
    exact = None
    try:
        exact = copy.deepcopy(model).double()
    except torch.OutOfMemoryError:
        report["float64"] = "does not fit"
    with ieee():
        for batch in (None, *batches):
            args = subject.args if batch is None else cut(subject.args, batch)
            got = _from(start, model, lambda args=args: results(call, model, args))
            eager = _from(start, model, lambda args=args: results(model, model, args))
            reference = None
            if exact is not None:
                reference = _exactly(results, exact, start, wide(args))
            found = judge(got, eager, reference, slack_of(model))
            report["wrong"] |= bool(found["wrong"])
            report["batches"].append({"batch": batch or "full", **found})
    model.load_state_dict(start)
    return report


def judge(got: Results, eager: Results, exact: Results | None, slack: float) -> dict[str, Any]:
    """Return how many results are wrong, some of them, and the worst of all.

    Without ``exact`` only a shape, a type or a NaN that eager has not is called wrong.
    """
    wrong: dict[str, str] = {}
    rows = []
    scales = _scales(eager if exact is None else exact)
    for name in eager.keys() | got.keys():
        mine, theirs = got.get(name), eager.get(name)
        if mine is None or theirs is None:
            wrong[name] = "only in " + ("eager" if mine is None else "ours")
            continue
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            wrong[name] = (
                f"{tuple(mine.shape)} {mine.dtype} for {tuple(theirs.shape)} {theirs.dtype}"
            )
            continue
        row = {"result": name, "from_eager": error(mine, theirs, scales[name])}
        if exact is not None:
            row["error"] = error(mine, exact[name], scales[name])
            row["eager_error"] = error(theirs, exact[name], scales[name])
            if not row["error"] <= 1.5 * row["eager_error"] + slack:
                wrong[name] = f"error {row['error']:.3g}, eager's {row['eager_error']:.3g}"
        elif math.isnan(row["from_eager"]):
            wrong[name] = "not a number, or not where eager has none"
        rows.append({k: v if isinstance(v, str) else float(f"{v:.3g}") for k, v in row.items()})
    key = "from_eager" if exact is None else "error"
    rows.sort(key=lambda row: -row[key] if row[key] == row[key] else -math.inf)
    shown = dict(sorted(wrong.items())[:SHOWN])
    return {
        "wrong": len(wrong),
        **({"wrong_ones": shown} if wrong else {}),
        "compared": len(rows),
        "worst": rows[:SHOWN],
        "slack": slack,
    }


def error(got: torch.Tensor, reference: torch.Tensor, scale: float) -> float:
    """Return the norm of the difference over ``scale``; NaN if either holds one."""
    return (got.double() - reference.double()).norm().item() / scale


def _scales(reference: Results) -> dict[str, float]:
    """Return what each result's error is relative to: its norm, or the largest of its kind."""
    norms = {name: value.double().norm().item() for name, value in reference.items()}
    largest: dict[str, float] = {}
    for name, norm in norms.items():
        kind = name.split()[0]
        largest[kind] = max(largest.get(kind, 0.0), norm)
    found = {}
    for name, norm in norms.items():
        most = largest[name.split()[0]]
        found[name] = (most if norm < NOTHING * most else norm) or 1.0
    return found


def slack_of(model: torch.nn.Module) -> float:
    """Return the error that a result may have beside eager's."""
    dtype = next(model.parameters()).dtype
    return max(torch.finfo(dtype).eps, 2.0**-16)


def follow(
    subject: Any, call: Callable[..., Any], steps: int, optimizer: str, rate: float
) -> dict[str, Any]:
    """Train for some steps compiled, eagerly, and eagerly again; return the losses.

    The same batch in every step. ``largest`` is the largest difference from eager's loss relative
    to it, and ``noise`` the same between the two eager runs.
    """
    start = copy.deepcopy(subject.model.state_dict())
    curves = {}
    for name, run in (("compiled", call), ("eager", subject.model), ("again", subject.model)):
        subject.model.load_state_dict(start)
        curves[name] = losses(subject.model, run, subject.args, steps, optimizer, rate)
    subject.model.load_state_dict(start)
    return {
        "optimizer": optimizer,
        "rate": rate,
        "compiled": [round(value, 5) for value in curves["compiled"]],
        "eager": [round(value, 5) for value in curves["eager"]],
        "largest": largest(curves["compiled"], curves["eager"]),
        "noise": largest(curves["again"], curves["eager"]),
    }


def losses(
    model: torch.nn.Module, run: Callable[..., Any], args: Any, steps: int, name: str, rate: float
) -> list[float]:
    """Return the loss of each of ``steps`` training steps with an eager optimizer."""
    parameters = model.parameters()
    optimizer: torch.optim.Optimizer
    if name == "adamw":
        optimizer = torch.optim.AdamW(parameters, lr=rate)
    else:
        optimizer = torch.optim.SGD(parameters, lr=rate, momentum=0.9)
    found = []
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(called(run, args))
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def largest(curve: list[float], eager: list[float]) -> float:
    """Return the largest difference of two curves relative to the second; NaN if there is one."""
    apart = [abs(a - b) / abs(b) for a, b in zip(curve, eager, strict=True)]
    return math.nan if any(map(math.isnan, apart)) else max(apart, default=0.0)


def cut(args: Any, batch: int) -> Any:
    """Return the arguments with their first dimension cut to ``batch``."""
    return _mapped(args, lambda value: value[:batch] if value.dim() else value)


def wide(args: Any) -> Any:
    """Return the arguments with floating-point tensors in float64."""
    return _mapped(args, lambda value: value.double() if value.is_floating_point() else value)


@contextmanager
def ieee() -> Iterator[None]:
    """Compute float32 as float32, without TF32."""
    flags = [(torch.backends.cudnn, "allow_tf32"), (torch.backends.cuda.matmul, "allow_tf32")]
    before = [getattr(owner, name) for owner, name in flags]
    for owner, name in flags:
        setattr(owner, name, False)
    try:
        yield
    finally:
        for (owner, name), value in zip(flags, before, strict=True):
            setattr(owner, name, value)


def _mapped(args: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    def one(value: Any) -> Any:
        return change(value) if isinstance(value, torch.Tensor) else value

    if isinstance(args, Mapping):
        return {name: one(value) for name, value in args.items()}
    return tuple(one(value) for value in args)


def _inferred(call: Callable[..., Any], _model: torch.nn.Module, args: Any) -> Results:
    return inferred(call, args)


def _trained(call: Callable[..., Any], model: torch.nn.Module, args: Any) -> Results:
    model.zero_grad(set_to_none=True)
    found = trained(call, args)
    found |= {f"buffer {name}": value.clone() for name, value in model.named_buffers()}
    model.zero_grad(set_to_none=True)
    return found


def _from(
    start: Mapping[str, torch.Tensor], model: torch.nn.Module, act: Callable[[], Results]
) -> Results:
    model.load_state_dict(start)
    return act()


def _exactly(
    results: Callable[..., Results], exact: torch.nn.Module, start: Any, args: Any
) -> Results | None:
    try:
        return _from(start, exact, lambda: results(exact, exact, args))
    except torch.OutOfMemoryError:
        return None
