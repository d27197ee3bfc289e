"""What a forked child runs: one request, from its wire form to its artifact.

It writes frames to its pipe: the stage before each stage, so that a crash is known by it; the
kernel key when the front half is done; then the artifact, or the compiler's refusal as data.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from typing import Any

from ..cache.key import Key
from ..compiler.seam.back import back_half
from ..compiler.seam.errors import BackHalfError, SeamError
from ..compiler.seam.front import front_half
from ..compiler.seam.request import Artifact, CompileRequest, SourceRequest, request_from_wire
from ..compiler.seam.toolchain import Toolchain
from .errors import Failure, describe_cause
from .wire import pack, unpack

#: What is kept of the compiler's own account of an error of ours.
TRACE_TAIL = 4000


class Stages:
    """Times stages; the name of each is told before it begins."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._name = ""
        self._since = time.monotonic()
        self.seconds: dict[str, float] = {}

    def enter(self, name: str) -> None:
        """Begin a stage, which ends the one before."""
        self.leave()
        self._name = name
        self._tell(name)

    def leave(self) -> None:
        """End the stage that is in progress."""
        now = time.monotonic()
        if self._name:
            self.seconds[self._name] = self.seconds.get(self._name, 0.0) + now - self._since
        self._name, self._since = "", now


def kernel_key(request: CompileRequest) -> Key:
    """Return the key under which the artifact of a request is stored."""
    return Key.of("kernel", request.key_parts())


def compile_to_artifact(
    request: SourceRequest | CompileRequest,
    stages: Stages,
    keyed: Callable[[Key], None],
) -> Artifact:
    """Compile a request through both halves; ``keyed`` is told the key in between."""
    if isinstance(request, SourceRequest):
        stages.enter("front")
        request = front_half(request)
    stages.enter("key")
    keyed(kernel_key(request))
    artifact = back_half(request, on_stage=stages.enter)
    stages.leave()
    return artifact


def perform(run: int, body: bytes, toolchain: Toolchain, pipe: int) -> None:
    """Compile one request in this child and write what comes of it to ``pipe``."""

    def tell(op: str, **fields: Any) -> None:
        write_all(pipe, pack({"op": op, "run": run, **fields}))

    def keyed(key: Key) -> None:
        tell("keyed", key=key.digest, parts=key.parts)

    started = time.monotonic()
    stages = Stages(lambda name: tell("stage", stage=name))
    kernel = ""
    try:
        request = request_from_wire(unpack(body))
        kernel = request.entry
        check_toolchain(kernel, request.toolchain, toolchain)
        payload = compile_to_artifact(request, stages, keyed).to_payload()
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except Exception as error:
        tell("rejected", failure=refusal(kernel, error).to_wire())
        return
    finished = time.monotonic()
    tell("done", payload=payload, started=started, finished=finished, stages=stages.seconds)


#: Exit status of a child that Python told it is out of memory.
OUT_OF_MEMORY = 77


def check_toolchain(kernel: str, asked: Toolchain, here: Toolchain) -> None:
    """Refuse a request for another toolchain than the zygote was started with."""
    if asked != here:
        from ..compiler.seam.errors import ToolchainMismatch

        raise ToolchainMismatch(kernel, asked.differences(here))


def refusal(kernel: str, error: Exception) -> Failure:
    """Return the compiler's error as data; of an error of ours, the traceback as well."""
    log = str(error)
    if not isinstance(error, SeamError):
        trace = "".join(traceback.format_exception(error))[-TRACE_TAIL:]
        log = f"kernel {kernel}: {type(error).__name__}: {error}\n{trace}"
    stage = error.stage if isinstance(error, BackHalfError) else ""
    return Failure("rejected", kernel, log=log, stage=stage, cause=describe_cause(error))


def write_all(pipe: int, data: bytes) -> None:
    """Write everything; a reader that is gone ends the child, which has nobody to work for."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(pipe, view) :]
        except BrokenPipeError:
            os._exit(0)
