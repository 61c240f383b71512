"""Listings of places: which files, when again, and how two become one."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ingest.layouts.base import Listing, Place
from ingest.layouts.mindspore import MindSpore
from ingest.layouts.walk import aged, files_by_place, list_places
from workers.model import StepKey

PLACES = ("rank_0/Net/0/8", "rank_0/Net/1/8")
KEY = StepKey(0, 8)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A dump of two graphs that has been quiet for a while."""
    for place in PLACES:
        (tmp_path / place / "sub").mkdir(parents=True)
        (tmp_path / place / "sub" / "b.npy").write_bytes(b"12")
        (tmp_path / place / "a.npy").write_bytes(b"1")
    then = time.time() - 100
    for directory, _, _ in os.walk(tmp_path):
        os.utime(directory, (then, then))
    return tmp_path


def listing_of(
    root: Path, places: Sequence[str] = PLACES, known: Listing | None = None, key: StepKey = KEY
) -> Listing:
    found = [Place(MindSpore(), path, {}) for path in places]
    return list_places(root, key, found, without=PLACES, rank_from="path", later_begun=False, known=known)


def test_directories_that_did_not_change_are_not_listed_again(root: Path) -> None:
    first = listing_of(root)
    (root / PLACES[0] / "a.npy").write_bytes(b"grown")  # which a directory does not show
    assert listing_of(root, known=first).files is first.files


def test_a_listing_ages_however_long_its_files_have_been_quiet(root: Path) -> None:
    """A file that is written in place leaves no trace in its directory."""
    first = listing_of(root)
    second = replace(first, listed_at=first.listed_at - 5)
    assert aged([first, second], first.listed_at + 54) == []
    assert aged([first, second], first.listed_at + 56) == [second]
    assert aged([first, second], first.listed_at + 61) == [second, first]
    assert aged([first], first.listed_at - 1) == [first]  # the clock was set back


def test_files_of_nested_places_belong_to_the_inner_one(root: Path) -> None:
    listing = listing_of(root, ["rank_0/Net/0", PLACES[0]])
    assert len(listing.files) == 2
    by_place = files_by_place(listing)
    assert by_place["rank_0/Net/0"] == []
    assert [file.path for file in by_place[PLACES[0]]] == [f"{PLACES[0]}/a.npy", f"{PLACES[0]}/sub/b.npy"]
