"""From a fused group to a kernel request; equal groups are recognised before anything is tiled.

The structural hash of a group is its merged body with buffers renamed by first use, so that equal
computations on different buffers are one kernel: the twelve layers of a GPT-2 need five kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from .body import Body, Stmt, stmt_index
from .emit.kernel_text import KernelArg, KernelText, print_kernel
from .emit.spelling import POINTER
from .fuse import Group, merged_body
from .host import GridSpec, SizeExpr
from .host import Size as HostSize
from .host_sizes import to_host
from .index import INT32_LIMIT, Var
from .inplace import elementwise_pairs
from .ir import Buffer
from .ops import ITEMSIZE
from .reach import magnitude, magnitudes
from .seam.options import Options
from .seam.request import SourceRequest
from .seam.target import Target
from .seam.toolchain import Toolchain
from .sized import KernelSizes, is_symbolic
from .sym import Size, as_size, known_at_least, known_at_most, plus
from .tile import MAX_GRID_YZ, Tiling, access_table, tile

#: A loop over a reduction counts one block past its end, which must still be a number.
_LOOP_ROOM = 2**16
#: So far may a block of a grid with a z axis stand past the end.
_GRID_ROOM = 2**22


@dataclass(frozen=True, slots=True)
class Kernel:
    """A distinct kernel of a graph: its request, its pointer types and its launch grid."""

    name: str
    request: SourceRequest
    arg_kinds: tuple[str, ...]
    grid: GridSpec


#: (iterations, block) along x and y.
Extents = tuple[tuple[Size, int], ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """One use of a kernel: its number in the graph, the buffers and sizes it is called with."""

    kernel: int
    buffers: tuple[str, ...]
    sizes: tuple[Size, ...] = ()
    extents: Extents = ()
    pairs: tuple[tuple[str, str], ...] = ()  # see `inplace.elementwise_pairs`


class Allowance(Protocol):
    """Says what may be assumed about sizes; see `symbols`."""

    def allow(self, sizes: Sequence[tuple[Size, int]]) -> bool:
        """Whether each size may be taken to be at most its limit."""
        ...


class KernelBuilder:
    """Builds a graph's kernels one group at a time; ``submit`` is told of each new one at once."""

    def __init__(
        self,
        buffers: dict[str, Buffer],
        target: Target,
        toolchain: Toolchain,
        helper_digest: str,
        options: Callable[[int], Options],
        submit: Callable[[Kernel], None],
        symbols: Allowance | None = None,
    ) -> None:
        self._symbols = symbols
        self._buffers = buffers
        self._target = target
        self._toolchain = toolchain
        self._helper_digest = helper_digest
        self._options = options
        self._submit = submit
        self._known: dict[tuple, tuple[int, Extents]] = {}
        self.kernels: list[Kernel] = []

    def launch(self, group: Group, live: set[str]) -> Launch | None:
        """The launch that computes a group's live buffers; None if there is nothing to compute."""
        body = merged_body(group, live)
        if body.numel == 0 or not body.stmts:
            return None
        canonical, pointers = _canonical(body)
        args = self._args(canonical, pointers)
        sizes: KernelSizes | None = None
        if is_symbolic(body):
            sizes = KernelSizes(canonical)
            wide = not self._fits_32_bits(body, sizes)
            canonical = sizes.body(canonical)
        else:
            wide = needs_64_bits(body)
        constants = tuple(repr(s.attrs[0]) for s in canonical.stmts if s.op == "const")
        # the representations tell 0.0 from -0.0, which are equal
        key = (canonical, constants, tuple((a.dtype, a.aligned) for a in args), wide)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._build(canonical, args, sizes, wide)
        number, extents = known
        names = tuple(name for name, _ in pointers)
        pairs = elementwise_pairs(body)
        if sizes is None:
            return Launch(number, names, pairs=pairs)
        return Launch(
            number,
            names,
            tuple(as_size(atom) for atom in sizes.names),
            tuple((sizes.restored(e), block) for e, block in extents),
            pairs,
        )

    def _fits_32_bits(self, body: Body, sizes: KernelSizes) -> bool:
        """Whether 32 bits will do for all that the kernel computes with its sizes."""
        if self._symbols is None:
            return False
        parts = symbolic_magnitudes(body)
        if parts is None:
            return False
        largest = [as_size(atom) for atom in sizes.names]
        if not all(known_at_least(size, 0) for size in largest):
            return False
        return self._symbols.allow([(s, INT32_LIMIT) for s in (*largest, *parts)])

    def _args(self, body: Body, pointers: list[tuple[str, str]]) -> tuple[KernelArg, ...]:
        written = body.writes()
        ragged = has_ragged_rows(body)
        args = []
        counts = {"in": 0, "out": 0}
        for position, (name, dtype) in enumerate(pointers):
            role = "out" if f"b{position}" in written else "in"
            aligned = self._buffers[name].aligned and not ragged
            args.append(KernelArg(f"{role}_ptr{counts[role]}", f"b{position}", dtype, aligned))
            counts[role] += 1
        return tuple(args)

    def _build(
        self, body: Body, args: tuple[KernelArg, ...], sizes: KernelSizes | None, wide: bool
    ) -> tuple[int, Extents]:
        """The number of the kernel and what its grid spans; other hints often give the same one."""
        tiling = tile(body, self._target.device_model)
        names = () if sizes is None else tuple(s.name for s in sizes.names.values())
        integer = "i64" if wide else "i32"
        text = print_kernel(body, tiling, args, names, wide=wide)
        extents = tuple((a.extent, a.block) for a in (tiling.axis("x"), tiling.axis("y")) if a)
        kernel = Kernel(
            text.entry,
            self._request(text, tiling, integer),
            (*(POINTER[a.dtype] for a in args), *([integer] * len(names))),
            grid_of(extents),
        )
        for number, earlier in enumerate(self.kernels if sizes is not None else ()):
            if earlier.request == kernel.request:
                return number, extents
        self.kernels.append(kernel)
        self._submit(kernel)
        return len(self.kernels) - 1, extents

    def _request(self, text: KernelText, tiling: Tiling, integer: str) -> SourceRequest:
        signature = (
            *((a.name, POINTER[a.dtype]) for a in text.args),
            *((name, integer) for name in text.sizes),
            *((name, "constexpr") for name, _ in text.constexprs),
        )
        attributes = tuple(
            (i, (("tt.divisibility", 16),)) for i, a in enumerate(text.args) if a.aligned
        )
        return SourceRequest(
            text=text.text,
            helper_digest=self._helper_digest,
            entry=text.entry,
            signature=signature,
            constexprs=text.constexprs,
            attributes=attributes,
            options=self._options(tiling.num_warps),
            target=self._target,
            toolchain=self._toolchain,
        )


def grid_of(extents: Extents) -> GridSpec:
    """Blocks along x and y for (iterations, block); more along y than a grid has go on along z."""
    blocks = [_blocks(extent, block) for extent, block in extents]
    if len(blocks) == 1:
        return GridSpec(blocks[0])
    x, y = blocks
    extent, block = extents[1]
    if known_at_most(extent, MAX_GRID_YZ * block):
        return GridSpec(x, y)
    return GridSpec(x, SizeExpr("min", (y, MAX_GRID_YZ)), SizeExpr("ceildiv", (y, MAX_GRID_YZ)))


def _blocks(extent: Size, block: int) -> HostSize:
    if isinstance(extent, int):
        return -(-extent // block)
    size = to_host(extent)
    return size if block == 1 else SizeExpr("ceildiv", (size, block))


def symbolic_magnitudes(body: Body) -> list[Size] | None:
    """Sizes that nothing a kernel of this (symbolic) body computes exceeds; None if not known."""
    # the blocks of a grid may stand past the last iteration, farther along y than along x
    out = [plus(body.numel, _GRID_ROOM), plus(body.rnumel, _LOOP_ROOM)]
    for index in map(stmt_index, body.stmts):
        if index is not None:
            parts = magnitudes(index)
            if parts is None:
                return None
            out += parts
    return list(dict.fromkeys(size for size in out if not known_at_most(size, INT32_LIMIT)))


def needs_64_bits(body: Body) -> bool:
    """Whether some index of a body, or a part of one, may not fit 32 bits."""
    indices = (i for i in map(stmt_index, body.stmts) if i is not None)
    return (
        body.numel > INT32_LIMIT
        or body.rnumel > INT32_LIMIT - _LOOP_ROOM
        or any(magnitude(i) > INT32_LIMIT for i in indices)
    )


def has_ragged_rows(body: Body) -> bool:
    """Whether some rows that a body runs along start on unaligned addresses.

    The tile then has one element a lane for all its accesses: vectors where rows happen to be
    aligned would be exchanged between lanes to meet the others, which takes longer than it saves
    (softmax backward over 50,257 columns into padded rows, H200: 908 us, 540 us without).
    """
    loops = len(body.sizes) + len(body.rsizes)
    for access in access_table(body):
        steps = [c for atom, c in access.index.terms if isinstance(atom, Var)]
        if len(steps) != len(access.index.terms) or len(steps) < max(loops, 2) or 1 not in steps:
            continue
        size = ITEMSIZE[access.dtype]
        if any(isinstance(c, int) and c != 1 and (c * size) % 16 for c in steps):
            return True
    return False


def _canonical(body: Body) -> tuple[Body, list[tuple[str, str]]]:
    """The body with buffers named b0, b1, .. by first use, and (buffer, dtype) in that order.

    A buffer that a view reads as another dtype is two pointers.
    """
    number: dict[tuple[str, str], int] = {}
    stmts: list[Stmt] = []
    for stmt in body.stmts:
        if stmt.op in ("load", "store"):
            dtype = stmt.attrs[2] if stmt.op == "load" else stmt.attrs[3]
            position = number.setdefault((stmt.attrs[0], dtype), len(number))
            stmt = Stmt(stmt.op, stmt.args, (f"b{position}", *stmt.attrs[1:]), stmt.dtype)
        stmts.append(stmt)
    return Body(body.sizes, body.rsizes, tuple(stmts)), list(number)
