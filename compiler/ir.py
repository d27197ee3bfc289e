"""Tensors as the compiler sees them between ATen and kernels.

Grammar::

    tensor := View(buffer, sizes, strides, offset, dtype)   -- memory that exists when it is read
            | Lazy(sizes, dtype, fn)                        -- elements computed where they are used
    node   := Compute(name, body, origin)                   -- a loop nest that stores to buffers
            | Extern(name, op, args, kwargs, outputs, origin)  -- a library call
    buffer := Buffer(name, sizes, strides, dtype, device, role)

A View's strides are exactly those that the traced graph promised for it, so library calls see the
layout that eager would have given them. Lazies are how pointwise chains and views fuse: a consumer
records the producer's statements in place. ``origin`` holds names of FX nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .body import Body, Recorder
from .index import Index, linear
from .sym import Size, hint, known_at_least, known_equal, plus, product, times

#: Computes one element: (recorder, one index per dimension) -> value of the compute dtype.
Loader = Callable[[Recorder, Sequence[Index]], int]


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory with a fixed layout; sizes and strides in elements.

    ``role`` is "input", "constant", "compute" or "extern"; ``device`` is "target" or "cpu".
    """

    name: str
    sizes: tuple[Size, ...]
    strides: tuple[Size, ...]
    dtype: str
    device: str = "target"
    role: str = "compute"
    aligned: bool = True

    def extent(self) -> Size:
        """Elements from the first to the last that the layout can address, plus one."""
        if any(isinstance(s, int) and s == 0 for s in self.sizes):
            return 0
        total: Size = 1
        for size, stride in zip(self.sizes, self.strides, strict=True):
            total = plus(total, times(plus(size, -1), stride))
        return total


class Tensor:
    """A View or a Lazy; both have ``sizes``, ``dtype`` (stored dtype) and a loader."""

    __slots__ = ("dtype", "sizes")
    sizes: tuple[Size, ...]
    dtype: str

    @property
    def numel(self) -> Size:
        """Number of elements."""
        return product(self.sizes)

    def load(self, recorder: Recorder, index: Sequence[Index]) -> int:
        """Record the computation of the element at ``index``."""
        raise NotImplementedError


class View(Tensor):
    """Strided memory: element ``index`` lies at ``offset + sum(index * strides)`` of the buffer."""

    __slots__ = ("buffer", "offset", "strides")

    def __init__(
        self,
        buffer: Buffer,
        sizes: tuple[Size, ...],
        strides: tuple[Size, ...],
        offset: Size = 0,
        dtype: str | None = None,
    ) -> None:
        self.buffer = buffer
        self.sizes = sizes
        self.strides = strides
        self.offset = offset
        self.dtype = dtype or buffer.dtype

    def load(self, recorder: Recorder, index: Sequence[Index]) -> int:
        return recorder.load(self.buffer.name, linear(index, self.strides, self.offset), self.dtype)

    @property
    def is_whole(self) -> bool:
        """Whether this is the buffer itself, not a part or another shape of it."""
        b = self.buffer
        return (
            self.sizes == b.sizes
            and same_layout(self.sizes, self.strides, b.strides)
            and self.offset == 0
            and self.dtype == b.dtype
        )

    def __repr__(self) -> str:
        place = f"{self.buffer.name}, {self.sizes}, {self.strides}, +{self.offset}"
        return f"View({place}, {self.dtype})"


class Lazy(Tensor):
    """Elements computed on demand; ``cost`` and ``reads`` estimate what one element takes."""

    __slots__ = ("cost", "fn", "reads")

    def __init__(
        self, sizes: tuple[Size, ...], dtype: str, fn: Loader, cost: int = 1, reads: int = 1
    ) -> None:
        self.sizes = sizes
        self.dtype = dtype
        self.fn = fn
        self.cost = cost
        self.reads = reads

    def load(self, recorder: Recorder, index: Sequence[Index]) -> int:
        return recorder.memo(self, tuple(index), self.fn)

    def __repr__(self) -> str:
        return f"Lazy({self.sizes}, {self.dtype}, cost {self.cost}, reads {self.reads})"


def cost_of(tensor: Tensor) -> tuple[int, int]:
    """(cost, reads) of computing one element: a view is one read."""
    return (tensor.cost, tensor.reads) if isinstance(tensor, Lazy) else (0, 1)


def same_layout(sizes: Sequence[Size], a: Sequence[Size], b: Sequence[Size]) -> bool:
    """Whether two stride tuples address alike; dimensions of size 1 and empty ones do not count."""
    if len(a) != len(b):
        return False
    if any(isinstance(s, int) and s == 0 for s in sizes):
        return True
    return all(
        x == y or (isinstance(s, int) and s == 1) or known_equal(x, y)
        for s, x, y in zip(sizes, a, b, strict=True)
    )


def is_dense(sizes: Sequence[Size], strides: Sequence[Size]) -> bool:
    """Whether the strides are a permutation of contiguous ones: no overlap and no holes."""
    dims = [(t, s) for s, t in zip(sizes, strides, strict=True) if s != 1]
    expected: Size = 1
    for stride, size in sorted(dims, key=lambda d: hint(d[0])):
        if not known_equal(stride, expected):
            return False
        expected = times(expected, size)
    return True


def is_writable(sizes: Sequence[Size], strides: Sequence[Size]) -> bool:
    """Whether no two elements share memory, except along dimensions of stride 0."""
    reach: Size = 0
    for stride, size in sorted(zip(strides, sizes, strict=True), key=lambda d: hint(d[0])):
        if size == 1 or stride == 0:
            continue
        if not known_at_least(plus(stride, times(-1, reach)), 1):
            return False
        reach = plus(reach, times(plus(size, -1), stride))
    return True


@dataclass(frozen=True, slots=True)
class Compute:
    """A loop nest that stores to one or more buffers."""

    name: str
    body: Body
    origin: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Output:
    """One tensor that a library call returns: its buffer and its place in the result."""

    buffer: Buffer
    path: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Extern:
    """A library call; ``args`` and ``kwargs`` are trees of Views and host arguments.

    With ``out`` the call writes its one result there, and that memory is allocated before it.
    """

    name: str
    op: str
    args: tuple
    kwargs: tuple[tuple[str, object], ...]
    outputs: tuple[Output, ...]
    origin: tuple[str, ...] = ()
    out: View | None = None

    def reads(self) -> set[str]:
        """Names of the buffers that the call reads."""
        return {v.buffer.name for v in views_in((self.args, tuple(v for _, v in self.kwargs)))}


def views_in(tree: object) -> list[View]:
    """Every View in a tree of tuples and lists."""
    if isinstance(tree, View):
        return [tree]
    if isinstance(tree, (tuple, list)):
        return [v for item in tree for v in views_in(item)]
    return []


Node = Compute | Extern


@dataclass(slots=True)
class LoweredGraph:
    """All that lowering leaves behind: buffers, nodes in program order, and the outputs."""

    inputs: list[Buffer | str] = field(default_factory=list)  # a str is a scalar input's name
    scalars: dict[str, Size] = field(default_factory=dict)  # what the scalar inputs are
    buffers: dict[str, Buffer] = field(default_factory=dict)
    constants: dict[str, bytes] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    outputs: list[object] = field(default_factory=list)  # View, None or a number
