"""Compiling in this process: nothing hangs for ever, whatever the compiler does."""

from __future__ import annotations

import subprocess
import threading

import pytest

from kernelfarm.farm.errors import KernelRejected, KernelTimeout
from kernelfarm.inline import PATIENCE, InlineFarm, InlineResult


def done(artifact) -> InlineResult:
    """What a compile that works returns."""
    return InlineResult(b"k" * 32, (), artifact, 0.0, 1.0)


def test_a_compile_that_hangs_fails_at_its_deadline_and_the_next_one_works(source, artifact):
    """The future settles with the kernel's name; another thread takes the next job."""
    release = threading.Event()

    def compile_one(request, on_keyed):
        if request.entry == "kf_hangs":
            release.wait(30)
        return done(artifact(request.entry))

    farm = InlineFarm(compile_one, deadline_s=0.05)
    try:
        with pytest.raises(KernelTimeout, match=r"kf_hangs.*TRITON_PTXAS"):
            farm.submit(source("", "kf_hangs")).result(10)
        assert farm.submit(source("", "kf_works")).result(10).artifact == artifact("kf_works")
    finally:
        release.set()


def test_an_assembler_that_hangs_is_killed(source):
    """What the late compile started does not outlive it."""
    started = threading.Event()
    processes = []

    def compile_one(request, on_keyed):
        with subprocess.Popen(["sleep", "60"]) as process:
            processes.append(process)
            started.set()
        raise ChildProcessError(f"status {process.returncode}")

    farm = InlineFarm(compile_one, deadline_s=0.2)
    with pytest.raises(KernelTimeout):
        farm.submit(source("")).result(10)
    assert started.is_set()
    assert processes[0].wait(10) == -9


def test_after_several_deadlines_the_rest_is_not_tried(source, artifact):
    """A compiler that is stuck costs a few deadlines and not one for every kernel."""
    release = threading.Event()
    tried = []

    def compile_one(request, on_keyed):
        tried.append(request.entry)
        release.wait(30)
        return done(artifact(request.entry))

    farm = InlineFarm(compile_one, deadline_s=0.05)
    try:
        futures = [farm.submit(source("", f"kf_{n}")) for n in range(8)]
        errors = [type(future.exception(10)) for future in futures]
    finally:
        release.set()
    assert errors == [KernelTimeout] * PATIENCE + [KernelRejected] * (8 - PATIENCE)
    assert len(tried) == PATIENCE
