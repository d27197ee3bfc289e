"""A zygote whose children misbehave as their kernel's text says; started in place of the real one.

A text with the line ``# fault: NAME [PATH]`` does what NAME says, after the stage it names was
told. With PATH the fault happens only if that file does not exist yet, and creates it: once.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from typing import NoReturn

from kernelfarm.compiler.seam.toolchain import Toolchain
from kernelfarm.farm import child, zygote
from kernelfarm.farm.wire import pack, unpack

FAULT = re.compile(r"# fault: (\w+)(?: (\S+))?")


def perform(run: int, body: bytes, toolchain: Toolchain, pipe: int) -> None:
    """Misbehave if the text says so, else compile."""
    found = FAULT.search(unpack(body).get("text", ""))
    if found is not None and _is_due(found[2]):
        child.write_all(pipe, pack({"op": "stage", "run": run, "stage": "llir"}))
        if found[1] == "memory_error":
            child.back_half = _run_out_of_memory
        else:
            _misbehave(found[1])
    child.perform(run, body, toolchain, pipe)


def _run_out_of_memory(*arguments: object, **more: object) -> NoReturn:
    raise MemoryError


def _is_due(path: str | None) -> bool:
    if path is None:
        return True
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _misbehave(fault: str) -> None:
    match fault:
        case "segv":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "abort":
            os.write(2, b"LLVM ERROR: out of ideas\n")
            os.abort()
        case "exit":
            os._exit(3)
        case "hang":
            # As ptxas would: a subprocess that ignores polite signals, and a parent that waits.
            subprocess.run(
                [sys.executable, "-c", "import signal, time; time.sleep(1000)"], check=False
            )
        case "slow":
            time.sleep(0.5)
        case "oom":
            hoard = []
            while True:
                hoard.append(bytearray(os.urandom(1 << 20) * 16))
                time.sleep(0.005)
        case "kill_zygote":
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(1000)
        case "stop_zygote":
            os.kill(os.getppid(), signal.SIGSTOP)
            time.sleep(1000)


if __name__ == "__main__":
    zygote.main(perform)
