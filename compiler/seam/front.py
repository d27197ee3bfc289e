"""The front half: a Python kernel becomes TTIR, in about 10 ms, with nothing written to disk.

Triton's own stages are driven in memory; its cache directory is not involved. The text that comes
out holds no locations, so that equal kernels are equal wherever they were written. Kernels whose
meaning includes locations (debug, device asserts, line info) keep them and stay on the machine.
"""

from __future__ import annotations

import linecache
from collections.abc import Mapping
from types import CodeType
from typing import Any

from .environment import LINE_INFO
from .errors import FrontHalfError
from .options import Options, backend_of, rebuild_options
from .request import Attributes, CompileRequest, Constexprs, Signature, SourceRequest
from .target import Target
from .toolchain import Toolchain
from .toolchain import devicelib_digest as devicelib_digest
from .versions import interpreting, pipeline_stages, pristine

#: The module name that emitted kernels get; it is not in sys.modules, which keeps inspect quick.
_MODULE = "kernelfarm_kernel"

#: An assertion's operation in TTIR: its message is built from its location.
_ASSERT = "tt.assert"


def front_half(request: SourceRequest) -> CompileRequest:
    """Turn the text of a kernel that we emitted into a request for its binary.

    Raises FrontHalfError, whose ``log`` is the compiler's own account of what is wrong.
    """
    if request.helper_digest != devicelib_digest():
        raise FrontHalfError(
            request.entry,
            "helpers",
            f"was emitted for device helpers {request.helper_digest[:16]}, here they are "
            f"{devicelib_digest()[:16]}: both sides need the same kernelfarm",
        )
    if interpreting():
        raise FrontHalfError(
            request.entry, "environment", "TRITON_INTERPRET is set: unset it to compile"
        )
    kernel = load_kernel(request.text, request.entry)
    with pristine():
        return front_half_jit(
            kernel,
            request.signature,
            request.constexprs,
            request.attributes,
            request.options,
            request.target,
            request.toolchain,
        )


def front_half_jit(
    fn: Any,
    signature: Signature,
    constexprs: Constexprs,
    attributes: Attributes,
    options: Options,
    target: Target,
    toolchain: Toolchain,
) -> CompileRequest:
    """Turn a user's ``@triton.jit`` function into a request for its binary.

    ``signature`` names every argument in order; an argument that ``constexprs`` holds counts as
    "constexpr" whatever it says. Raises FrontHalfError.
    """
    name = str(getattr(fn, "__name__", "kernel"))
    backend = backend_of(target)
    parsed = rebuild_options(options, name)
    try:
        source = _ast_source(fn, signature, constexprs, attributes)
        module = _make_ttir(source, backend, parsed)
        text = module.str_nodebug()
        entry = module.get_entry_func_name()
        local = toolchain.local or _needs_locations(text, options, toolchain)
        if local:
            text = str(module)
    except Exception as error:
        raise FrontHalfError(name, "ttir", _account(error)) from error
    return CompileRequest(text, entry, target, options, toolchain, local)


def load_kernel(text: str, entry: str) -> Any:
    """Execute emitted kernel text and return the function ``entry`` (a JITFunction).

    Its globals hold ``triton``, ``tl``, ``libdevice`` and ``kf`` (our device helpers). Raises
    FrontHalfError.
    """
    filename = f"<kernelfarm {entry}>"
    # Triton reads a function's source through inspect, which finds it here.
    lines = text.splitlines(keepends=True)
    linecache.cache[filename] = (len(text), None, lines, filename)
    namespace = _kernel_globals()
    try:
        code: CodeType = compile(text, filename, "exec")
        exec(code, namespace)
        return namespace[entry]
    except Exception as error:
        raise FrontHalfError(entry, "text", _account(error)) from error


def _kernel_globals() -> dict[str, Any]:
    import triton
    import triton.language as tl
    from triton.language.extra import libdevice

    from . import devicelib

    return {
        "__name__": _MODULE,
        "triton": triton,
        "tl": tl,
        "libdevice": libdevice,
        "kf": devicelib,
    }


def _ast_source(
    fn: Any, signature: Signature, constexprs: Constexprs, attributes: Attributes
) -> Any:
    from triton.compiler.compiler import ASTSource

    constants: Mapping[str, object] = dict(constexprs)
    types = {name: "constexpr" if name in constants else kind for name, kind in signature}
    types |= {name: "constexpr" for name in constants if name not in types}
    ordered = {name: types[name] for name in fn.arg_names if name in types}
    if missing := [name for name in fn.arg_names if name not in types]:
        raise ValueError(f"the signature does not name the arguments {missing}")
    if unknown := sorted(types.keys() - ordered.keys()):
        raise ValueError(f"the signature names {unknown}, which are no arguments")
    marks = {(index,): [list(mark) for mark in pairs] for index, pairs in attributes}
    return ASTSource(fn, ordered, dict(constants), marks)


def _make_ttir(source: Any, backend: Any, options: Any) -> Any:
    from triton._C.libtriton import ir

    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    module = source.make_ir(
        backend.target,
        options,
        backend.get_codegen_implementation(options),
        backend.get_module_map(),
        context,
    )
    return pipeline_stages(backend, options)["ttir"](module, {})


def _needs_locations(text: str, options: Options, toolchain: Toolchain) -> bool:
    if options.get("debug") or _ASSERT in text:
        return True
    return (f"env.{LINE_INFO}", "0") in toolchain.parts


def _account(error: Exception) -> str:
    cause = error.__cause__
    text = f"{type(error).__name__}: {error}"
    return f"{text}\ncaused by {type(cause).__name__}: {cause}" if cause is not None else text
