"""The command line: what it prints, its exit status, and what it says about bad input."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from kernelfarm import cli, compose
from kernelfarm.cache.errors import NotWritable
from kernelfarm.notices import Notices

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run(monkeypatch, capsys, make_bench, tmp_path):
    """Run a command over a store in memory; returns status, stdout, stderr."""
    bench = make_bench()
    # A module that binds the name while it is replaced would keep the replacement for good.
    importlib.import_module("kernelfarm.warm")

    def build(knobs, notices=None, *, demand_store=False):
        return compose.World(knobs, notices or Notices(), bench.store, bench.farm)

    monkeypatch.setattr(compose, "compose", build)
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        try:
            status = cli.main(arguments)
        except SystemExit as error:  # argparse's own way out
            status = error.code
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def function_file(text: str) -> str:
    """Write model.py into the working directory."""
    Path("model.py").write_text(text)
    return "model.py:build"


def test_an_unknown_target_names_the_ones_that_are_supported(run):
    """A target that nothing supports is status 2 and a list of those that there are."""
    status, out, err = run("warm", "model.py:build", "--target", "h9000")
    assert (status, out) == (2, "")
    assert "h9000" in err
    assert "h200" in err
    assert "cuda:90" in err


def test_a_missing_file_is_named(run):
    """A file that is not there is status 2."""
    status, _, err = run("warm", "nowhere.py:build", "--target", "h200")
    assert status == 2
    assert "there is no file nowhere.py" in err


@pytest.mark.parametrize("text", ["model.py", ":build", "model.py:"])
def test_a_reference_that_is_none_shows_the_form(run, text):
    """FILE.py:FUNCTION without one of its halves is status 2 and an example."""
    status, _, err = run("warm", text, "--target", "h200")
    assert status == 2
    assert "examples/gpt2.py:infer" in err


def test_a_missing_function_names_those_that_the_file_has(run):
    """A function that the file does not define is status 2 and a list of its own functions."""
    function_file("from json import loads\ndef built(): pass\n")
    status, _, err = run("warm", "model.py:build", "--target", "h200")
    assert status == 2
    assert "no function 'build'" in err
    assert "built" in err
    assert "loads" not in err


def test_a_file_that_raises_shows_the_end_of_its_traceback(run):
    """An exception of the user's file is shown with its own frames and none of ours."""
    function_file("import not_a_module_of_anybody\n")
    status, _, err = run("warm", "model.py:build", "--target", "h200")
    assert status == 2
    assert "ModuleNotFoundError: No module named 'not_a_module_of_anybody'" in err
    assert "model.py" in err
    assert "kernelfarm/loading.py" not in err


@pytest.mark.parametrize(
    "text",
    [
        "import sys\ndef build(): sys.exit()",
        "import sys\ndef build(): sys.exit(0)",
        "import sys\nsys.exit(0)\ndef build(): pass",
        "class Own(BaseException): pass\ndef build(): raise Own",
        "def build(): raise GeneratorExit",
    ],
)
def test_a_function_that_ends_the_process_is_no_success(run, text):
    """sys.exit() in FUNCTION or its file is status 2 with a message, whatever status it names."""
    status, out, err = run("warm", function_file(text), "--target", "h200", "--json")
    assert (status, out) == (2, "")
    assert "model.py" in err
    assert "raised" in err


def test_what_the_function_prints_is_not_on_stdout(run):
    """With --json stdout holds one object or nothing; prints of the user's go to stderr."""
    file = function_file("print('at import')\ndef build():\n    print('called')\n    return 3")
    status, out, err = run("warm", file, "--target", "h200", "--json")
    assert (status, out) == (2, "")
    assert "at import" in err
    assert "called" in err


def test_a_failure_in_a_library_shows_the_line_that_led_there(run):
    """The traceback ends at the user's own line, and says that there are no values."""
    function_file("import torch\ndef build():\n    return torch.ones(3).sum().item(), ()")
    status, _, err = run("warm", "model.py:build", "--target", "h200")
    assert status == 2
    assert "return torch.ones(3).sum().item()" in err
    assert "site-packages" not in err
    assert "fake tensors" in err


def test_an_empty_store_argument_is_a_usage_error(run):
    """--store "$UNSET" is refused: it would mean the working directory."""
    function_file("def build(): pass")
    status, _, err = run("warm", "model.py:build", "--target", "h200", "--store", "")
    assert status == 2
    assert "--store" in err


def test_no_target_is_a_usage_error(run):
    """The target is never guessed."""
    status, _, err = run("warm", "model.py:build")
    assert status == 2
    assert "--target" in err


def test_the_help_lists_the_targets(run):
    """`warm --help` names architectures and device models."""
    status, out, _ = run("warm", "--help")
    assert status == 0
    assert "mi300x" in out
    assert "hip:gfx942" in out


def test_the_variable_names_the_target_where_the_command_does_not(run, monkeypatch):
    """KERNELFARM_TARGET is read as --target is."""
    monkeypatch.setenv("KERNELFARM_TARGET", "h9000")
    status, _, err = run("warm", "model.py:build")
    assert status == 2
    assert "h9000" in err
    assert "there is no file model.py" in run("warm", "model.py:build", "--target", "h200")[2]


def test_every_function_that_fails_is_named(run):
    """Each of several functions is tried, and a file that they share is imported once."""
    function_file("print('imported')\ndef build(): return 3\ndef other(): raise KeyError('x')\n")
    names = ("model.py:build", "model.py:absent", "model.py:other")
    status, out, err = run("warm", *names, "--target", "h200", "--json")
    assert (status, out) == (2, "")
    assert err.count("imported") == 1
    assert "module_or_callable" in err
    assert "no function 'absent'" in err
    assert "KeyError: 'x'" in err


def test_a_bad_setting_is_a_usage_error(run, monkeypatch):
    """A variable with a value that its setting cannot have is status 2 and named."""
    monkeypatch.setenv("KERNELFARM_FARM", "perhaps")
    function_file("def build(): pass\n")
    status, _, err = run("warm", "model.py:build", "--target", "h200")
    assert status == 2
    assert "KERNELFARM_FARM" in err


def test_a_store_that_cannot_be_used_is_a_usage_error(run, monkeypatch):
    """The store's own message reaches the person, without a traceback."""

    def refuse(*_, **__):
        raise NotWritable(Path("/nowhere"), "it cannot be written", "name another one")

    monkeypatch.setattr(compose, "compose", refuse)
    function_file("def build(): pass\n")
    status, _, err = run("warm", "model.py:build", "--target", "h200", "--store", "/nowhere")
    assert status == 2
    assert "/nowhere" in err
    assert "name another one" in err
    assert "Traceback" not in err


def test_doctor_prints_every_setting_and_its_origin(run, monkeypatch):
    """Doctor names each knob, its value and where that came from."""
    monkeypatch.setenv("KERNELFARM_TARGET", "h200")
    status, out, _ = run("doctor", "--json")
    found = json.loads(out)
    assert status == 0
    assert found["knobs"]["target"]["value"] == "h200"
    assert found["knobs"]["target"]["origin"] == "environment variable KERNELFARM_TARGET"
    assert found["knobs"]["strict"]["origin"] == "default"
    assert run("doctor")[0] == 0


@pytest.mark.slow
def test_importing_the_package_is_quick_and_imports_nothing_heavy():
    """`import kernelfarm` takes under 50 ms and loads neither torch nor Triton, Ray or rich."""
    program = (
        "import time, sys; began = time.perf_counter(); import kernelfarm; "
        "took = time.perf_counter() - began; import kernelfarm.compose, kernelfarm.cli; "
        "print([name for name in ('torch', 'triton', 'ray', 'rich') if name in sys.modules]); "
        "print(took)"
    )
    best = 1.0
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
        )
        heavy, took = done.stdout.splitlines()
        assert heavy == "[]"
        best = min(best, float(took))
    assert best < 0.05


@pytest.mark.slow
def test_the_backend_imports_code_generation_for_a_miss_only():
    """A warm start's import is without lowering, fusion and kernel text: half of the seconds."""
    program = (
        "import sys, kernelfarm.backend; there = sys.modules; "
        "parts = ('generate', 'lower', 'fuse', 'kernel', 'emit.kernel_text', 'pipeline'); "
        "print([name for name in parts if 'kernelfarm.compiler.' + name in there])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['pipeline']"


@pytest.mark.slow
@pytest.mark.parametrize("redirection", ["| true", ">&-", "<&- >&- 2>&-"])
def test_a_stdout_that_is_closed_or_not_read_is_no_error(redirection):
    """Nobody reading the result is no failure of the command, and leaves no traceback."""
    command = f"{sys.executable} -m kernelfarm doctor --json {redirection}"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_the_module_runs_as_the_command():
    """`python -m kernelfarm` is the command line."""
    done = subprocess.run(
        [sys.executable, "-m", "kernelfarm", "warm", "no.py:f", "--target", "h200"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "there is no file no.py" in done.stderr
