"""What the scripts of this folder do on a GPU: a function's model, compiled, against eager."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch


def compare(function: Callable[[], tuple[Any, ...]]) -> None:
    """Run what ``function`` returns eagerly and compiled; print how far apart, and how fast.

    For "train" the loss and the gradients of all parameters are compared. Differences are relative
    to the largest element of eager's result.
    """
    torch.manual_seed(0)
    model, args, *kind = function()
    twin = copy.deepcopy(model)  # training may update buffers
    run = trained if kind == ["train"] else inferred
    started = time.perf_counter()
    got = run(torch.compile(twin, backend="kernelfarm"), args)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    expected = run(model, args)
    print(
        f"{function.__module__}.{function.__name__}: first call {seconds:.2f} s, {len(got)} results"
    )
    for name in sorted(got, key=lambda name: -apart(got[name], expected[name]))[:3]:
        print(f"  {name}: {apart(got[name], expected[name]):.5f} from eager")


def called(model: Callable[..., Any], args: Any) -> Any:
    """Call ``model`` with positional arguments or, for a mapping, with named ones."""
    return model(**args) if isinstance(args, Mapping) else model(*args)


def loss_of(output: Any) -> torch.Tensor:
    """Return the loss that a training model returned, alone or in an attribute."""
    loss: torch.Tensor = getattr(output, "loss", output)
    return loss


def inferred(model: Callable[..., Any], args: Any) -> dict[str, torch.Tensor]:
    """Return the model's logits."""
    with torch.no_grad():
        output = called(model, args)
    return {"logits": getattr(output, "logits", output)}


def trained(model: Any, args: Any) -> dict[str, torch.Tensor]:
    """Return the loss of one forward and backward pass and the gradients of all parameters."""
    loss = loss_of(called(model, args))
    loss.backward()
    module: torch.nn.Module = getattr(model, "_orig_mod", model)  # names without the wrapper's
    parameters = module.named_parameters()
    gradients = {f"gradient {name}": p.grad for name, p in parameters if p.grad is not None}
    return {"loss": loss.detach(), **gradients}


def apart(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference over the largest element."""
    scale = expected.abs().max().clamp_min(1e-30)
    return ((got.double() - expected.double()).abs().max() / scale).item()
