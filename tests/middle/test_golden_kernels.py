"""The kernels of representative graphs, as text, with their counts, loops and axes.

The texts under tests/golden are what a reviewer reads when the printer changes; run with
--update-golden to write them anew. The counts are those of the golden table in the compiler's
specification, except where a docstring says what differs and why.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from generated import example, generated, printed_groups, texts

Golden = Callable[[str], None]
BF16 = torch.bfloat16


def _loops(text: str) -> int:
    return text.count("for roffset in")


def test_pointwise(golden: Golden) -> None:
    """A chain of elementwise operators is one kernel with one read and one write."""
    _, kernels, _ = generated(lambda x: (x.sin() + 1) * x, example(64, 128))
    assert len(kernels) == 1
    golden(texts(kernels))


def test_broadcast(golden: Golden) -> None:
    """Operands of lower rank are read at the coordinates they have."""
    _, kernels, _ = generated(
        lambda x, row, column: x * row + column, example(60, 100), example(100), example(60, 1)
    )
    assert len(kernels) == 1
    golden(texts(kernels))


def test_transpose(golden: Golden) -> None:
    """A transposed operand gets a second axis, so that both reads are contiguous."""
    _, kernels, _ = generated(lambda x, y: x.t() + y, example(256, 256), example(256, 256))
    (kernel,) = kernels
    assert [n for n, _ in kernel.request.constexprs] == ["YBLOCK", "XBLOCK"]
    golden(texts(kernels))


def test_softmax_persistent(golden: Golden) -> None:
    """A row of 1024 stays in registers: no loop, one read of the input."""
    _, kernels, _ = generated(lambda x: torch.softmax(x, -1), example(32, 1024))
    (kernel,) = kernels
    assert _loops(kernel.request.text) == 0
    assert kernel.request.text.count("tl.load") == 1
    golden(texts(kernels))


def test_softmax_looped(golden: Golden) -> None:
    """A row of 50304 is read three times: maximum, sum, result.

    The reference's online softmax needs two loops; ours comes with a later part.
    """
    _, kernels, _ = generated(lambda x: torch.softmax(x, -1), example(1024, 50304, dtype=BF16))
    (kernel,) = kernels
    assert _loops(kernel.request.text) == 3
    golden(texts(kernels))


def test_softmax_outer(golden: Golden) -> None:
    """Softmax over dimension 0: each statistic in pieces, then the result.

    The reference has three: its online softmax, which comes with a later part here, is one split.
    """
    _, kernels, _ = generated(lambda x: torch.softmax(x, 0), example(2048, 2048, dtype=BF16))
    assert len(kernels) == 5
    golden(texts(kernels))


def test_layer_norm_residual(golden: Golden) -> None:
    """Residual sum, its layer norm and both results are one persistent kernel."""

    def fn(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> object:
        total = x + y
        return total, F.layer_norm(total, (768,), w, b)

    x, y = example(4096, 768, dtype=BF16), example(4096, 768, dtype=BF16)
    w, b = example(768, dtype=BF16), example(768, dtype=BF16)
    _, kernels, _ = generated(fn, x, y, w, b)
    (kernel,) = kernels
    assert _loops(kernel.request.text) == 0
    golden(texts(kernels))


def test_layer_norm_looped(golden: Golden) -> None:
    """A long row takes two loops: Welford's statistics, then the result."""
    x, w = example(1024, 8192, dtype=BF16), example(8192, dtype=BF16)
    _, kernels, _ = generated(lambda x, w: F.layer_norm(x, (8192,), w, w), x, w)
    (kernel,) = kernels
    assert _loops(kernel.request.text) == 2
    golden(texts(kernels))


def test_gelu(golden: Golden) -> None:
    """Gelu after a bias is one kernel, in both spellings."""
    _, kernels, _ = generated(
        lambda x, b: (F.gelu(x + b, approximate="tanh"), F.gelu(x)),
        example(128, 3072, dtype=BF16),
        example(3072, dtype=BF16),
    )
    assert len(kernels) == 1
    golden(texts(kernels))


def test_embedding_layer_norm(golden: Golden) -> None:
    """Two embeddings, their sum and its layer norm are one kernel that gathers rows."""

    def fn(w: torch.Tensor, p: torch.Tensor, i: torch.Tensor, g: torch.Tensor) -> object:
        total = F.embedding(i, w) + F.embedding(torch.arange(32), p)
        return total, F.layer_norm(total, (64,), g, g)

    _, kernels, _ = generated(
        fn, example(500, 64), example(32, 64), example(4, 32, dtype=torch.int64), example(64)
    )
    assert len(kernels) == 1
    golden(texts(kernels))


def test_embedding(golden: Golden) -> None:
    """An embedding alone is one pointwise kernel with one address that depends on data."""
    _, kernels, _ = generated(
        lambda w, i: F.embedding(i, w), example(1024, 256), example(4096, dtype=torch.int64)
    )
    assert len(kernels) == 1
    golden(texts(kernels))


def test_cat(golden: Golden) -> None:
    """Parts of a concatenation are read under masks by one kernel."""
    _, kernels, _ = generated(
        lambda x, y: torch.cat([x, y], 1) + 1, example(16, 48), example(16, 80)
    )
    assert len(kernels) == 1
    golden(texts(kernels))


def test_pad(golden: Golden) -> None:
    """A border is a masked read and a choice."""
    _, kernels, _ = generated(lambda x: F.pad(x, (1, 2), value=3.0), example(16, 48))
    assert len(kernels) == 1
    golden(texts(kernels))


def test_sum_of_padded(golden: Golden) -> None:
    """The sum of a strided matrix is one persistent kernel over both dimensions."""
    _, kernels, _ = generated(lambda x: x[:15, :15].sum(), example(30, 30))
    (kernel,) = kernels
    assert _loops(kernel.request.text) == 0
    golden(texts(kernels))


def test_argmax(golden: Golden) -> None:
    """Positions come from a loop that keeps the best value and where it was."""
    _, kernels, _ = generated(lambda x: x.argmax(-1), example(8, 50257))
    (kernel,) = kernels
    assert _loops(kernel.request.text) == 1
    golden(texts(kernels))


def test_var_mean(golden: Golden) -> None:
    """Variance and mean over two dimensions are one persistent kernel with two results."""
    _, kernels, _ = generated(lambda x: torch.var_mean(x, (1, 3)), example(1, 2, 4, 8))
    (kernel,) = kernels
    assert _loops(kernel.request.text) == 0
    assert kernel.request.text.count("tl.store") == 2
    golden(texts(kernels))


def test_multi_output(golden: Golden) -> None:
    """Results of one iteration space that share an input are one kernel."""
    _, kernels, _ = generated(
        lambda x, y: (x + y, x * y, (x - y).sum(-1), x.amax(-1)), example(64, 256), example(64, 256)
    )
    assert len(kernels) == 1
    golden(texts(kernels))


def test_padded_product(golden: Golden) -> None:
    """A consumer reads a product's padded rows in place; the product stays two library calls."""
    _, kernels, _ = generated(
        lambda a, b: (a @ b).float().sum(-1),
        example(1200, 32, dtype=BF16),
        example(32, 3001, dtype=BF16),
    )
    assert len(kernels) == 1
    golden(texts(kernels))


def test_sum_outer(golden: Golden) -> None:
    """A column sum is two kernels: sums of pieces in coalesced columns, then the sum of those."""
    _, kernels, _ = generated(lambda x: x.sum(0), example(4096, 1024))
    assert len(kernels) == 2
    golden(texts(kernels))


def test_groups(golden: Golden) -> None:
    """Two layers around a product: what is fused with what, and what lives only in registers."""

    def fn(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> object:
        y = F.layer_norm(x, (32,))
        z = F.gelu(y @ w) @ v
        return (x + z).softmax(-1), z.amax()

    golden(printed_groups(fn, example(8, 32), example(32, 64), example(64, 32)))
