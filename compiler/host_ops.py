"""Which operators a host program may call, and what the dispatcher says about them.

A program names an operator as ``namespace.op.overload``. It is looked up in torch's dispatcher
first, as text against the registered schemas, and only a name found there is fetched from
``torch.ops``; so a planted name reaches no attribute of any Python object.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .host_errors import HostProgramError
from .host_tables import words

_PART = r"(?:[A-Za-z]|_(?!_))\w*"
_NAME = re.compile(rf"({_PART})\.({_PART})\.({_PART})\Z", re.ASCII)
#: The only operators with leading double underscores, the in-place and integer bit operators.
_DUNDER = re.compile(r"aten\.(__i?(?:and|or|xor|lshift|rshift)__)\.(Scalar|Tensor)\Z")

#: Operators that reach outside the tensors they are given: files, global modes, seeds, processes.
_DENIED = frozenset(
    words(
        "from_file save load manual_seed seed set_grad_enabled set_printoptions warn "
        "set_default_dtype print breakpoint"
    )
)
_DENIED_NAMESPACES = frozenset(("prim", "debugprims", "profiler", "inductor_test"))

#: Argument and result types that a host program can express; everything else (objects, storages,
#: callables, dictionaries, "any") keeps an operator out.
_TYPES = frozenset(
    words(
        "Tensor int SymInt float SymFloat bool SymBool number Scalar str Device ScalarType Layout "
        "MemoryFormat Generator NoneType"
    )
)
_WRAPPERS = re.compile(r"(?:Optional|List)\[(.*)\]\Z")


#: Frequent operators whose result is always an allocation of its own, hence aligned. Most others
#: are so too, but no schema promises it (``unsafe_split`` returns slices without saying so).
FRESH = frozenset(
    f"aten.{name}.default" for name in words("mm bmm addmm baddbmm convolution relu gelu")
)


@dataclass(frozen=True, slots=True)
class OpFacts:
    """What planning and checking need to know about one overload.

    ``arguments`` are all argument names in order. ``aliases`` are those that a result may share
    storage with, ``writes`` those that the operator stores into, ``defaults`` the optional ones.
    """

    name: str
    arguments: tuple[str, ...]
    keyword_only: frozenset[str]
    aliases: frozenset[str]
    writes: frozenset[str]
    defaults: frozenset[str]


def resolve(op: str, path: str = "op") -> Any:
    """Return the OpOverload called ``op``; raises HostProgramError when there is none to call."""
    namespace, packet, overload = _split(op, path)
    facts(op, path)
    import torch

    found = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    if not isinstance(found, torch._ops.OpOverload):
        raise HostProgramError(path, f"{op} is no operator overload")
    return found


def facts(op: str, path: str = "op") -> OpFacts:
    """Return what is known about ``op``; raises HostProgramError when a program may not call it."""
    try:
        return _facts(op)
    except _Refused as refused:
        raise HostProgramError(path, str(refused)) from None


class _Refused(Exception):
    """Why an operator may not be called; turned into a HostProgramError with the path."""


def _split(op: str, path: str) -> tuple[str, str, str]:
    match = _NAME.match(op) if len(op) < 256 else None
    if match is None:
        match_dunder = _DUNDER.match(op)
        if match_dunder is None:
            raise HostProgramError(path, f"{op[:80]!r} is not of the form namespace.op.overload")
        return "aten", match_dunder[1], match_dunder[2]
    return match[1], match[2], match[3]


@lru_cache(maxsize=4096)
def _facts(op: str) -> OpFacts:
    import torch

    try:
        namespace, packet, overload = _split(op, "")
    except HostProgramError as error:
        raise _Refused(error.reason) from None
    if namespace in _DENIED_NAMESPACES or packet in _DENIED:
        raise _Refused(f"{op} acts on more than its arguments; programs may not call it")
    wanted = "" if overload == "default" else overload
    qualified = f"{namespace}::{packet}"
    schemas = [s for s in torch._C._jit_get_schemas_for_operator(qualified)]
    schema = next((s for s in schemas if s.overload_name == wanted), None)
    full = f"{qualified}.{wanted}" if wanted else qualified
    if schema is None:
        raise _Refused(
            f"{op} is not registered in this process; import the package that defines it first"
        )
    if not torch._C._dispatch_has_kernel(full):
        raise _Refused(f"{op} is known to TorchScript only and has no kernel")
    for value in (*schema.arguments, *schema.returns):
        if not _expressible(str(value.type)):
            raise _Refused(f"{op} takes or returns {value.type}, which no program can hold")
    return _read_schema(op, schema, _is_composite(full))


def _expressible(text: str) -> bool:
    match = _WRAPPERS.match(text)
    while match is not None:
        text = match[1]
        match = _WRAPPERS.match(text)
    return text in _TYPES


def _is_composite(full: str) -> bool:
    import torch

    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return bool(has(full, "CompositeImplicitAutograd"))


def _read_schema(op: str, schema: Any, composite: bool) -> OpFacts:
    """Collect names and alias facts.

    A composite operator may hand back an argument without saying so (``dropout`` in evaluation
    does), so its results count as aliases of every tensor argument.
    """
    returned: set[str] = set()
    for value in schema.returns:
        if value.alias_info is not None:
            returned |= set(value.alias_info.before_set) | set(value.alias_info.after_set)
    aliases, writes = set(), set()
    for argument in schema.arguments:
        info = argument.alias_info
        if info is not None and info.is_write:
            writes.add(argument.name)
        # A list result carries no alias set of its own, so a view annotation on the argument
        # (one that is not a write) is enough.
        annotated = info is not None and (not info.is_write or bool(returned & info.before_set))
        if composite or annotated or "*" in returned:
            aliases.add(argument.name)
    return OpFacts(
        name=op,
        arguments=tuple(a.name for a in schema.arguments),
        keyword_only=frozenset(a.name for a in schema.arguments if a.kwarg_only),
        aliases=frozenset(aliases),
        writes=frozenset(writes),
        defaults=frozenset(a.name for a in schema.arguments if a.has_default_value()),
    )
