"""Paths survive the way through text, and none leaves the dump."""

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from workers.dump import paths
from workers.errors import DumpError

raw_names = st.binary(min_size=1, max_size=40).filter(lambda raw: b"\0" not in raw)


@given(raw_names)
@example(b"%")
@example(b"%25")
@example(b"%FF\xff")
@example(b"\xc3%A9\xc3\xa9")
@example("Grüße/层".encode())
def test_any_bytes_come_back_from_text(raw: bytes) -> None:
    """File names are bytes; columns of the index are Unicode."""
    path = os.fsdecode(raw)
    text = paths.to_text(path)
    text.encode("utf-8")
    assert os.fsencode(paths.from_text(text)) == raw


@given(raw_names, raw_names)
def test_different_paths_have_different_texts(one: bytes, other: bytes) -> None:
    same = paths.to_text(os.fsdecode(one)) == paths.to_text(os.fsdecode(other))
    assert same == (one == other)


def test_names_with_half_a_surrogate_pair_become_text() -> None:
    """JSON and pickles may hold them, and paths do not."""
    assert paths.to_text("a\ud800b\udfff") == "a%ED%A0%80b%ED%BF%BF"


@pytest.mark.parametrize("path", ["rank_0/Net/0/1/Conv2D.Default_网络-op0.npy", "a b", "grüße"])
def test_ordinary_paths_are_left_alone(path: str) -> None:
    assert paths.to_text(path) == path


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a/..", "a\0b", "/"])
def test_no_path_leaves_its_root(path: str) -> None:
    with pytest.raises(DumpError):
        paths.inside(Path("/dump"), path)


def test_path_below_the_root_is_joined() -> None:
    assert paths.inside(Path("/dump"), "rank_0/a..b/c") == Path("/dump/rank_0/a..b/c")
