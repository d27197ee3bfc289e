"""What is installed: the face, the three folders behind its links, and no more."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("farm", "cache", "compiler")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A copy of the files that belong to the project, links included."""
    folder = tmp_path_factory.mktemp("checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        source, copy = ROOT / name, folder / name
        if source.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy, follow_symlinks=False)
    return folder


def build(checkout: Path, kind: str, out: Path) -> Path:
    """Build a wheel or an sdist as a front end would; needs setuptools, which pip fetches."""
    backend = pytest.importorskip("setuptools.build_meta")
    del backend
    program = f"import setuptools.build_meta as b; print(b.build_{kind}({str(out)!r}))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=checkout,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return out / done.stdout.strip().splitlines()[-1]


@pytest.mark.slow
def test_the_wheel_holds_the_three_folders_and_imports_them(checkout, tmp_path):
    """A wheel has the real files behind the links; all three folders import from it alone."""
    wheel = build(checkout, "wheel", tmp_path)
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(site)
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"kernelfarm"}
    assert "kernelfarm/py.typed" in names
    assert "kernelfarm/compiler/trace/shim.cpp" in names
    program = "import kernelfarm; " + "; ".join(
        f"import kernelfarm.{folder} as {folder}; print({folder}.__file__)" for folder in FOLDERS
    )
    done = subprocess.run(
        [sys.executable, "-c", program + "; import kernelfarm.cache.store, kernelfarm.service"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert all(line.startswith(str(site)) for line in done.stdout.splitlines())


@pytest.mark.slow
def test_the_source_archive_keeps_the_links_or_what_is_behind_them(checkout, tmp_path):
    """From an sdist, the same folders can be built again."""
    archive = build(checkout, "sdist", tmp_path)
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    wheel = build(unpacked, "wheel", tmp_path)
    with zipfile.ZipFile(wheel) as again:
        names = again.namelist()
    assert all(f"kernelfarm/{folder}/__init__.py" in names for folder in FOLDERS)


def test_the_entry_point_names_the_backend():
    """torch finds the backend by its entry point group."""
    text = (ROOT / "pyproject.toml").read_text()
    assert re.search(
        r'\[project.entry-points.torch_dynamo_backends\]\nkernelfarm = "kernelfarm.backend:', text
    )


def test_the_product_never_imports_inductor():
    """No module of the product names torch's own compiler."""
    found = [
        str(path.relative_to(ROOT))
        for folder in (*FOLDERS, "kernelfarm", "examples")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if re.search(r"torch\._inductor|from torch import _inductor", path.read_text())
    ]
    assert found == []


def test_records_are_never_unpickled_or_evaluated():
    """No module of the product unpickles, and none evaluates an expression out of text."""
    forbidden = re.compile(r"\bpickle\.loads?\b|\bsympify\(|(?<![\w.])eval\(|marshal\.loads?\b")
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for match in forbidden.finditer(path.read_text())
    ]
    assert found == []


def test_the_links_lead_to_the_folders():
    """The three links are committed as links, relative to the face."""
    for folder in FOLDERS:
        link = ROOT / "kernelfarm" / folder
        if link.is_symlink():  # an installed copy has folders
            assert link.readlink() == Path("..") / folder
