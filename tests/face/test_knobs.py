"""The table of settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelfarm.errors import KnobError
from kernelfarm.knobs import Knobs, resolve, table


def write(folder: Path, text: str) -> Path:
    """Write a pyproject.toml with a [tool.kernelfarm] table."""
    (folder / "pyproject.toml").write_text(f"[tool.kernelfarm]\n{text}\n")
    return folder


def test_argument_beats_environment_beats_file_beats_default(tmp_path):
    """Each source of a setting gives way to the one before it, and the origin says which won."""
    folder = write(tmp_path, 'identity = "release"\nstore = "/from/file"\nfarm = false')
    environ = {"KERNELFARM_STORE": "/from/environment", "KERNELFARM_FARM": "1"}
    knobs = resolve({"store": "/from/argument"}, environ=environ, directory=folder)
    assert knobs.store == Path("/from/argument")
    assert (knobs.farm, knobs.identity, knobs.strict) == (True, "release", False)
    assert knobs.origins["store"] == "argument"
    assert knobs.origins["farm"] == "environment variable KERNELFARM_FARM"
    assert knobs.origins["identity"] == f"[tool.kernelfarm] in {folder / 'pyproject.toml'}"
    assert knobs.origins["strict"] == "default"


def test_an_argument_of_none_is_not_given(tmp_path):
    """None passes on to the next source."""
    environ = {"KERNELFARM_TARGET": "h200"}
    assert resolve({"target": None}, environ=environ, directory=tmp_path).target == "h200"


def test_the_nearest_file_above_the_directory_is_read(tmp_path):
    """Settings are found from a folder below the project's."""
    inner = write(tmp_path, "strict = true") / "a" / "b"
    inner.mkdir(parents=True)
    assert resolve(environ={}, directory=inner).strict is True


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FARM", "maybe"),
        ("STORE_BYTES", "-1"),
        ("STORE_BYTES", "many"),
        ("IDENTITY", "guess"),
        ("WAIT_SECONDS", "0"),
        ("WAIT_SECONDS", "nan"),
    ],
)
def test_a_bad_value_names_the_setting_its_origin_and_what_is_allowed(tmp_path, name, value):
    """A value that a setting cannot have is a KnobError that says where it stands."""
    with pytest.raises(KnobError) as caught:
        resolve(environ={f"KERNELFARM_{name}": value}, directory=tmp_path)
    assert f"KERNELFARM_{name}" in str(caught.value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(("text", "size"), [("4096", 4096), ("2GiB", 2 << 30), ("1.", None)])
def test_sizes_are_read_with_units(tmp_path, text, size):
    """Bytes may be written plainly or with a binary unit, and nothing else."""
    environ = {"KERNELFARM_STORE_BYTES": text}
    if size is None:
        with pytest.raises(KnobError):
            resolve(environ=environ, directory=tmp_path)
    else:
        assert resolve(environ=environ, directory=tmp_path).store_bytes == size


def test_an_unknown_variable_is_told_with_the_nearest_name(tmp_path):
    """A misspelt setting has no effect and says so, with the one that was probably meant."""
    said: list[str] = []
    write(tmp_path, "stirct = true")
    resolve(environ={"KERNELFARM_STROE": "/x"}, directory=tmp_path, notice=said.append)
    assert len(said) == 2
    assert "KERNELFARM_STROE" in said[0]
    assert "KERNELFARM_STORE" in said[0]
    assert "did you mean strict" in said[1]


def test_an_unknown_argument_is_an_error_with_the_nearest_name(tmp_path):
    """A misspelt option of torch.compile is refused."""
    with pytest.raises(KnobError, match="did you mean target"):
        resolve({"taget": "h200"}, environ={}, directory=tmp_path)


def test_a_broken_file_counts_as_absent(tmp_path):
    """A pyproject.toml that is no TOML, or whose table is none, changes nothing."""
    (tmp_path / "pyproject.toml").write_text("= no toml")
    assert resolve(environ={}, directory=tmp_path) == Knobs()
    (tmp_path / "pyproject.toml").write_text("tool = 3")
    assert resolve(environ={}, directory=tmp_path) == Knobs()


def test_only_knobs_that_change_code_are_in_the_key(tmp_path):
    """Two processes whose settings differ in what does not change code share their graphs."""
    plain = resolve(environ={}, directory=tmp_path)
    other = resolve({"store": "/x", "strict": True, "farm": False}, environ={}, directory=tmp_path)
    assert plain.key_parts() == other.key_parts()
    changing = {knob.name for knob in table() if knob.metadata["changes_code"]}
    assert {name.removeprefix("knob.") for name, _ in plain.key_parts()} == changing
    interpreted = resolve({"interpret": True}, environ={}, directory=tmp_path)
    assert interpreted.key_parts() != plain.key_parts()


def test_every_knob_says_what_it_means():
    """The table documents itself, so that doctor can print it."""
    assert all(knob.metadata["doc"] for knob in table())
