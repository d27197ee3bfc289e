"""Tiling: which loops make which kernel axis, and how large a block of each axis is.

The choice is a pure function of a group's accesses and the device model. Pointwise groups have one
axis x, or y and x where some access runs along another loop than the innermost one; reductions have
x (all pointwise loops) and r (all reduction loops), kept whole in registers where the row fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .body import Body, stmt_index
from .index import Index
from .ops import ITEMSIZE
from .seam.device import DeviceModel
from .sym import Size, hint, is_static, known_at_most, limits, next_power_of_two, product

#: The hardware's limit on blocks along y and z.
MAX_GRID_YZ = 65535
#: Longest row that one program keeps in registers: 16 values a thread at 8 warps of 32.
PERSISTENT_INNER = 4096
#: The same where the reduced loop is not the contiguous one: a tile needs width in x as well.
PERSISTENT_OUTER = 64
#: A loop across rows takes tiles of so many columns and elements, with so many warps
#: (measured against 128 columns, 1024 and 4096 elements, and 4 warps, on an H200).
OUTER_COLUMNS, OUTER_TILE, OUTER_WARPS = 64, 2048, 8
#: A symbolic extent counts as no less than this, or a small first call would set small blocks.
SHORTEST_SYMBOLIC = 256
#: A symbolic row is kept whole only if its longest is no longer than this many typical ones.
WASTE = 4


@dataclass(frozen=True, slots=True)
class Axis:
    """One tiled dimension: its loops (variable name, size; outermost first) and its block size."""

    name: str
    loops: tuple[tuple[str, Size], ...]
    block: int

    @property
    def extent(self) -> Size:
        """Iterations of all loops of the axis."""
        return product(size for _, size in self.loops)


@dataclass(frozen=True, slots=True)
class Tiling:
    """The axes in tile order (y, x, r), whether a reduction is kept whole, and the warps."""

    axes: tuple[Axis, ...]
    persistent: bool
    num_warps: int

    @property
    def tall(self) -> bool:
        """Whether the blocks along y may be more than a grid has: z then counts on."""
        y = self.axis("y")
        return y is not None and not known_at_most(y.extent, MAX_GRID_YZ * y.block)

    def axis(self, name: str) -> Axis | None:
        """The axis of this name."""
        return next((a for a in self.axes if a.name == name), None)


@dataclass(frozen=True, slots=True)
class Access:
    """One distinct address expression with the bytes of an element; writes count twice."""

    index: Index
    weight: int
    dtype: str


def access_table(body: Body) -> tuple[Access, ...]:
    """Every distinct (buffer, index) that a body reads or writes."""
    seen: dict[tuple, Access] = {}
    for stmt in body.stmts:
        if stmt.op not in ("load", "store"):
            continue
        index = stmt_index(stmt)
        assert index is not None
        dtype = stmt.attrs[2] if stmt.op == "load" else stmt.attrs[3]
        weight = ITEMSIZE[dtype] * (2 if stmt.op == "store" else 1)
        seen.setdefault((stmt.op, stmt.attrs[0], index), Access(index, weight, dtype))
    return tuple(seen.values())


def _pow2_at_most(n: int) -> int:
    return 1 << (max(n, 1).bit_length() - 1)


def _coalescing_loop(index: Index, names: Sequence[str]) -> str | None:
    """The loop along which the address grows by one element a step; None if there is none."""
    for name in reversed(names):
        if index.coefficient(name) == 1:
            return name
    return None


def _uses(index: Index, name: str) -> bool:
    return name in index.var_names()


def tile(body: Body, model: DeviceModel) -> Tiling:
    """Choose axes and blocks for a loop nest, symbolic sizes by their hints."""
    if body.rsizes:
        return _tile_reduction(body, model)
    return _tile_pointwise(body, model)


def _tile_pointwise(body: Body, model: DeviceModel) -> Tiling:
    loops = [(f"p{n}", s) for n, s in enumerate(body.sizes)] or [("p0", 1)]
    names = [n for n, _ in loops]
    numel = _typical(body.numel)
    cut = _second_axis(body, loops)
    if cut is not None:
        y, x = loops[:cut], loops[cut:]
        y_extent = _typical(product(s for _, s in y))
        block = 32
        symbolic = not is_static(*(s for _, s in y))
        if symbolic or -(-y_extent // block) <= MAX_GRID_YZ:  # see `Tiling.tall`
            x_extent = _typical(product(s for _, s in x))
            return Tiling(
                (
                    Axis("y", tuple(y), min(block, next_power_of_two(y_extent))),
                    Axis("x", tuple(x), min(block, next_power_of_two(x_extent))),
                ),
                False,
                4,
            )
    block = 1024
    while block > 128 and numel // block < 2 * model.multiprocessors:
        block //= 2
    block = min(block, next_power_of_two(numel))
    warps = max(1, min(4, block // (8 * model.warp_size) or 1))
    assert names
    return Tiling((Axis("x", tuple(loops), block),), False, warps)


def _second_axis(body: Body, loops: Sequence[tuple[str, Size]]) -> int | None:
    """Where to cut the loops into y and x, if an access is contiguous along another loop."""
    if len(loops) < 2:
        return None
    names = [n for n, _ in loops]
    sizes = {n: hint(s) for n, s in loops}
    last = names[-1]
    gain: dict[str, float] = {}
    along_last = 0.0
    for access in access_table(body):
        if access.index.indirects() or not access.index.terms:
            continue
        elements = 1
        for name in names:
            if _uses(access.index, name):
                elements *= sizes[name]
        traffic = float(elements * access.weight)
        loop = _coalescing_loop(access.index, names)
        if loop == last or not _uses(access.index, last):
            along_last += traffic
        elif loop is not None:
            gain[loop] = gain.get(loop, 0.0) + traffic
    if not gain:
        return None
    best = max(gain, key=lambda n: (gain[n], names.index(n)))
    cut = names.index(best) + 1
    x_extent = hint(product(s for _, s in loops[cut:]))
    y_extent = hint(product(s for _, s in loops[:cut]))
    # short axes waste most of a transaction
    if min(x_extent, y_extent, sizes[best]) < 8:
        return None
    return cut if gain[best] >= 0.05 * along_last else None


def _tile_reduction(body: Body, model: DeviceModel) -> Tiling:
    loops = tuple((f"p{n}", s) for n, s in enumerate(body.sizes)) or (("p0", 1),)
    rloops = tuple((f"r{n}", s) for n, s in enumerate(body.rsizes))
    rows, length = _typical(body.numel), _typical(body.rnumel)
    inner = reduces_inner([body])
    if not isinstance(body.rnumel, int):
        longest = limits(body.rnumel)[1]
        if longest is None or longest > WASTE * length:
            return _tile_open(loops, rloops, rows, length, inner)
        length = longest
    whole = next_power_of_two(length)
    if length <= (PERSISTENT_INNER if inner else PERSISTENT_OUTER):
        if inner:
            target = 1024 if rows >= 8 * model.multiprocessors else 256
            x_block = max(1, min(_pow2_at_most(max(1, target // whole)), next_power_of_two(rows)))
        else:
            x_block = min(max(1, 2048 // whole), 128, next_power_of_two(rows))
        warps = max(1, min(16, x_block * whole // (8 * model.warp_size)))
        return Tiling((Axis("x", loops, x_block), Axis("r", rloops, whole)), True, warps)
    if inner:
        r_block = min(2048, whole)
        return Tiling((Axis("x", loops, 1), Axis("r", rloops, r_block)), False, 8)
    x_block = min(OUTER_COLUMNS, next_power_of_two(rows))
    while x_block > 8 and rows // x_block < model.multiprocessors:
        x_block //= 2
    r_block = min(whole, max(4, OUTER_TILE // x_block))
    return Tiling((Axis("x", loops, x_block), Axis("r", rloops, r_block)), False, OUTER_WARPS)


def _typical(size: Size) -> int:
    return size if isinstance(size, int) else max(hint(size), SHORTEST_SYMBOLIC)


def _tile_open(
    loops: tuple[tuple[str, Size], ...],
    rloops: tuple[tuple[str, Size], ...],
    rows: int,
    length: int,
    inner: bool,
) -> Tiling:
    """Blocks for rows of any length: a loop over r whose block fits a typical row."""
    if inner:
        r_block = min(2048, next_power_of_two(length))
        x_block = max(1, min(1024 // r_block, next_power_of_two(rows)))
    else:
        x_block = min(OUTER_COLUMNS, next_power_of_two(rows))
        r_block = min(next_power_of_two(length), max(4, OUTER_TILE // x_block))
    warps = max(1, min(8, x_block * r_block // 256))
    return Tiling((Axis("x", loops, x_block), Axis("r", rloops, r_block)), False, warps)


def reduces_inner(bodies: Iterable[Body]) -> bool:
    """Whether most of the traffic of a reduction's nests runs along a reduction loop."""
    inner = outer = 0.0
    for body in bodies:
        sizes = {f"p{n}": size for n, size in enumerate(body.sizes)}
        sizes |= {f"r{n}": size for n, size in enumerate(body.rsizes)}
        names = list(sizes)
        for access in access_table(body):
            used = access.index.var_names()
            loop = _coalescing_loop(access.index, names)
            if loop is None or not any(name[0] == "r" for name in used):
                continue
            traffic = float(access.weight)
            for name in used:
                traffic *= hint(sizes[name])
            if loop.startswith("r"):
                inner += traffic
            else:
                outer += traffic
    return inner >= outer
