"""The back half: valid binaries, equal bytes everywhere, errors that name their stage."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest

from kernelfarm.compiler.seam import options as options_module
from kernelfarm.compiler.seam.back import back_half, minimum_driver, warm_up
from kernelfarm.compiler.seam.device import architectures
from kernelfarm.compiler.seam.environment import codegen_environment
from kernelfarm.compiler.seam.errors import (
    BackHalfError,
    LibraryMissing,
    OptionsError,
    ToolchainMismatch,
)
from kernelfarm.compiler.seam.front import front_half, load_kernel
from kernelfarm.compiler.seam.installation import triton_root, triton_version
from kernelfarm.compiler.seam.options import find_library, rebuild_options
from kernelfarm.compiler.seam.request import Artifact, SourceRequest
from kernelfarm.compiler.seam.target import Target
from kernelfarm.compiler.seam.versions import parse_version, pristine, ptxas_names

MakeRequest = Callable[..., SourceRequest]

WORKER = """\
import sys
import msgpack
from kernelfarm.compiler.seam.back import back_half
from kernelfarm.compiler.seam.front import front_half
from kernelfarm.compiler.seam.request import SourceRequest, request_from_wire

request = request_from_wire(msgpack.unpackb(sys.stdin.buffer.read()))
if isinstance(request, SourceRequest):
    request = front_half(request)
sys.stdout.buffer.write(back_half(request).to_payload())
loaded = {name.split(".")[0] for name in sys.modules}
assert not loaded & {"torch", "numpy"}, loaded
"""


def worker(request: Any, directory: Path, environ: dict[str, str]) -> Artifact:
    """Compile in a new process, started as a zygote is: with its own directory and environment."""
    done = subprocess.run(
        [sys.executable, "-c", WORKER],
        input=msgpack.packb(request.to_wire()),
        capture_output=True,
        cwd=directory,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "TMPDIR": str(directory),
            "PYTHONPATH": os.getcwd(),
            "XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"],
            **environ,
        },
    )
    assert done.returncode == 0, done.stderr.decode()
    return Artifact.from_payload(done.stdout)


@pytest.mark.parametrize("arch", ["sm_90", "sm_100", "gfx942"])
@pytest.mark.parametrize("entry", ["kf_pointwise", "kf_reduction"])
def test_a_cpu_compiles_for_any_gpu(make_request: MakeRequest, entry: str, arch: str) -> None:
    """A CPU makes a valid binary of the target's kind whose kernel keeps its name."""
    made = back_half(front_half(make_request(entry, arch, num_warps=2)))
    assert made.kind == ("hsaco" if arch == "gfx942" else "cubin")
    assert made.binary.startswith(b"\x7fELF")
    assert made.metadata.name == entry
    assert made.metadata.num_warps == 2
    assert made.metadata.warp_size == (64 if arch == "gfx942" else 32)
    assert 0 < made.registers <= 512 and made.spills == 0
    assert (made.metadata.shared > 0) == (entry == "kf_reduction")
    assert made.ptx is None


def test_stages_are_told_before_they_begin(make_request: MakeRequest) -> None:
    """Whoever listens knows which stage is running, in order."""
    stages: list[str] = []
    back_half(front_half(make_request()), stages.append)
    assert stages == ["parse", "ttgir", "llir", "ptx", "cubin", "validate"]


def test_the_assembly_comes_along_on_request(make_request: MakeRequest) -> None:
    """PTX is part of the artifact only where it is asked for."""
    made = back_half(front_half(make_request()), keep_ptx=True)
    assert made.ptx is not None and ".visible .entry kf_pointwise(" in made.ptx


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
def test_recompiling_elsewhere_gives_the_same_bytes(
    make_request: MakeRequest, tmp_path: Path, arch: str
) -> None:
    """Another process in another directory, from TTIR or from text, makes byte-equal artifacts."""
    source = make_request("kf_reduction", arch)
    request = front_half(source)
    here = back_half(request).to_payload()
    deep = tmp_path / "a" / "much" / "longer" / "directory"
    deep.mkdir(parents=True)
    noise = {"RANK": "3", "TRITON_HOME": str(tmp_path), "LANG": "de_DE.UTF-8"}
    environ = codegen_environment(os.environ) | noise
    assert worker(request, tmp_path, environ).to_payload() == here
    assert worker(source, deep, environ).to_payload() == here
    assert [path.name for path in deep.iterdir()] == []


def test_threads_beside_the_compile_change_no_byte(make_request: MakeRequest) -> None:
    """In a process with other threads the working directory is left alone, the bytes are equal."""
    request = front_half(make_request("kf_reduction"))
    quiet = back_half(request)
    halt, seen = threading.Event(), set[str]()

    def watch() -> None:
        while not halt.wait(0.001):
            seen.add(os.getcwd())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        beside = back_half(request)
    finally:
        halt.set()
        thread.join()
    assert beside == quiet
    assert seen == {os.getcwd()}


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
def test_the_binary_is_the_one_that_stock_triton_makes(
    make_request: MakeRequest, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cutting at TTIR changes no byte against triton.compile without line info."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import ASTSource
    from triton.compiler.compiler import compile as stock_compile

    request = make_request("kf_reduction", arch)
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")
    target = GPUTarget("hip", arch, 64) if arch == "gfx942" else GPUTarget("cuda", 90, 32)
    stock = stock_compile(
        ASTSource(
            load_kernel(request.text, request.entry),
            dict(request.signature),
            dict(request.constexprs),
            {(index,): [list(mark) for mark in marks] for index, marks in request.attributes},
        ),
        target=target,
        options={"enable_fp_fusion": True, "debug": False, "sanitize_overflow": False},
    )
    made = back_half(front_half(request))
    assert made.binary == stock.asm[made.kind]
    assert made.metadata.shared == stock.metadata.shared
    assert made.metadata.num_warps == stock.metadata.num_warps


def test_triton_caches_nothing(make_request: MakeRequest, tmp_path: Path, monkeypatch: Any) -> None:
    """Both halves leave Triton's cache and the temporary directory empty."""
    cache, temporary = tmp_path / "cache", tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    back_half(front_half(make_request()))
    assert not cache.exists()
    assert list(temporary.iterdir()) == []


def test_a_stages_hook_of_the_process_is_left_out(make_request: MakeRequest) -> None:
    """A request is a pure function: the process's own hook neither sees nor changes it."""
    from triton import knobs

    def hook(*args: object) -> None:
        raise AssertionError("the hook was called")

    knobs.runtime.add_stages_inspection_hook = hook
    try:
        back_half(front_half(make_request()))
        assert knobs.runtime.add_stages_inspection_hook is hook
    finally:
        knobs.runtime.add_stages_inspection_hook = None


def test_knobs_set_in_this_process_only_do_not_count(make_request: MakeRequest) -> None:
    """What is neither in the environment nor in the request has no influence, and is kept."""
    from triton import knobs

    request = front_half(make_request("kf_reduction"))
    plain = back_half(request)
    before, knobs.propagate_env = knobs.propagate_env, False
    try:
        knobs.nvidia.disable_ptxas_opt = True
        assert front_half(make_request("kf_reduction")) == request
        assert back_half(request) == plain
        assert knobs.nvidia.disable_ptxas_opt
    finally:
        del knobs.nvidia.disable_ptxas_opt
        knobs.propagate_env = before


def test_compiles_in_two_threads_restore_the_process(make_request: MakeRequest) -> None:
    """However two compiles overlap, the process's own settings are back when both are done."""
    from triton import knobs

    assert "disable_line_info" not in vars(knobs.compilation)
    first, second = pristine(line_info=False), pristine(line_info=False)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert knobs.compilation.disable_line_info
    second.__exit__(None, None, None)
    assert "disable_line_info" not in vars(knobs.compilation)


@pytest.mark.slow
@pytest.mark.parametrize("arch", [f"{backend}:{arch}" for backend, arch in architectures()])
def test_every_architecture_of_the_table_compiles(make_request: MakeRequest, arch: str) -> None:
    """What `Target.parse` accepts can be compiled for."""
    made = back_half(front_half(make_request("kf_reduction", arch)))
    assert made.registers > 0


def test_a_full_disk_is_no_fault_of_the_kernel(
    make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operating system's error passes as what it is, so that nobody quarantines the key."""
    request = front_half(make_request())

    def full(*args: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", full)
    with pytest.raises(OSError, match="No space"):
        back_half(request)


def test_debug_kernels_compile_from_their_full_text(make_request: MakeRequest) -> None:
    """A device assert's message keeps the place where it was written."""
    made = back_half(front_half(make_request("kf_asserting", debug=True)))
    assert b"<kernelfarm kf_asserting>" in made.binary


def test_line_info_reaches_the_binary_only_where_asked(
    make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With line info the kernel's file is in the cubin; without it no name of any file is."""
    plain = back_half(front_half(make_request()))
    assert b"<kernelfarm" not in plain.binary and b"kernel.ttir" not in plain.binary
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "0")
    made = back_half(front_half(make_request()))
    assert b"<kernelfarm kf_pointwise>" in made.binary
    assert b"kernel.ttir" not in made.binary


def test_options_are_rebuilt_and_never_parsed(
    make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's PTXAS_OPTIONS cannot fill a field that the request left at None."""
    request = make_request()
    monkeypatch.setenv("PTXAS_OPTIONS", "--opt-level 0")
    monkeypatch.setattr(
        options_module.options_class("cuda"), "ptx_options", "--opt-level 0", raising=True
    )
    rebuilt = rebuild_options(request.options, "k")
    assert rebuilt.ptx_options is None
    assert vars(rebuilt).keys() == dict(request.options.fields).keys()
    assert isinstance(rebuilt.supported_fp8_dtypes, tuple)
    assert rebuilt == dataclasses.replace(rebuilt)


def test_a_worker_with_another_environment_refuses(
    make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request is never compiled under another toolchain: the difference is named."""
    request = front_half(make_request())
    monkeypatch.setenv("PTXAS_OPTIONS", "--opt-level 0")
    with pytest.raises(ToolchainMismatch) as caught:
        back_half(request)
    assert caught.value.parts == (("env.PTXAS_OPTIONS", None, "--opt-level 0"),)
    assert "kf_pointwise" in str(caught.value)


@pytest.mark.slow
def test_ptxas_options_of_the_asking_side_reach_the_worker(
    make_request: MakeRequest, tmp_path: Path
) -> None:
    """What the client set is in the key and in the binary, whichever process compiles."""
    plain = front_half(make_request("kf_reduction"))
    environ = {"PTXAS_OPTIONS": "--opt-level 0"}
    source = make_request("kf_reduction", environ=environ, ptx_options="--opt-level 0")
    tuned = worker(source, tmp_path, codegen_environment(environ))
    assert tuned.binary != back_half(plain).binary


@pytest.mark.parametrize("change", ["missing", "unknown"])
def test_options_of_another_triton_are_refused(make_request: MakeRequest, change: str) -> None:
    """A field that only one side has would silently mean something else."""
    options = make_request().options
    fields = options.fields[1:] if change == "missing" else (*options.fields, ("zz_new", 1))
    with pytest.raises(OptionsError, match="asking" if change == "missing" else "installed"):
        rebuild_options(dataclasses.replace(options, fields=fields), "k")


def test_libraries_are_found_by_content(
    make_request: MakeRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library with the digest is linked, whatever it is called; else the error names it."""
    bundled = triton_root() / "backends" / "nvidia" / "lib" / "libdevice.10.bc"
    own = tmp_path / "mine.bc"
    own.write_bytes(b"not the same")
    monkeypatch.setenv("TRITON_LIBDEVICE_PATH", str(own))
    digest = hashlib.sha256(b"not the same").hexdigest()
    assert find_library("libdevice", digest) == str(own)
    assert make_request().options.libraries == (("libdevice", digest),)
    theirs = hashlib.sha256(bundled.read_bytes()).hexdigest()
    assert find_library("libdevice", theirs) == str(bundled)
    with pytest.raises(LibraryMissing) as caught:
        find_library("libdevice", "ab" * 32)
    assert str(bundled) in caught.value.searched


def test_ttir_that_does_not_parse_is_named(make_request: MakeRequest, capfd: Any) -> None:
    """The error names kernel and stage and holds the compiler's message, which nobody else sees."""
    request = front_half(make_request())
    broken = dataclasses.replace(request, ttir=request.ttir.replace("tt.store", "tt.stoore"))
    with pytest.raises(BackHalfError) as caught:
        back_half(broken)
    assert caught.value.stage == "parse" and caught.value.kernel == "kf_pointwise"
    printed = capfd.readouterr()
    assert "tt.stoore" in caught.value.log + printed.err
    other = dataclasses.replace(request, entry="kf_other")
    with pytest.raises(BackHalfError, match="defines 'kf_pointwise'"):
        back_half(other)


def fake_ptxas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, body: str) -> None:
    """Put a script in the place of both assemblers that answers --version like the real one."""
    names = ptxas_names(parse_version(triton_version()), 90)
    real = triton_root() / "backends" / "nvidia" / "bin" / names[0]
    script = tmp_path / name
    script.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = --version ] && exec {real} --version\n'
        "for last; do :; done\n"  # the output is the last argument
        f"{body}\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    for variable in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"):
        monkeypatch.setenv(variable, str(script))


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("empty", ': > "$last"'),
        ("text", 'echo sorry > "$last"'),
        ("truncated", '{real} "$@"; head -c 900 "$last" > "$last.x"; mv "$last.x" "$last"'),
    ],
)
def test_a_bad_binary_with_exit_code_zero_is_caught(
    make_request: MakeRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    body: str,
) -> None:
    """An assembler on a sick machine that reports success does not get its output stored."""
    names = ptxas_names(parse_version(triton_version()), 90)
    real = triton_root() / "backends" / "nvidia" / "bin" / names[0]
    fake_ptxas(tmp_path, monkeypatch, name, body.replace("{real}", str(real)))
    with pytest.raises(BackHalfError) as caught:
        back_half(front_half(make_request()))
    assert caught.value.stage == "validate"
    assert "MalformedBinary" in caught.value.log


def test_a_failing_assembler_is_named_with_its_output(
    make_request: MakeRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ptxas says on its error stream is in the error, and its files are gone."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    fake_ptxas(tmp_path, monkeypatch, "failing", "echo out of registers >&2; exit 1")
    with pytest.raises(BackHalfError) as caught:
        back_half(front_half(make_request()))
    assert caught.value.stage == "cubin"
    assert "out of registers" in caught.value.log


def test_clusters_reach_the_metadata(make_request: MakeRequest) -> None:
    """A kernel of two CTAs compiles, and its launcher is told the cluster's shape."""
    made = back_half(front_half(make_request(num_ctas=2)))
    assert made.metadata.num_ctas == 2
    assert made.metadata.cluster_dims == (2, 1, 1)


def test_tensor_descriptors_reach_the_metadata(make_request: MakeRequest) -> None:
    """A host-side tensor descriptor's layout is among the named fields, and survives storage."""
    text = (
        "@triton.jit\n"
        "def kf_descriptor(source, target, SIDE: tl.constexpr):\n"
        "    at = tl.arange(0, SIDE)\n"
        "    tl.store(target + at[:, None] * SIDE + at[None, :], source.load([0, 0]))\n"
    )
    request = dataclasses.replace(
        make_request(text=text),
        entry="kf_descriptor",
        signature=(("source", "tensordesc<fp16[64,64]>"), ("target", "*fp16")),
        constexprs=(("SIDE", 64),),
        attributes=(),
    )
    made = Artifact.from_payload(back_half(front_half(request)).to_payload())
    (layout,) = made.metadata.tensor_descriptors()
    assert layout["block_size"] == (64, 64) and layout["elem_size"] == 2


def test_the_minimum_driver_follows_the_assembler() -> None:
    """A cubin needs its toolkit's major release, and a driver that knows the architecture."""
    modern = (parse_version(triton_version()) or (0, 0)) >= (3, 9)
    assert minimum_driver(Target.parse("sm_90")) == (13000 if modern else 12000)
    assert minimum_driver(Target.parse("sm_100")) == (13000 if modern else 12080)
    assert minimum_driver(Target.parse("gfx942")) == 0


def test_warming_up_is_harmless() -> None:
    """Loading the compiler ahead of the first fork starts no thread."""
    before = len(os.listdir("/proc/self/task"))
    warm_up(Target.parse("sm_90"))
    assert len(os.listdir("/proc/self/task")) == before
