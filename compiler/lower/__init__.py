"""ATen nodes become loop bodies, views and extern calls.

registry    which operator is lowered by which function
context     the walk over a graph, memory        reducing   loop nests that reduce
fallback    everything without a lowering becomes a view or a library call
views       shapes and layouts                    creation   constants and ranges
pointwise   elementwise operators, by table       numeric, activation: those that need more
reductions  sums, extremes, truth, moments        indexing   reads at positions that are data
joining     cat and pad                           scatter    copies with a part replaced
writing     writes and sums at positions that are data
softmax, norm   whole operators of several loops   random   numbers of a seed
matmul      products whose rows need padding      attention  masks that forbid the future
conjugate   marks that eager resolves at a read    symbolic  numbers that depend on sizes
convolution biases of library calls          pooling    windows of an image

Importing this package registers all of them.
"""

from . import (  # noqa: F401  (each import registers lowerings)
    activation,
    attention,
    conjugate,
    convolution,
    creation,
    indexing,
    joining,
    matmul,
    norm,
    numeric,
    pointwise,
    pooling,
    random,
    reductions,
    scatter,
    softmax,
    views,
    writing,
)
