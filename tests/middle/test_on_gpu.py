"""The same functions, compiled and run on the GPU at hand, equal eager's results there."""

from __future__ import annotations

import pytest
import torch
from cases import CASES, ROWS, filled
from on_gpu import run_on_gpu

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

#: (relative, absolute) tolerance by the coarsest dtype that takes part.
LOOSE = {torch.bfloat16: (2e-2, 2e-2), torch.float16: (2e-3, 2e-3), torch.float32: (1e-4, 1e-4)}


@pytest.mark.parametrize("case", (*CASES, *ROWS))
def test_kernels_on_the_gpu_equal_eager(case: str) -> None:
    """Every output has eager's value: exactly for integers, within rounding for floats."""
    fn, inputs = (CASES | ROWS)[case]
    args = filled(inputs, "cuda")
    atomic = case.startswith("sums ") and args[0].dtype.is_floating_point
    with torch.device("cuda"):
        wanted, results = fn(*args), run_on_gpu(fn, args, in_order=not atomic)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    coarse = [x.dtype for x in (*args, *wanted) if x.dtype in LOOSE]
    rtol, atol = max((LOOSE[d] for d in coarse), default=(1e-9, 1e-9))
    wrong = []
    for number, (got, want) in enumerate(zip(results, wanted, strict=True)):
        assert got.dtype == want.dtype, f"output {number}"
        exact = not want.dtype.is_floating_point
        if want.dtype.itemsize == 1 and not exact:
            got, want = got.float(), want.float()
            exact = True
        try:
            torch.testing.assert_close(
                got, want, rtol=0 if exact else rtol, atol=0 if exact else atol, equal_nan=True
            )
        except AssertionError as error:
            wrong.append(f"output {number}: {error}")
    assert not wrong, "\n".join(wrong)
