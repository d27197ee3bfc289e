"""What handing a kernel over costs the tracer, and how soon the farm has started on it.

    python benchmarks/submit.py [--kernels 300]

A thread that is busy in Python, as a tracer is, submits distinct small kernels through the service
with a fresh store and a fresh farm; no GPU. One JSON line: microseconds of a submit (p50, p99, max,
wall clock of the submitting thread) and milliseconds from a submit to the start of its compile (the
median holds the queue, where there are fewer cores than kernels).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from concurrent.futures import wait
from pathlib import Path
from statistics import median

from kernelfarm.compiler.seam.front import devicelib_digest
from kernelfarm.compiler.seam.options import backend_options
from kernelfarm.compiler.seam.request import SourceRequest
from kernelfarm.compiler.seam.target import Target
from kernelfarm.compiler.seam.toolchain import Toolchain
from kernelfarm.compiler.turns import short_turns
from kernelfarm.compose import compose
from kernelfarm.knobs import resolve
from kernelfarm.tally import Tally

#: Additions between two submits: about a millisecond of Python, as one kernel's code generation.
BUSY = 20_000


def kernel(number: int, target: Target, toolchain: Toolchain, options: object) -> SourceRequest:
    """A kernel of its own that stores one constant."""
    name = f"kf_bench_{number}"
    text = f"@triton.jit\ndef {name}(out_ptr0, XBLOCK: tl.constexpr):\n"
    text += "".join(f"    x{i} = {number} + {i}\n" for i in range(40))
    text += "    tl.store(out_ptr0, x0)\n"
    return SourceRequest(
        text=text,
        helper_digest=devicelib_digest(),
        entry=name,
        signature=(("out_ptr0", "*i32"), ("XBLOCK", "constexpr")),
        constexprs=(("XBLOCK", 1024),),
        attributes=((0, (("tt.divisibility", 16),)),),
        options=options,  # type: ignore[arg-type]
        target=target,
        toolchain=toolchain,
    )


def main() -> None:
    """Submit, wait for all, print the line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", type=int, default=300)
    count = parser.parse_args().kernels
    target = Target.parse("h200")
    with tempfile.TemporaryDirectory(prefix="kf-submit-") as directory:
        place = Path(directory)
        world = compose(
            resolve({"store": place / "store", "farm_dir": place / "farm"}), demand_store=True
        )
        tally = Tally()
        session = world.session(target, tally)
        options = backend_options(target, num_warps=4)
        # The first kernel waits for the farm to be up: what is measured is a farm that is.
        session.service.submit(kernel(count, target, session.toolchain, options)).result(60)
        futures = []
        with short_turns():
            for number in range(count):
                sum(range(BUSY))
                for _ in range(BUSY):
                    pass
                request = kernel(number, target, session.toolchain, options)
                futures.append(session.service.submit(request))
        wait(futures, 600)
        starts = [1e3 * (s.started - s.submitted) for s in tally.spans() if s.started > 0.0][1:]
        line = {
            "submit_us": tally.submit_us(),
            "start_ms": {"soonest": round(min(starts), 2), "median": round(median(starts), 2)},
            "kernels": tally.kernels(),
        }
        print(json.dumps(line), flush=True)
        world.close()


if __name__ == "__main__":
    main()
