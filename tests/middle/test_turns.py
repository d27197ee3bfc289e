"""What is set for the process while a graph is compiled is put back."""

from __future__ import annotations

import gc
import sys

import pytest

from kernelfarm.compiler.turns import no_collection, short_turns


def test_the_collector_rests_until_the_last_compilation_ends() -> None:
    """Nested or failing, compilations leave the collector as they found it."""
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), no_collection():
        with no_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise ZeroDivisionError
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    """A program that manages collection itself is not interfered with."""
    gc.disable()
    try:
        with no_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_turns_are_short_inside_only() -> None:
    """The switch interval is lowered while code is generated."""
    before = sys.getswitchinterval()
    with short_turns():
        assert sys.getswitchinterval() <= before
        assert sys.getswitchinterval() == pytest.approx(0.0001)
    assert sys.getswitchinterval() == before
