"""The collector of cycles pauses as long as any thread wants it to."""

import gc

import pytest

from workers.host.collections import collections_paused


def test_pauses_nest() -> None:
    with collections_paused():
        with collections_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_pause_ends_after_an_error() -> None:
    with pytest.raises(ValueError, match="stop"), collections_paused():
        raise ValueError("stop")
    assert gc.isenabled()


def test_what_was_off_stays_off() -> None:
    gc.disable()
    try:
        with collections_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
