"""The host program: what runs on the CPU around the kernels, as data.

Grammar::

    program := HostProgram(inputs, constants, kernels, lines, outputs, symbols, guards)
    line    := Allocate | FreeIfNotReused | Reuse | Reinterpret | KernelCall | ExternCall
             | MultiOutput | Free | SymbolDef | Assert | Comment
    arg     := Ref(name) | SizeExpr | DType(name) | DeviceRef | MemoryFormat(name)
             | int | float | bool | str | None | tuple of arg
    size    := int | SizeExpr                  -- a typed tree, never text

Everything is frozen and round-trips through msgpack; nothing in it can be executed. Printers
(`emit.host_python`) and planners (`host_plan`) are functions over it, `host_verify` runs before
anything is printed. Names match ``[A-Za-z_]\\w*``. Dtypes are torch's names without "torch.".
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: Format of the encoded program; part of every graph key.
HOST_SCHEMA = 2


@dataclass(frozen=True, slots=True)
class SizeExpr:
    """A size that depends on symbols: ``op`` of a fixed table applied to ``args``.

    ``op`` is one of add, mul, floordiv, mod, ceildiv, max, min, sym; a "sym" has one str argument.
    """

    op: str
    args: tuple[SizeExpr | int | str, ...]


Size = int | SizeExpr


@dataclass(frozen=True, slots=True)
class Ref:
    """The value that an earlier line, an input or a constant defined under ``name``."""

    name: str


@dataclass(frozen=True, slots=True)
class DType:
    """A torch dtype as an argument, by name (``float32``)."""

    name: str


@dataclass(frozen=True, slots=True)
class DeviceRef:
    """A device as an argument: "target" (whatever the program runs on, no ordinal) or "cpu"."""

    kind: str


@dataclass(frozen=True, slots=True)
class MemoryFormat:
    """A torch memory format (``contiguous_format``) or layout (``strided``) as an argument."""

    name: str


Arg = Ref | SizeExpr | DType | DeviceRef | MemoryFormat | int | float | bool | str | None | tuple


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor's metadata: sizes and strides in elements, dtype, device kind, alignment class.

    ``aligned`` says that kernels assume a 16-byte aligned address; the program checks it at run
    time for inputs, because Dynamo does not guard it, and copies an input that is not.
    """

    sizes: tuple[Size, ...]
    strides: tuple[Size, ...]
    dtype: str
    device: str = "target"
    aligned: bool = True


@dataclass(frozen=True, slots=True)
class Input:
    """One positional input: a tensor with its spec, or a scalar (``spec`` None: int symbol)."""

    name: str
    spec: TensorSpec | None


@dataclass(frozen=True, slots=True)
class Constant:
    """A small tensor whose bytes travel with the program (contiguous, little-endian)."""

    name: str
    spec: TensorSpec
    data: bytes


@dataclass(frozen=True, slots=True)
class GridSpec:
    """How many programs to launch: one size per grid axis, x first, blocks already divided out."""

    x: Size
    y: Size = 1
    z: Size = 1


@dataclass(frozen=True, slots=True)
class KernelDef:
    """A kernel that the program calls: the name that profilers show and the store key's digest.

    ``key`` is empty until the kernel's future resolves (see `pipeline`); ``arg_kinds`` holds, for
    each launch argument, Triton's signature type ("*fp32", "i32", ...). Constexprs are not
    arguments. ``num_warps`` and ``shared`` come with the artifact, not from here.
    """

    name: str
    key: bytes
    arg_kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Allocate:
    """Make an uninitialised tensor."""

    name: str
    spec: TensorSpec


@dataclass(frozen=True, slots=True)
class FreeIfNotReused:
    """The last use of ``name`` is behind us; planning may turn this into a Reuse."""

    name: str


@dataclass(frozen=True, slots=True)
class Free:
    """Drop the reference to ``name`` now."""

    name: str


@dataclass(frozen=True, slots=True)
class Reuse:
    """Give the storage of ``old`` (dead from here) to ``new`` under a new spec of equal bytes."""

    old: str
    new: str
    spec: TensorSpec


@dataclass(frozen=True, slots=True)
class Reinterpret:
    """A strided view of ``src``'s storage.

    ``offset`` counts elements of the new dtype from ``src``'s first element, not from the start
    of the storage: where an input lies in its storage is not known when the program is made.
    """

    name: str
    src: str
    spec: TensorSpec
    offset: Size = 0


@dataclass(frozen=True, slots=True)
class KernelCall:
    """Launch kernel number ``kernel`` of the program with ``args`` on ``grid``.

    ``mutates`` names the graph inputs (or views of them) that the kernel writes into; kernels
    that only write into buffers of the program leave it empty. A misaligned input that is written
    is copied, and the copy is copied back.
    """

    kernel: int
    args: tuple[Ref | Size, ...]
    grid: GridSpec
    mutates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExternCall:
    """Call an ATen operator overload, ``op`` = "aten.mm.default"; ``name`` receives the result.

    ``out`` names a preallocated tensor for an out-variant overload.
    """

    name: str
    op: str
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...] = ()
    out: str | None = None


@dataclass(frozen=True, slots=True)
class MultiOutput:
    """Element ``path`` (indices, outermost first) of the tuple ``src``."""

    name: str
    src: str
    path: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SymbolDef:
    """Bind symbol ``name`` to dimension ``dim`` of input ``source`` (None: to the int itself)."""

    name: str
    source: str
    dim: int | None


@dataclass(frozen=True, slots=True)
class Assert:
    """Fail with ``message`` unless tensor ``name`` has exactly this spec's sizes and strides."""

    name: str
    spec: TensorSpec
    message: str


@dataclass(frozen=True, slots=True)
class Comment:
    """One line of text for people who read the printed program."""

    text: str


Line = (
    Allocate
    | FreeIfNotReused
    | Free
    | Reuse
    | Reinterpret
    | KernelCall
    | ExternCall
    | MultiOutput
    | SymbolDef
    | Assert
    | Comment
)


@dataclass(frozen=True, slots=True)
class Guard:
    """The program and its kernels are right only where ``size`` is at most ``limit``."""

    size: Size
    limit: int


@dataclass(frozen=True, slots=True)
class HostProgram:
    """A whole graph as the host sees it; ``outputs`` are arguments of names and constants.

    ``symbols`` are the names that sizes may mention, ``guards`` what code generation assumed about
    them: false guards raise SizesOutOfRange before anything of a call's arguments is touched.
    """

    inputs: tuple[Input, ...]
    constants: tuple[Constant, ...] = ()
    kernels: tuple[KernelDef, ...] = ()
    lines: tuple[Line, ...] = ()
    outputs: tuple[Arg, ...] = ()
    symbols: tuple[str, ...] = field(default=())
    guards: tuple[Guard, ...] = ()
