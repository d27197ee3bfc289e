"""A private copy of Triton's Python package, imported in interpreter mode.

Triton decides once, while it is imported, whether ``@triton.jit`` compiles or interprets, and its
interpreter patches ``triton.language`` in place. A process that compiles kernels cannot live with
either. So the package is imported a second time, beside the normal one, with the switch on: the
modules of the copy are nobody else's (only the C extension is shared), and may be completed where
the interpreter falls short of what our kernels need:

- libdevice calls and bit-exact rounding to bfloat16 and the 8-bit floats exist;
- reductions and scans call their combine function on halves of the block at once, so a block of
  4096 elements takes twelve calls and not 4095; every reduction but a sum runs its real combine
  function, so ties and NaN behave as when compiled;
- device assertions fire; device functions are called without patching the language each time.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import importlib.util
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..host_errors import RunError
from . import small_floats
from .interpreted_math import lookup

_SWITCH = "TRITON_INTERPRET"
_DEVICELIB = Path(__file__).resolve().parent.parent / "seam" / "devicelib.py"
_lock = threading.RLock()


@dataclass(frozen=True, slots=True)
class Language:
    """The modules of the private copy that kernel text and launches need."""

    triton: Any
    tl: Any
    interpreter: Any
    libdevice: Any
    kf: Any


@functools.cache
def language() -> Language:
    """Return the interpreted language, importing it at the first call (0.2 s)."""
    with _lock, _private_modules():
        triton: Any = importlib.import_module("triton")
        tl = importlib.import_module("triton.language")
        interpreter = importlib.import_module("triton.runtime.interpreter")
        stubs = importlib.import_module("triton.language.extra.libdevice")
        externs = importlib.import_module("triton.language.extra.cuda.libdevice")
        _own_decorator(triton, interpreter)
        triton.jit = _decorator(interpreter)
        _complete_rewriting(tl, interpreter)
        _complete_builder(tl, interpreter)
        _complete_reductions(tl, interpreter)
        _patch_once(tl, interpreter)
        _bind_libdevice(interpreter, stubs, externs)
        return Language(triton, tl, interpreter, stubs, _load_devicelib())


@contextmanager
def _private_modules() -> Iterator[None]:
    """Import Triton afresh inside, and put everything back outside.

    Another thread that imports Triton for the first time in the meantime may get the copy; the
    interpreter is a tool for tests and for looking at kernels, where nothing else runs.
    """

    def mine() -> dict[str, types.ModuleType]:
        # The extension and its package stay: a second initialisation is neither needed nor safe.
        return {
            name: module
            for name, module in sys.modules.items()
            if name.partition(".")[0] == "triton" and not name.startswith("triton._C")
        }

    before = mine()
    switch = os.environ.get(_SWITCH)
    for name in before:
        del sys.modules[name]
    os.environ[_SWITCH] = "1"
    try:
        yield
    finally:
        for name in mine():
            del sys.modules[name]
        sys.modules.update(before)
        if switch is None:
            del os.environ[_SWITCH]
        else:
            os.environ[_SWITCH] = switch


def _load_devicelib() -> Any:
    name = "kernelfarm_interpreted_devicelib"
    spec = importlib.util.spec_from_file_location(name, _DEVICELIB)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Source look-up of its functions goes through sys.modules.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _decorator(interpreter: Any) -> Callable[..., Any]:
    """Return a ``triton.jit`` for text that is executed when the copy is no longer importable."""

    def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
        return interpreter.InterpretedFunction(function) if function is not None else jit

    return jit


def _complete_rewriting(tl: Any, interpreter: Any) -> None:
    """Give ``and`` and ``or`` between tensors their compiled meaning: element by element."""

    class Rewriter(interpreter.ASTTransformer):  # type: ignore[misc]
        def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
            self.generic_visit(node)
            operands = [
                ast.Lambda(
                    ast.arguments([], [], None, [], [], None, []), value
                )  # constants still decide alone, so the right side may not be evaluated
                for value in node.values
            ]
            name = "kernelfarm_and" if isinstance(node.op, ast.And) else "kernelfarm_or"
            call = ast.Call(ast.Name(name, ast.Load()), list(operands), [])
            return ast.copy_location(call, node)

        def visit_Assign(self, node: ast.Assign) -> ast.AST:
            node.value = self.visit(node.value)  # triton 3.6 does not look inside
            rewritten: ast.AST = super().visit_Assign(node)
            return rewritten

    def fold(method: str, stops: Callable[[Any], bool]) -> Callable[..., Any]:
        def run(*operands: Callable[[], Any]) -> Any:
            value = operands[0]()
            for operand in operands[1:]:
                if isinstance(value, tl.tensor):
                    value = getattr(value, method)(operand())
                elif stops(value):
                    return value
                else:
                    value = operand()
            return value

        return run

    # The rewriter hands the interpreter module's globals to every function that it rewrites.
    interpreter.kernelfarm_and = fold("logical_and", lambda value: not value)
    interpreter.kernelfarm_or = fold("logical_or", bool)
    interpreter.FunctionRewriter.ast_transformer = Rewriter()


def _patch_once(tl: Any, interpreter: Any) -> None:
    """Replace the language's operations for good, and make device functions plain calls."""

    def here() -> None: ...

    # The interpreter patches the language modules that it finds among a function's globals.
    everything = {"tl": tl, "core": tl.core}
    interpreter._patch_lang(types.FunctionType(here.__code__, everything))

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.rewrite()(*args, **kwargs)

    interpreter.InterpretedFunction.__call__ = call


def _own_decorator(triton: Any, interpreter: Any) -> None:
    """Make ``triton.jit`` of the copy interpret without asking.

    The original imports its interpreter when it is applied, and would then, outside of
    `_private_modules`, get the normal package's.
    """

    def jit(function: Callable[..., Any]) -> Any:
        return interpreter.InterpretedFunction(function)

    triton.jit = jit


def _bind_libdevice(interpreter: Any, stubs: Any, externs: Any) -> None:
    semantic = interpreter.interpreter_semantic
    for name, function in list(vars(externs).items()):
        if callable(function) and getattr(function, "__module__", "") == externs.__name__:
            bound = functools.partial(function, _semantic=semantic)
            setattr(externs, name, bound)
            setattr(stubs, name, bound)


def _complete_builder(tl: Any, interpreter: Any) -> None:
    """Add libdevice, rounding to small floats, constants of them and assertions."""
    builder = interpreter.InterpreterBuilder
    handle = interpreter.TensorHandle
    numpy_type = interpreter._get_np_dtype

    def extern(
        self: Any, lib: str, path: str, symbol: str, args: list[Any], result: Any, pure: bool
    ) -> Any:
        function = lookup(symbol, len(args))
        if function is None:
            raise RunError(
                f"the interpreter runtime has no {symbol}; "
                "add it to compiler/runtime/interpreted_math.py"
            )
        value = function(*(arg.data for arg in args))
        scalar = getattr(result, "scalar", result)
        return handle(np.asarray(value).astype(numpy_type(scalar)), scalar)

    truncate = builder.create_fp_trunc

    def round_to(self: Any, source: Any, wanted: Any) -> Any:
        if wanted.scalar == tl.bfloat16 and source.data.dtype.kind == "f":
            return handle(_to_bfloat16(source.data), tl.bfloat16)
        return truncate(self, source, wanted)

    def check(self: Any, condition: Any, message: str) -> None:
        if not np.all(getattr(condition, "data", condition)):
            raise AssertionError(message)

    convert = builder.create_fp_to_fp

    def between_floats(self: Any, source: Any, wanted: Any, rounding: Any) -> Any:
        into, out_of = (small_floats.FORMATS.get(str(k.scalar)) for k in (wanted, source.dtype))
        if into is not None and source.data.dtype.kind == "f":
            return handle(small_floats.encode(source.data, into), wanted.scalar)
        if out_of is not None and wanted.scalar == tl.float32:
            return handle(small_floats.decode(source.data, out_of), tl.float32)
        return convert(self, source, wanted, rounding)

    builder.create_extern_elementwise = extern
    builder.create_fp_trunc = round_to
    builder.create_fp_to_fp = between_floats
    builder.create_assert = check
    for name, kind in (("bf16", tl.bfloat16), ("fp8e4nv", tl.float8e4nv), ("fp8e5", tl.float8e5)):
        if not hasattr(builder, f"get_{name}"):
            setattr(builder, f"get_{name}", _constant_getter(kind))
    live = interpreter.interpreter_builder
    # Device assertions are compiled out unless the debug option is on; integers wrap as they do
    # in a kernel that is compiled without it.
    live.options = dataclasses.replace(live.options, debug=True, sanitize_overflow=False)


def _constant_getter(kind: Any) -> Callable[[Any, float], Any]:
    return lambda self, value: self.create_fp_trunc(self.get_fp32(value), kind)


def _to_bfloat16(values: Any) -> Any:
    """Round to nearest, ties to even, as the hardware does; the bits as uint16."""
    single = np.ascontiguousarray(values, dtype=np.float32)
    bits = single.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(single), np.uint32(0x7FC0), rounded).astype(np.uint16)


def _complete_reductions(tl: Any, interpreter: Any) -> None:
    """Make reductions and scans work on whole slices and by the real combine function."""

    def combined(self: Any, left: list[Any], right: list[Any], kinds: list[Any]) -> list[Any]:
        """Apply the combine function to two tuples of equal arrays."""
        args = [
            self.to_tensor(a, k) for a, k in zip((*left, *right), (*kinds, *kinds), strict=True)
        ]
        result = self.combine_fn(*args)
        parts = result if isinstance(result, tuple) else (result,)
        shape = left[0].shape
        return [
            np.broadcast_to(getattr(getattr(p, "handle", p), "data", p), shape).astype(a.dtype)
            for p, a in zip(parts, left, strict=True)
        ]

    def reduce(self: Any, values: tuple[Any, ...]) -> list[Any]:
        if self.combine_fn is tl.standard._sum_combine and len(values) == 1:
            return [self.sum(values[0])]
        kinds = [value.dtype for value in values]
        axis = self.axis
        rank = len(values[0].handle.data.shape)
        data = [value.handle.data for value in values]
        data = [d.reshape(-1) if axis is None else np.moveaxis(d, axis, 0) for d in data]
        # Neighbours first, then neighbouring pairs: the order of elements is kept, which is all
        # that an associative function asks for.
        while data[0].shape[0] > 1:
            data = combined(self, [d[0::2] for d in data], [d[1::2] for d in data], kinds)
        data = [d[0] for d in data]
        if self.keep_dims:
            data = [
                d.reshape((1,) * rank) if axis is None else np.expand_dims(d, axis) for d in data
            ]
        return [self.to_tensor(d if d.ndim else d[()], k) for d, k in zip(data, kinds, strict=True)]

    def scan(self: Any, values: tuple[Any, ...]) -> list[Any]:
        kinds = [value.dtype for value in values]
        data = [np.moveaxis(value.handle.data, self.axis, 0) for value in values]
        data = [np.ascontiguousarray(np.flip(d, 0) if self.reverse else d) for d in data]
        if self.combine_fn is tl.standard._sum_combine and len(values) == 1:
            data = [np.cumsum(data[0], axis=0, dtype=data[0].dtype)]
        else:
            step = 1
            while step < data[0].shape[0]:
                data = doubled(self, data, kinds, step)
                step *= 2
        data = [np.moveaxis(np.flip(d, 0) if self.reverse else d, 0, self.axis) for d in data]
        return [
            self.to_tensor(np.ascontiguousarray(d), k) for d, k in zip(data, kinds, strict=True)
        ]

    def doubled(self: Any, data: list[Any], kinds: list[Any], step: int) -> list[Any]:
        """Combine each element with the one ``step`` before it, blocks kept at a power of two."""
        before = [np.concatenate([d[:step], d[:-step]]) for d in data]
        after = combined(self, before, data, kinds)
        return [np.concatenate([d[:step], a[step:]]) for d, a in zip(data, after, strict=True)]

    interpreter.ReduceOps.apply_impl = reduce
    interpreter.ScanOps.apply_impl = scan
