"""The front half: what TTIR holds, what it does not, and what stays on the machine."""

from __future__ import annotations

import dataclasses
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelfarm.compiler.seam.errors import FrontHalfError
from kernelfarm.compiler.seam.front import front_half, front_half_jit, load_kernel
from kernelfarm.compiler.seam.request import CompileRequest, SourceRequest

MakeRequest = Callable[..., SourceRequest]

ARCHS = ["sm_90", "sm_100", "gfx942"]


def from_jit(request: SourceRequest, fn: Any) -> CompileRequest:
    """Run a JIT function through the front half with a request's other fields."""
    return front_half_jit(
        fn,
        request.signature,
        request.constexprs,
        request.attributes,
        request.options,
        request.target,
        request.toolchain,
    )


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("entry", ["kf_pointwise", "kf_reduction"])
def test_ordinary_kernels_have_no_locations(
    make_request: MakeRequest, entry: str, arch: str
) -> None:
    """The text holds no path, file name or line, keeps the kernel's name, and may be shared."""
    made = front_half(make_request(entry, arch))
    assert not re.search(r"\bloc\(|#loc|kernelfarm|\.py|/", made.ttir)
    assert f"tt.func public @{entry}(" in made.ttir
    assert made.entry == entry
    assert not made.local


def test_where_a_kernel_was_written_does_not_matter(make_request: MakeRequest) -> None:
    """Blank lines and comments above the kernel give the same TTIR, hence the same kernel key."""
    plain = make_request()
    moved = dataclasses.replace(plain, text="# elsewhere\n\n\n" + plain.text)
    assert front_half(plain) == front_half(moved)
    assert plain.key_parts() != moved.key_parts()


def test_the_arguments_reach_the_text(make_request: MakeRequest) -> None:
    """Alignment, constants and types are in the TTIR: that is why it can be the key."""
    request = make_request()
    text = front_half(request).ttir
    assert text.count("tt.divisibility = 16") == 2
    unaligned = dataclasses.replace(request, attributes=())
    assert "tt.divisibility" not in front_half(unaligned).ttir
    wider = dataclasses.replace(request, constexprs=(("BLOCK", 256),))
    assert "tensor<256xf32>" in front_half(wider).ttir
    implied = dataclasses.replace(request, signature=request.signature[:3])
    assert front_half(implied).ttir == text


@pytest.mark.parametrize(
    ("entry", "options"),
    [
        ("kf_asserting", {"debug": True}),
        ("kf_pointwise", {"debug": True}),
        ("kf_pointwise", {"debug": True, "sanitize_overflow": True}),
    ],
)
def test_kernels_whose_meaning_includes_locations_stay_local(
    make_request: MakeRequest, entry: str, options: dict[str, bool]
) -> None:
    """Debug, device asserts and overflow checks keep the full text, are keyed by it, and local."""
    request = make_request(entry, **options)
    made = front_half(request)
    assert made.local
    assert "loc(" in made.ttir and f"<kernelfarm {entry}>" in made.ttir
    moved = front_half(dataclasses.replace(request, text="\n\n" + request.text))
    assert dict(moved.key_parts())["ttir"] != dict(made.key_parts())["ttir"]


def test_device_asserts_outside_debug_are_no_reason_to_stay(make_request: MakeRequest) -> None:
    """Without debug an assert leaves no trace, nor do overflow checks, so the kernel is shared."""
    made = front_half(make_request("kf_asserting", sanitize_overflow=True))
    assert not made.local and "loc(" not in made.ttir


def test_line_info_stays_local_and_keeps_locations(make_request: MakeRequest) -> None:
    """Who asks for line info gets it, under another key, on this machine only."""
    made = front_half(make_request(environ={"TRITON_DISABLE_LINE_INFO": "0"}))
    assert made.local and "loc(" in made.ttir
    assert ("env.TRITON_DISABLE_LINE_INFO", b"0") in made.key_parts()


def test_overriding_environments_make_requests_local(make_request: MakeRequest) -> None:
    """A toolchain that reads files beside the compiler passes its locality on."""
    assert front_half(make_request(environ={"TRITON_KERNEL_OVERRIDE": "1"})).local


def test_a_users_function_goes_through_the_same_half(make_request: MakeRequest) -> None:
    """A JIT function gives the very TTIR that its text gives."""
    request = make_request()
    fn = load_kernel(request.text, request.entry)
    assert from_jit(request, fn) == front_half(request)


@pytest.mark.parametrize(
    ("text", "stage", "said"),
    [
        ("@triton.jit\ndef kf_pointwise(:\n", "text", "SyntaxError"),
        ("@triton.jit\ndef other(a):\n    pass\n", "text", "kf_pointwise"),
        (
            "@triton.jit\ndef kf_pointwise(source, target, n, BLOCK: tl.constexpr):\n"
            "    tl.store(target, no_such_name)\n",
            "ttir",
            "no_such_name",
        ),
        (
            "@triton.jit\ndef kf_pointwise(source, target, n):\n    tl.store(target, 1.0)\n",
            "ttir",
            "BLOCK",
        ),
        (
            "@triton.jit\ndef kf_pointwise(source, target, n, BLOCK, more):\n    return\n",
            "ttir",
            "more",
        ),
    ],
)
def test_a_kernel_that_does_not_compile_is_named(
    make_request: MakeRequest, text: str, stage: str, said: str
) -> None:
    """The error names the kernel and the step and holds the compiler's own account."""
    with pytest.raises(FrontHalfError) as caught:
        front_half(make_request(text=text))
    assert caught.value.kernel == "kf_pointwise"
    assert caught.value.stage == stage
    assert said in caught.value.log


def test_text_for_other_helpers_is_refused(make_request: MakeRequest) -> None:
    """Text emitted for another version of our device helpers would mean something else here."""
    with pytest.raises(FrontHalfError, match="same kernelfarm"):
        front_half(dataclasses.replace(make_request(), helper_digest="0" * 64))


def test_the_interpreter_is_refused(
    make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With TRITON_INTERPRET set there are no JIT functions to compile; the error says so."""
    request = make_request()
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(FrontHalfError, match="unset it"):
        front_half(request)


def test_nothing_is_written(
    make_request: MakeRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The front half leaves no file: not in Triton's cache, not in the temporary directory."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    front_half(make_request())
    assert os.listdir(tmp_path) == ["tmp"] and os.listdir(temporary) == []
