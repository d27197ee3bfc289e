"""The identity of an installed compiler."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernelfarm.compiler.seam import installation, toolchain
from kernelfarm.compiler.seam.errors import RecordMismatch, TritonMissing
from kernelfarm.compiler.seam.target import Target
from kernelfarm.compiler.seam.toolchain import Toolchain, current_toolchain

H100, B200, MI300X = (Target.parse(text) for text in ("sm_90", "sm_100", "gfx942"))


class FakeTriton:
    """A tiny tree that looks like an installed triton of some version."""

    def __init__(self, site: Path, version: str, libtriton: bytes = b"lib for 3.11") -> None:
        self.root = site / "triton"
        self.record = site / f"triton-{version}.dist-info" / "RECORD"
        files = {
            "__init__.py": f"__version__ = '{version}'\n".encode(),
            "compiler/code_generator.py": b"generate",
            "_C/libtriton.so": libtriton,
            "_C/libproton.so": b"profiler",
            "profiler/hook.py": b"profile",
            "backends/nvidia/compiler.py": b"nvidia",
            "backends/nvidia/bin/ptxas": b"ptxas 12.8",
            "backends/nvidia/bin/ptxas-blackwell": b"ptxas 12.9",
            "backends/nvidia/lib/libdevice.10.bc": b"libdevice",
            "backends/amd/compiler.py": b"amd",
        }
        for name, content in files.items():
            self.write(name, content)
        self.publish()

    def write(self, name: str, content: bytes) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def publish(self) -> None:
        """Write a RECORD that matches the files as they are."""
        self.record.parent.mkdir(exist_ok=True)
        rows = []
        for path in sorted(self.root.rglob("*")):
            if path.is_file():
                digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest())
                name = path.relative_to(self.root.parent).as_posix()
                rows.append(f"{name},sha256={digest.rstrip(b'=').decode()},{path.stat().st_size}")
        rows.append(f"{self.record.parent.name}/RECORD,,")
        self.record.write_text("\n".join(rows) + "\n")


class Identify:
    """Identifies fake installations, each time as a new process would."""

    def __init__(self, patch: pytest.MonkeyPatch, memo: Path) -> None:
        self._patch = patch
        self._memo = memo
        self._runs = 0

    def __call__(
        self,
        fake: FakeTriton,
        target: Target = H100,
        identity: str = "content",
        environ: dict[str, str] | None = None,
    ) -> Toolchain:
        self._patch.setattr(toolchain, "triton_root", lambda: fake.root)
        installation._version_text.cache_clear()
        toolchain._compiler_digest.cache_clear()
        toolchain._release_digest.cache_clear()
        self._runs += 1
        memo = self._memo / str(self._runs)
        return current_toolchain(target, identity, environ or {}, memo_dir=memo)  # type: ignore[arg-type]


@pytest.fixture
def identify(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Identify:
    """A way to identify fake installations without any memo."""
    return Identify(monkeypatch, tmp_path / "memos")


@pytest.mark.parametrize(
    "name",
    [
        "__init__.py",
        "compiler/code_generator.py",
        "_C/libtriton.so",
        "backends/nvidia/compiler.py",
        "backends/nvidia/lib/libdevice.10.bc",
        "language/new_file.py",
        "backends/nvidia/bin/ptxas",
    ],
)
def test_every_file_that_a_compile_reads_is_in_the_content(
    tmp_path: Path, identify: Identify, name: str
) -> None:
    """Changing or adding one compiler file changes the identity and nothing but it."""
    fake = FakeTriton(tmp_path, "3.6.0")
    before = identify(fake)
    fake.write(name, b"__version__ = '3.6.0'\n# patched")
    changed = [part for part, _, _ in before.differences(identify(fake))]
    assert changed == (["toolchain.ptxas"] if name.endswith("ptxas") else ["toolchain.triton"])


@pytest.mark.parametrize("name", ["profiler/hook.py", "_C/libproton.so", "__pycache__/x.py"])
def test_files_that_no_compile_reads_are_left_out(
    tmp_path: Path, identify: Identify, name: str
) -> None:
    """A profiler's file or a bytecode cache is no part of the identity."""
    fake = FakeTriton(tmp_path, "3.6.0")
    before = identify(fake)
    fake.write(name, b"changed")
    assert identify(fake) == before


def test_equal_files_elsewhere_are_equal(tmp_path: Path, identify: Identify) -> None:
    """No path enters the identity: two virtual environments with one wheel share."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two" / "deeper").mkdir(parents=True)
    first = identify(FakeTriton(tmp_path / "one", "3.6.0"))
    assert identify(FakeTriton(tmp_path / "two" / "deeper", "3.6.0")) == first


@pytest.mark.parametrize(
    ("version", "target", "names"),
    [
        ("3.6.0", H100, ["toolchain.ptxas"]),
        ("3.6.0", B200, ["toolchain.ptxas-blackwell"]),
        ("3.9.0", H100, ["toolchain.ptxas-blackwell"]),
        ("3.9.0", Target.parse("sm_80"), ["toolchain.ptxas"]),
        ("3.8.0", H100, ["toolchain.ptxas", "toolchain.ptxas-blackwell"]),
    ],
)
def test_the_assembler_that_is_really_used_counts(
    tmp_path: Path, identify: Identify, version: str, target: Target, names: list[str]
) -> None:
    """Which ptxas assembles depends on version and architecture; where unknown, both count."""
    parts = dict(identify(FakeTriton(tmp_path, version), target).parts)
    assert [name for name in parts if "ptxas" in name] == names


def test_an_override_of_ptxas_counts_by_its_bytes(tmp_path: Path, identify: Identify) -> None:
    """Another ptxas of one version, or a changed one, is another toolchain; its path is not."""
    fake = FakeTriton(tmp_path, "3.6.0")
    other, copy = tmp_path / "ptxas-a", tmp_path / "ptxas-b"
    other.write_bytes(b"ptxas 12.8 -O0")
    copy.write_bytes(b"ptxas 12.8 -O0")
    first = identify(fake, environ={"TRITON_PTXAS_PATH": str(other)})
    assert first != identify(fake)
    assert first == identify(fake, environ={"TRITON_PTXAS_PATH": str(copy)})
    other.write_bytes(b"ptxas 12.8 -O1")
    assert first != identify(fake, environ={"TRITON_PTXAS_PATH": str(other)})
    missing = identify(fake, environ={"TRITON_PTXAS_PATH": "/nonexistent"})
    assert dict(missing.parts)["toolchain.ptxas.override"] == "missing"


def test_amd_code_generators_count(tmp_path: Path, identify: Identify) -> None:
    """For AMD the code generator library counts where there is one, and an override does."""
    fake = FakeTriton(tmp_path, "3.9.0")
    bundled = identify(fake, MI300X)
    assert dict(bundled.parts)["toolchain.lld"] == "bundled"
    fake.write("backends/amd/lib/libtriton_amd_codegen.so", b"codegen")
    own = dict(identify(fake, MI300X).parts)["toolchain.lld"]
    assert own == hashlib.sha256(b"codegen").hexdigest()
    other = tmp_path / "other.so"
    other.write_bytes(b"other")
    overridden = identify(fake, MI300X, environ={"TRITON_AMD_CODEGEN_PATH": str(other)})
    assert dict(overridden.parts)["toolchain.lld"] == hashlib.sha256(b"other").hexdigest()


def test_plugins_count_by_content(tmp_path: Path, identify: Identify) -> None:
    """A pass plugin's bytes are a part; so are the files of a directory that is swapped in."""
    fake = FakeTriton(tmp_path, "3.6.0")
    plugin, mir = tmp_path / "plugin.so", tmp_path / "mir"
    plugin.write_bytes(b"one")
    mir.mkdir()
    (mir / "k.txt").write_bytes(b"code")
    environ = {"LLVM_PASS_PLUGIN_PATH": str(plugin), "TRITON_SWAP_MIR": str(mir)}
    before = identify(fake, MI300X, environ=environ)
    assert before.local
    plugin.write_bytes(b"two")
    (mir / "k.txt").write_bytes(b"other code")
    changed = [name for name, _, _ in before.differences(identify(fake, MI300X, environ=environ))]
    assert changed == ["toolchain.file.LLVM_PASS_PLUGIN_PATH", "toolchain.file.TRITON_SWAP_MIR"]


def test_release_is_equal_for_the_wheels_of_one_version(tmp_path: Path, identify: Identify) -> None:
    """Wheels for two Pythons differ in libtriton's bytes: one release, two contents."""
    for name in ("py311", "py312"):
        (tmp_path / name).mkdir()
    first = FakeTriton(tmp_path / "py311", "3.6.0", b"lib for 3.11")
    second = FakeTriton(tmp_path / "py312", "3.6.0", b"lib for 3.12")
    for target in (H100, MI300X):
        one, two = (identify(fake, target, "release") for fake in (first, second))
        assert one == two
        assert one.key_parts()[0] == ("toolchain.identity", b"release")
        assert identify(first, target) != identify(second, target)


def test_release_tells_builds_of_one_version_apart(tmp_path: Path, identify: Identify) -> None:
    """A private build that kept the version number, with its own RECORD, is another release."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    first, second = FakeTriton(tmp_path / "one", "3.6.0"), FakeTriton(tmp_path / "two", "3.6.0")
    second.write("compiler/code_generator.py", b"generate otherwise")
    second.publish()
    changed = identify(first, identity="release").differences(identify(second, identity="release"))
    assert [name for name, _, _ in changed] == ["toolchain.sources"]


@pytest.mark.parametrize("change", ["changed", "added", "removed", "no record"])
def test_release_refuses_an_installation_that_was_changed(
    tmp_path: Path, identify: Identify, change: str
) -> None:
    """A patched, extended or thinned out installation has no release identity; it says why."""
    fake = FakeTriton(tmp_path, "3.6.0")
    name = "compiler/code_generator.py"
    match change:
        case "changed":
            fake.write(name, b"patched")
        case "added":
            name = "compiler/extra.py"
            fake.write(name, b"more")
        case "removed":
            (fake.root / name).unlink()
        case "no record":
            name = ""
            fake.record.unlink()
    with pytest.raises(RecordMismatch) as caught:
        identify(fake, identity="release")
    assert caught.value.files == ((name,) if name else ())
    assert "identity 'content'" in str(caught.value)
    assert identify(fake).identity == "content"


def test_a_missing_triton_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without triton there is no toolchain, and the error says what to install."""
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(TritonMissing, match=r"install triton 3\.6 to 3\.9"):
        installation.triton_root()


def test_environment_variables_are_parts() -> None:
    """Two environments differ by a named part, which is what a report shows."""
    plain = current_toolchain(H100, environ={})
    tuned = current_toolchain(H100, environ={"PTXAS_OPTIONS": "-O1"})
    assert plain.differences(tuned) == (("env.PTXAS_OPTIONS", None, "-O1"),)
    assert plain == current_toolchain(H100, environ={"RANK": "3", "TRITON_HOME": "/x"})


def test_this_installation_matches_its_record() -> None:
    """The triton that the tests run with is as its wheel was."""
    release = current_toolchain(H100, "release", {})
    assert dict(release.parts)["toolchain.release"] == installation.triton_version()


def test_identifying_imports_neither_triton_nor_torch() -> None:
    """A process that only loads from the store pays for no compiler."""
    code = (
        "import sys\n"
        "from kernelfarm.compiler.seam.target import Target\n"
        "from kernelfarm.compiler.seam.toolchain import current_toolchain\n"
        "current_toolchain(Target.parse('sm_90'))\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('triton', 'torch', 'numpy')])\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environ, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_remembered_identity_costs_little() -> None:
    """With the memo on disk the whole identity takes far less than 50 ms in a new process."""
    current_toolchain(H100)
    best = 1.0
    for _ in range(5):
        toolchain._compiler_digest.cache_clear()
        toolchain._digests.cache_clear()
        started = time.perf_counter()
        current_toolchain(H100)
        best = min(best, time.perf_counter() - started)
    assert best < 0.05
