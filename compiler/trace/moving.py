"""Moves modules, arguments and closures onto fake tensors without touching the originals' data.

torch moves a parameter in place, which fake tensors cannot do. `movable_modules` therefore makes
``Module.to`` and its kin bind new parameters, one by one; a parameter that is used in several
places (GPT-2's output layer is its embedding) stays one parameter.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_map

#: Tensor to tensor; also what ``Module._apply`` takes.
Convert = Callable[[Tensor], Tensor]


class _Moved(threading.local):
    """The conversions of the outermost ``_apply`` in progress: id of the old one to (old, new).

    The old tensor is kept alive next to its successor, so that an id cannot come back.
    """

    done: dict[int, tuple[Tensor, Tensor]] | None = None


_moved = _Moved()


def _rebind(module: nn.Module, fn: Convert, recurse: bool = True) -> nn.Module:
    """Do what ``Module._apply`` does, with new parameters and buffers instead of changed ones."""
    outermost = _moved.done is None
    if outermost:
        _moved.done = {}
    try:
        if recurse:
            for child in module.children():
                child._apply(fn)
        for table in (module._parameters, module._buffers):
            for name, old in list(table.items()):
                if old is not None:
                    table[name] = _converted(old, fn)  # type: ignore[assignment]
    finally:
        if outermost:
            _moved.done = None
    return module


def _converted(old: Tensor, fn: Convert) -> Tensor:
    done = _moved.done
    assert done is not None
    known = done.get(id(old))
    if known is not None:
        return known[1]
    with torch.no_grad():
        new = fn(old)
    if isinstance(old, nn.Parameter):
        new = like_parameter(new, old)
        if old.grad is not None:
            with torch.no_grad():
                new.grad = fn(old.grad)
    done[id(old)] = (old, new)
    return new


def like_parameter(data: Tensor, old: Tensor) -> nn.Parameter:
    """Return ``data`` as a parameter with what users have hung on ``old``."""
    new = nn.Parameter(data, requires_grad=old.requires_grad)
    for name, value in vars(old).items():
        if name not in vars(new):
            with contextlib.suppress(AttributeError):
                setattr(new, name, value)
    return new


@contextlib.contextmanager
def movable_modules() -> Iterator[None]:
    """While inside, ``.to()``, ``.cuda()``, ``.bfloat16()`` and the like work on fake modules."""
    original = nn.Module._apply
    nn.Module._apply = _rebind  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module._apply = original  # type: ignore[method-assign]


def tensors_of(module: nn.Module) -> Iterator[Tensor]:
    """Yield the parameters and buffers of a module, each once."""
    yield from module.parameters()
    yield from module.buffers()


class FakeCopier:
    """Makes fake counterparts on one device; the same tensor always gets the same counterpart.

    ``mode`` is the mode that the fakes belong to. A tensor of no dimensions stays on the CPU if it
    was there: eager lets such a scalar meet GPU tensors, and models rely on it.
    """

    def __init__(self, mode: FakeTensorMode, device: torch.device) -> None:
        self._mode = mode
        self._device = device
        self._known: dict[int, tuple[Any, Any]] = {}

    def tensor(self, real: Tensor, *, scalars_too: bool = False) -> Tensor:
        """Return the counterpart of one tensor: same sizes, strides, dtype and requires_grad."""
        known = self._known.get(id(real))
        if known is not None:
            return known[1]
        with torch.no_grad():
            fake = self._on_device(real, scalars_too)
        if isinstance(real, nn.Parameter):
            fake = like_parameter(fake, real)
        elif fake is not real:
            fake = fake.detach().requires_grad_(real.requires_grad)
        for name, value in vars(real).items():
            if name.startswith("_dynamo_") and name not in vars(fake):  # e.g. mark_dynamic's
                setattr(fake, name, value)
        self._known[id(real)] = (real, fake)
        return fake

    def _on_device(self, real: Tensor, scalars_too: bool) -> Tensor:
        stays = real.device.type != "cpu" or (real.dim() == 0 and not scalars_too)
        device = real.device if stays else self._device
        if isinstance(real, FakeTensor) and real.device == device:
            return real
        with self._mode:
            return torch.empty_strided(real.size(), real.stride(), dtype=real.dtype, device=device)

    def module(self, module: nn.Module) -> nn.Module:
        """Return a copy of a module whose tensors are fake; the data is neither read nor copied."""
        # What the memo has for a tensor, deepcopy puts in its place.
        memo: dict[int, Any] = {id(t): self.tensor(t, scalars_too=True) for t in tensors_of(module)}
        memo |= {id(t): self.tensor(t) for t in _loose_tensors(module)}
        with self._mode:
            return copy.deepcopy(module, memo)

    def value(self, value: Any) -> Any:
        """Return counterparts of the tensors in nested lists, tuples and dicts."""
        return tree_map(lambda leaf: self.leaf(leaf), value)

    def leaf(self, leaf: Any) -> Any:
        """Return the counterpart of a tensor, module or function; anything else as it is."""
        match leaf:
            case Tensor():
                return self.tensor(leaf)
            case nn.Module():
                return self._remembered(leaf, lambda: self.module(leaf))
            case functools.partial():
                args, keywords = self.value(leaf.args), self.value(leaf.keywords)
                return functools.partial(self.leaf(leaf.func), *args, **keywords)
            case types.MethodType() if isinstance(leaf.__self__, nn.Module):
                return types.MethodType(leaf.__func__, self.leaf(leaf.__self__))
            case types.FunctionType():
                return self._remembered(leaf, lambda: self._function(leaf))
        return leaf

    def _remembered(self, original: Any, make: Callable[[], Any]) -> Any:
        if id(original) not in self._known:
            self._known[id(original)] = (original, original)  # ends recursion through closures
            self._known[id(original)] = (original, make())
        return self._known[id(original)][1]

    def _function(self, function: types.FunctionType) -> types.FunctionType:
        """Return the function with the tensors and modules replaced that it refers to."""
        used = {name: function.__globals__.get(name) for name in function.__code__.co_names}
        kinds = (Tensor, nn.Module)
        renewed = {name: self.leaf(v) for name, v in used.items() if isinstance(v, kinds)}
        if not renewed and not function.__closure__:
            return function
        cells = []
        for cell in function.__closure__ or ():
            try:
                cells.append(types.CellType(self.value(cell.cell_contents)))
            except ValueError:  # a cell that is not filled yet
                cells.append(cell)
        copied = types.FunctionType(
            function.__code__,
            {**function.__globals__, **renewed} if renewed else function.__globals__,
            function.__name__,
            function.__defaults__,
            tuple(cells),
        )
        copied.__kwdefaults__ = function.__kwdefaults__
        return copied


def _loose_tensors(module: nn.Module) -> Iterator[Tensor]:
    """Yield the tensors that sit in plain attributes of any submodule."""
    seen: set[int] = set()
    for part in module.modules():
        yield from _tensors_in(vars(part), seen)


def _tensors_in(value: Any, seen: set[int]) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)) and id(value) not in seen:
        seen.add(id(value))
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(item, seen)
