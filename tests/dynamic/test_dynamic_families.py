"""One program for all sizes: families of operators, traced once with symbols, called with many."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from families import FAMILIES, family_inputs
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from symbolic import check_sizes

_LENGTHS = st.integers(3, 11)
#: Sizes of the first call all differ, or the tracer would take equal ones for one symbol.
_FIRST = st.lists(_LENGTHS, min_size=4, max_size=4, unique=True)
_OTHERS = st.lists(st.tuples(_LENGTHS, _LENGTHS, _LENGTHS, _LENGTHS), min_size=2, max_size=3)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@settings(
    max_examples=4,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],  # an example takes seconds: no shrinking
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(first=_FIRST, others=_OTHERS)
def test_one_program_computes_what_eager_does_for_every_size(
    family: str, first: list[int], others: list[Any]
) -> None:
    """A program compiled for symbols gives eager's results at sizes that it never saw."""
    check_sizes(
        FAMILIES[family], family_inputs(first), *map(family_inputs, others), tolerance=(1e-4, 1e-4)
    )


@pytest.mark.every(3)
@pytest.mark.parametrize("family", FAMILIES)
def test_large_sizes_after_small_ones(family: str) -> None:
    """Blocks and loops chosen for a small first call are right for rows many blocks long."""
    first, large = family_inputs((3, 5, 4, 7)), family_inputs((3, 6, 290, 4))
    check_sizes(FAMILIES[family], first, large, tolerance=(1e-3, 1e-3))


def test_a_transposed_input_keeps_its_symbolic_layout() -> None:
    """Strides that are symbols are read where they lie, and results have the traced layout."""
    first, other = torch.randn(5, 3).t(), torch.randn(8, 6).t()
    call = check_sizes(lambda x: (x + 1, x.t() * 2), [first], [other])
    got = call([torch.randn(4, 9).t()])
    assert (got[0].stride(), got[1].stride()) == ((1, 9), (9, 1))


def test_sizes_are_results_too() -> None:
    """A graph may return numbers that are computed from sizes."""
    call = check_sizes(lambda x: (x + 1, x.shape[0] * 2 + 1), [torch.randn(3, 5)])
    assert call([torch.randn(4, 6)])[1] == 9


def test_an_empty_dimension_launches_nothing() -> None:
    """Where a size may be zero, an empty grid is no launch."""
    call = check_sizes(lambda x: x[2:].sin(), [torch.randn(5, 3)])
    assert "> 0:" in call.text
