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


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a/..", "a\0b", "/"])
def test_no_path_leaves_its_root(path: str) -> None:
    with pytest.raises(DumpError):
        paths.inside(Path("/dump"), path)
