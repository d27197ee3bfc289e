"""Kernels that sum at positions that are data."""

from __future__ import annotations

import torch
from generated import example, generated

aten = torch.ops.aten


def test_the_table_of_a_language_model_takes_three_passes():
    """GPT-2's vocabulary: zeros, one kernel that adds in float32, one that rounds; no sort."""
    _, kernels, _ = generated(
        lambda g, i: aten.embedding_dense_backward(g, i, 50257, -1, False),
        example(4, 1024, 768, dtype=torch.bfloat16),
        example(4, 1024, dtype=torch.int64),
    )
    adding = [k for k in kernels if "atomic_add" in k.request.text]
    assert len(kernels) == 3
    assert len(adding) == 1
    assert "*fp32" in adding[0].arg_kinds
