"""Real brokers, zygotes and compiles, and everything that can die."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from kernelfarm.cache.key import Key
from kernelfarm.compiler.seam.errors import BackHalfError, FrontHalfError
from kernelfarm.compiler.seam.request import CompileRequest, SourceRequest
from kernelfarm.farm.errors import (
    FarmClosed,
    FarmUnavailable,
    KernelCrash,
    KernelLost,
    KernelOutOfMemory,
    KernelRejected,
    KernelTimeout,
)
from kernelfarm.farm.levels import SPECULATIVE

pytestmark = pytest.mark.slow

PATIENCE = 60.0


def test_kernels_come_back_in_a_second_client_joined(farm: Any) -> None:
    """A client gets its kernels compiled; another one gets the same without a compile."""
    first = farm.client()
    futures = [first.submit(farm.request(n)) for n in range(4)]
    results = [future.result(PATIENCE) for future in futures]
    for result in results:
        assert result.artifact.binary[:4] == b"\x7fELF" and not result.joined
        assert Key.of("kernel", result.parts).digest == result.key
        assert 0 < result.finished - result.started < PATIENCE
        assert {"front", "llir"} <= result.stages.keys()
    second = farm.client()
    again = [second.submit(farm.request(n)).result(PATIENCE) for n in range(4)]
    assert [found.key for found in again] == [found.key for found in results]
    assert all(found.joined for found in again)
    assert second.broker_stats()["runs_started"] == 4
    assert first.stats()["compiled"] == 4 and second.stats()["joined"] == 4


def test_ttir_of_a_source_is_the_same_kernel(farm: Any) -> None:
    """A compile request made of the TTIR that a source became has the same key and binary."""
    client = farm.client()
    source = client.submit(farm.request()).result(PATIENCE)
    request = farm.request()
    ttir = dict(source.parts)["ttir"].decode()
    compile_request = CompileRequest(
        ttir, request.entry, request.target, request.options, request.toolchain
    )
    result = client.submit(compile_request).result(PATIENCE)
    assert result.key == source.key and result.joined
    assert result.artifact.binary == source.artifact.binary


def test_two_texts_of_one_kernel_are_one_compile(farm: Any) -> None:
    """Texts that differ in a comment are merged by their kernel key once it is known."""
    client = farm.client()
    one = farm.request()
    other = SourceRequest(
        **{name: getattr(one, name) for name in SourceRequest.__slots__ if name not in ("text",)},
        text=one.text + "# a comment\n",
    )
    keys = {client.submit(request).result(PATIENCE).key for request in (one, other)}
    assert len(keys) == 1
    stats = client.broker_stats()
    assert (stats["compiled"], stats["merged"]) == (1, 1)


def test_kernel_found_by_its_key_is_not_compiled(farm: Any) -> None:
    """What ``on_keyed`` finds settles the future, and the compile is given up."""
    client = farm.client()
    stored = client.submit(farm.request()).result(PATIENCE)
    asked = []

    def on_keyed(key: bytes, parts: Any) -> Any:
        asked.append((key, Key.of("kernel", parts).digest))
        return stored.artifact

    result = client.submit(farm.request(1), on_keyed=on_keyed).result(PATIENCE)
    assert asked == [(result.key, result.key)] and result.started == 0.0
    assert client.stats()["satisfied"] == 1
    assert result.artifact is stored.artifact


def test_ptxas_refusal_reaches_the_asker(farm: Any) -> None:
    """A kernel that ptxas rejects fails with ptxas's own words and the compiler's error."""
    good = farm.request()
    text = good.text.replace(
        "tl.exp(value)",
        'tl.inline_asm_elementwise("not.an.instruction $0, $1;", "=f,f", [value], '
        "tl.float32, is_pure=True, pack=1)",
    )
    request = SourceRequest(
        **{name: getattr(good, name) for name in SourceRequest.__slots__ if name != "text"},
        text=text,
    )
    with pytest.raises(KernelRejected, match=r"not\.an\.instruction|Not a name") as caught:
        farm.client().submit(request).result(PATIENCE)
    assert isinstance(caught.value.__cause__, BackHalfError)
    assert "kf_warmup" in str(caught.value)


def test_front_half_refusal_reaches_the_asker(farm: Any) -> None:
    """Kernel text that is no Triton fails with the front half's error."""
    good = farm.request()
    request = SourceRequest(
        **{name: getattr(good, name) for name in SourceRequest.__slots__ if name != "text"},
        text=good.text.replace("tl.exp(value)", "tl.no_such_function(value)"),
    )
    with pytest.raises(KernelRejected, match="no_such_function") as caught:
        farm.client().submit(request).result(PATIENCE)
    assert isinstance(caught.value.__cause__, FrontHalfError)


@pytest.mark.parametrize(
    ("fault", "what"),
    [("segv", "SIGSEGV in llir"), ("abort", "SIGABRT in llir"), ("exit", "exit status 3 in llir")],
)
def test_crash_is_one_kernels_error(farm: Any, fault: str, what: str) -> None:
    """A compiler that dies twice on a kernel fails that kernel; its neighbours compile."""
    client = farm.client()
    bad = client.submit(farm.request(1, fault))
    good = client.submit(farm.request(2))
    with pytest.raises(KernelCrash) as caught:
        bad.result(PATIENCE)
    assert f"crashed the compiler twice ({what})" in str(caught.value)
    assert Path(caught.value.reproducer).read_text().startswith("@triton.jit")
    assert good.result(PATIENCE).artifact.binary
    if fault == "abort":
        assert "LLVM ERROR: out of ideas" in str(caught.value)
    with pytest.raises(KernelCrash, match="not tried again"):
        client.submit(farm.request(1, fault)).result(PATIENCE)
    assert client.broker_stats()["runs_started"] == 3


def test_one_crash_costs_one_retry(farm: Any) -> None:
    """A child that dies once is run again, and nobody hears of it."""
    client = farm.client()
    flag = farm.scratch / "crashed"
    assert client.submit(farm.request(0, f"segv {flag}")).result(PATIENCE).artifact.binary
    assert flag.exists()
    assert client.broker_stats()["retries"] == 1


def test_killed_child_is_retried(farm: Any) -> None:
    """``kill -9`` of a compiling child costs a retry."""
    client = farm.client()
    flag = farm.scratch / "hung"
    future = client.submit(farm.request(0, f"hang {flag}"))
    farm.wait_for(flag.exists)
    (zygote,) = farm.children(farm.broker_pid)
    (child,) = farm.children(zygote)
    os.kill(child, signal.SIGKILL)
    assert future.result(PATIENCE).artifact.binary


def test_hang_ends_at_the_deadline(farm: Any) -> None:
    """A compiler that hangs is killed at its deadline with its subprocess, twice, then an error."""
    client = farm.client(limits={"deadlines": [0.5, 0.5, 0.5, 0.5]})
    bad = client.submit(farm.request(1, "hang"))
    good = client.submit(farm.request(2))
    assert good.result(PATIENCE).artifact.binary
    with pytest.raises(KernelTimeout, match=r"still compiling after [01] s in llir twice"):
        bad.result(PATIENCE)
    (zygote,) = farm.children(farm.broker_pid)
    farm.wait_for(lambda: not farm.children(zygote))


def test_out_of_memory_is_one_kernels_error(farm: Any) -> None:
    """A compiler that outgrows its limit is killed before it hurts the machine."""
    client = farm.client(limits={"run_bytes": 600 << 20})
    with pytest.raises(KernelOutOfMemory, match="memory limit in llir twice"):
        client.submit(farm.request(1, "oom")).result(PATIENCE)
    with pytest.raises(KernelOutOfMemory):
        client.submit(farm.request(1, "memory_error")).result(PATIENCE)
    assert client.submit(farm.request(2)).result(PATIENCE).artifact.binary


def test_zygote_death_costs_a_restart(farm: Any) -> None:
    """``kill -9`` of the zygote loses its runs, which a new zygote runs again."""
    client = farm.client()
    flag = farm.scratch / "killed"
    futures = [client.submit(farm.request(0, f"kill_zygote {flag}"))]
    futures += [client.submit(farm.request(n)) for n in range(1, 6)]
    assert all(future.result(PATIENCE).artifact.binary for future in futures)
    stats = client.broker_stats()
    assert (stats["environments_lost"], stats["environments_started"]) == (1, 2)


def test_kernel_that_kills_zygotes_is_lost(farm: Any) -> None:
    """A kernel that takes two zygotes with it fails; the farm goes on."""
    client = farm.client()
    with pytest.raises(KernelLost, match="lost with its compile process twice"):
        client.submit(farm.request(1, "kill_zygote")).result(PATIENCE)
    assert client.submit(farm.request(2)).result(PATIENCE).artifact.binary


def test_stopped_zygote_is_replaced(farm: Any) -> None:
    """A zygote that does not answer is killed after the deadline and a grace period."""
    # Speculation has the short deadline here, so that the second kernel has a long one.
    client = farm.client(limits={"deadlines": [90.0, 90.0, 90.0, 0.5], "kill_grace": 0.5})
    bad = client.submit(farm.request(1, "stop_zygote"), SPECULATIVE)
    settled = threading.Event()
    bad.add_done_callback(lambda future: settled.set())
    assert settled.wait(PATIENCE)
    with pytest.raises(KernelTimeout):
        bad.result()
    assert client.submit(farm.request(2)).result(PATIENCE).artifact.binary


def test_broker_death_costs_a_restart(farm: Any) -> None:
    """``kill -9`` of the broker with futures pending: a new one gets them, all settle."""
    client = farm.client()
    client.submit(farm.request(0)).result(PATIENCE)
    futures = [client.submit(farm.request(n, "slow")) for n in range(1, 5)]
    before = farm.broker_pid
    os.kill(before, signal.SIGKILL)
    assert all(future.result(PATIENCE).artifact.binary for future in futures)
    assert farm.broker_pid != before
    assert client.stats()["broker_deaths"] == 1 and not farm.notices


def test_second_broker_death_ends_in_this_process(farm: Any) -> None:
    """After two deaths the client hosts a broker itself, says so once, and all settle."""
    client = farm.client()
    client.submit(farm.request(0)).result(PATIENCE)
    for n in (1, 2):
        flag = farm.scratch / f"started {n}".replace(" ", "-")
        future = client.submit(farm.request(n, f"slow {flag}"))
        farm.wait_for(flag.exists)
        os.kill(farm.broker_pid, signal.SIGKILL)
        assert future.result(PATIENCE).artifact.binary
    assert client.stats()["fallbacks"] == 1
    (notice,) = farm.notices
    assert "no shared broker (it died twice)" in notice
    assert client.submit(farm.request(3)).result(PATIENCE).artifact.binary


def test_stopped_broker_is_given_up(farm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is stopped, not dead, is given up after a silence; the future settles."""
    from kernelfarm.farm import exchange, launch

    monkeypatch.setattr(exchange, "PING_SECONDS", 0.2)
    monkeypatch.setattr(exchange, "SILENCE_SECONDS", 1.0)
    monkeypatch.setattr(launch, "GREET_SECONDS", 0.5)
    client = farm.client()
    client.submit(farm.request(0)).result(PATIENCE)
    os.kill(farm.broker_pid, signal.SIGSTOP)
    try:
        assert client.submit(farm.request(1)).result(PATIENCE).artifact.binary
    finally:
        os.kill(farm.broker_pid, signal.SIGCONT)
    assert client.stats()["silences"] == 1
    assert "does not answer" in farm.notices[0]


def test_no_interpreter_is_unavailable(farm: Any) -> None:
    """When no zygote can be started the future says so, for the caller's last resort."""
    client = farm.client(entry=("-c", "raise SystemExit('no compiler here')"))
    with pytest.raises(FarmUnavailable, match="no compiler here"):
        client.submit(farm.request()).result(PATIENCE)


def test_replaced_code_is_not_used(farm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A zygote that would run other sources than the client's is refused, with the reason."""
    monkeypatch.setattr("kernelfarm.farm.client.code_signature", lambda: "of other sources")
    with pytest.raises(FarmUnavailable, match="replaced on disk"):
        farm.client().submit(farm.request()).result(PATIENCE)


def test_close_settles_what_is_pending(farm: Any) -> None:
    """Closing a client settles its futures with an error at once."""
    client = farm.client()
    future = client.submit(farm.request(1, "hang"))
    client.close()
    with pytest.raises(FarmClosed):
        future.result(1.0)
    with pytest.raises(FarmClosed):
        client.submit(farm.request(2))


def test_cancelled_future_is_dropped(farm: Any) -> None:
    """A cancelled future's queued work is never started; others are not affected."""
    client = farm.client(slots=1)
    flag = farm.scratch / "busy"
    busy = client.submit(farm.request(1, f"slow {flag}"))
    queued = client.submit(farm.request(2), SPECULATIVE)
    assert queued.cancel()
    assert busy.result(PATIENCE).artifact.binary
    stats = client.broker_stats()
    assert stats["runs_started"] == 1 and stats["requests"] <= 2
