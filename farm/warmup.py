"""Loads the compiler in a zygote: one small kernel through both halves.

The first compile of a process pays for lazy imports and tables; children inherit them paid.
"""

from __future__ import annotations

from ..compiler.seam.back import back_half
from ..compiler.seam.front import front_half
from ..compiler.seam.options import backend_options
from ..compiler.seam.request import SourceRequest
from ..compiler.seam.target import Target
from ..compiler.seam.toolchain import Toolchain, devicelib_digest

TEXT = """\
@triton.jit
def kf_warmup(source, target, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(source + at, mask=at < n)
    tl.store(target + at, tl.exp(value) + tl.sum(value, axis=0), mask=at < n)
"""


def warm_request(target: Target, toolchain: Toolchain, text: str = TEXT) -> SourceRequest:
    """Return a small request that touches what most kernels do."""
    return SourceRequest(
        text=text,
        helper_digest=devicelib_digest(),
        entry="kf_warmup",
        signature=(("source", "*fp32"), ("target", "*fp32"), ("n", "i32"), ("BLOCK", "constexpr")),
        constexprs=(("BLOCK", 128),),
        attributes=((0, (("tt.divisibility", 16),)), (1, (("tt.divisibility", 16),))),
        options=backend_options(target, num_warps=4, num_stages=1),
        target=target,
        toolchain=toolchain,
    )


def warm_up(target: Target, toolchain: Toolchain) -> None:
    """Compile it once in this process; raises what the compiler raises."""
    back_half(front_half(warm_request(target, toolchain)))
