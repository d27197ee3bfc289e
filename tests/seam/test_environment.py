"""Which environment variables reach a key, and in which form."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelfarm.compiler.seam.environment import (
    codegen_environment,
    codegen_variables,
    files_named,
    is_local,
    names_relative_files,
)

PLAIN = {"TRITON_DISABLE_LINE_INFO": "1"}


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {
            "PATH": "/bin",
            "HOME": "/h",
            "CUDA_VISIBLE_DEVICES": "3",
            "RANK": "7",
            "MASTER_PORT": "1",
        },
        {"TRITON_CACHE_DIR": "/x", "TRITON_HOME": "/y", "TRITON_CACHE_MANAGER": "m:C"},
        {"TRITON_PRINT_AUTOTUNING": "1", "LLVM_SYMBOLIZER_PATH": "/usr/bin/s"},
        {"DISABLE_PTXAS_OPT": "0", "TRITON_DEBUG": "false", "MLIR_ENABLE_DUMP": "Off"},
        {"AMDGCN_USE_BUFFER_OPS": "1"},
        {"TRITON_DISABLE_LINE_INFO": "1"},
    ],
)
def test_what_changes_no_code_changes_no_key(environ: dict[str, str]) -> None:
    """Irrelevant variables, and relevant ones at their default, leave the key as it is."""
    assert codegen_variables(environ) == PLAIN


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("PTXAS_OPTIONS", "-O1", "-O1"),
        ("DISABLE_PTXAS_OPT", "TRUE", "1"),
        ("DISABLE_LLVM_OPT", "licm,gvn", "licm,gvn"),
        ("AMDGCN_USE_BUFFER_OPS", "off", "0"),
        ("AMDGCN_SCALARIZE_PACKED_FOPS", "1", "1"),
        ("TRITON_F32_DEFAULT", "ieee", "ieee"),
        ("TRITON_NOBODY_KNOWS_THIS", "1", "1"),
        ("MLIR_FUTURE_SWITCH", "on", "on"),
        ("ENABLE_SOMETHING", "", ""),
    ],
)
def test_what_may_change_code_is_in_the_key(name: str, value: str, expected: str) -> None:
    """Known switches enter in one spelling; unknown ones of a compiler's prefix as they are."""
    assert codegen_variables({name: value}) == dict(sorted({**PLAIN, name: expected}.items()))


def test_paths_do_not_enter_a_key_but_reach_the_zygote() -> None:
    """A variable that names a file counts by content elsewhere; the zygote still needs the path."""
    environ = {"TRITON_PTXAS_PATH": "/opt/ptxas", "PTXAS_OPTIONS": "-O2", "LANG": "C"}
    assert "TRITON_PTXAS_PATH" not in codegen_variables(environ)
    assert codegen_environment(environ) == {
        "PTXAS_OPTIONS": "-O2",
        "TRITON_DEFAULT_FP_FUSION": "1",
        "TRITON_DISABLE_LINE_INFO": "1",
        "TRITON_PTXAS_PATH": "/opt/ptxas",
    }


NAMES = [
    "TRITON_DISABLE_LINE_INFO",
    "TRITON_KERNEL_OVERRIDE",
    "TRITON_SWAP_MIR",
    "TRITON_PTXAS_PATH",
    "TRITON_NOBODY_KNOWS_THIS",
    "AMDGCN_USE_BUFFER_OPS",
    "DISABLE_LLVM_OPT",
    "PTXAS_OPTIONS",
    "TRITON_CACHE_DIR",
    "RANK",
]
VALUES = ["", "0", "1", "on", "OFF", " true ", "False", "/x/y", "licm,gvn"]


@given(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES)))
def test_a_zygote_keys_as_its_client_does(environ: dict[str, str]) -> None:
    """Whatever the client has set, a process started with its zygote's environment agrees."""
    zygote = codegen_environment(environ)
    assert codegen_variables(zygote) == codegen_variables(environ)
    assert is_local(zygote) == is_local(environ)
    assert codegen_environment(zygote) == zygote
    assert not names_relative_files(zygote)


def test_a_tool_named_without_a_path_is_the_one_that_would_run(tmp_path: Path) -> None:
    """A bare name is looked up in PATH, a relative one from here; the zygote gets the result."""
    tool = tmp_path / "ptxas"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    bare = {"TRITON_PTXAS_PATH": "ptxas", "PATH": str(tmp_path)}
    assert files_named("TRITON_PTXAS_PATH", bare) == (str(tool),)
    assert codegen_environment(bare)["TRITON_PTXAS_PATH"] == str(tool)
    relative = {"TRITON_PTXAS_PATH": os.path.relpath(tool)}
    assert files_named("TRITON_PTXAS_PATH", relative) == (str(tool),)
    assert names_relative_files(bare) and names_relative_files(relative)
    assert not names_relative_files({"TRITON_PTXAS_PATH": str(tool)})
    assert files_named("TRITON_PTXAS_PATH", {"TRITON_PTXAS_PATH": ""}) == ()


def test_line_info_is_off_unless_it_was_asked_for() -> None:
    """Leaving the variable alone means no line info and shared; an explicit false means local."""
    assert codegen_variables({})["TRITON_DISABLE_LINE_INFO"] == "1"
    assert not is_local({}) and not is_local({"TRITON_DISABLE_LINE_INFO": "1"})
    asked = {"TRITON_DISABLE_LINE_INFO": "0"}
    assert codegen_variables(asked)["TRITON_DISABLE_LINE_INFO"] == "0"
    assert codegen_environment(asked)["TRITON_DISABLE_LINE_INFO"] == "0"
    assert is_local(asked)


@pytest.mark.parametrize(
    ("name", "value", "local"),
    [
        ("TRITON_KERNEL_OVERRIDE", "1", True),
        ("TRITON_KERNEL_OVERRIDE", "0", False),
        ("TRITON_ALWAYS_COMPILE", "true", True),
        ("TRITON_SWAP_MIR", "/some/dir", True),
        ("PTXAS_OPTIONS", "-O1", False),
    ],
)
def test_overrides_keep_results_on_the_machine(name: str, value: str, local: bool) -> None:
    """A switch that brings in files beside the compiler makes everything local."""
    assert is_local({name: value}) is local
