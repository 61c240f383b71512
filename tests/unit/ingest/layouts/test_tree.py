"""Looking at one tree again and again: what belongs to which step, and whether a later one has begun."""

import os
import time
from pathlib import Path

from ingest.layouts.base import Beginning, Listing
from ingest.layouts.detect import find_dump
from workers.model import StepKey

_FILE = "Add.a.1.1.1722484800151657"


def _make(root: Path, *paths: str, age_s: float = 100.0) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"x")
    then = time.time() - age_s
    for directory, _, _ in os.walk(root, topdown=False):
        os.utime(directory, (then, then))


def _listings(root: Path, known: dict[StepKey, Listing] | None = None) -> dict[StepKey, Listing]:
    return {listing.key: listing for listing in find_dump(root).scan(known or {}).listings}


def test_run_files_stay_the_same_however_often_they_are_looked_at(tmp_path: Path) -> None:
    """Constants have a place of their own, graphs stand beside it: each is listed once, by every look."""
    _make(tmp_path, "rank_0/Net/0/constants/c.npy", "rank_0/graphs/g.ir", f"rank_0/Net/0/1/{_FILE}")
    first = seen = _listings(tmp_path)
    for _ in range(3):
        seen = _listings(tmp_path, seen)
        assert {key: listing.files for key, listing in seen.items()} == {
            key: listing.files for key, listing in first.items()
        }
    assert [file.path for file in seen[StepKey(0, None)].files] == [
        "rank_0/Net/0/constants/c.npy",
        "rank_0/graphs/g.ir",
    ]


def test_two_devices_that_would_be_one_rank_are_not_mixed(tmp_path: Path) -> None:
    """A map that names only some devices may give one of them the number of another."""
    _make(tmp_path, *(f"20260101000000/{device}/Net/1/1/{_FILE}" for device in (0, 1, 8)))
    dump = find_dump(tmp_path, rank_map={0: 8})
    known: dict[StepKey, Listing] = {}
    for _ in range(3):
        known = {listing.key: listing for listing in dump.scan(known).listings}
        (problem,) = known[StepKey(8, 1)].problems
        assert problem.denied
        assert problem.reason == "devices 0 and 8 would both be rank 8"
    assert not known[StepKey(1, 1)].problems


def test_links_in_directories_that_are_not_the_dumps_are_no_problem_of_it(tmp_path: Path) -> None:
    """A root may hold more than a dump."""
    _make(tmp_path, f"rank_0/Net/0/1/{_FILE}", "logs/log.txt")
    (tmp_path / "logs" / "latest").symlink_to("log.txt")
    assert set(_listings(tmp_path)) == {StepKey(0, 1)}
    (tmp_path / "latest").symlink_to("logs")
    assert [problem.path for problem in _listings(tmp_path)[StepKey(0, None)].problems] == ["latest"]


def test_graphs_beside_the_iterations_of_a_device_are_run_files(tmp_path: Path) -> None:
    for path in (
        "Net/device_3/iteration_8/" + "w_output_0_shape_2_Float32_DefaultFormat.bin",
        "Net/device_3/graphs/graph.ir",
    ):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_bytes(b"")
    listings = {listing.key: listing for listing in find_dump(tmp_path).scan({}).listings}
    assert [file.path for file in listings[StepKey(3, None)].files] == ["Net/device_3/graphs/graph.ir"]


def test_beginning_is_what_comes_first_and_what_is_known(tmp_path: Path) -> None:
    _make(tmp_path, *(f"rank_0/Net/0/{step}/{_FILE}" for step in range(5)), "rank_0/graphs/g.ir")
    tree = find_dump(tmp_path)
    scan = tree.scan({}, beginning=Beginning(2))
    assert [listing.key.step for listing in scan.listings] == [None, 0, 1]
    assert {key.step for key in scan.unlisted} == {2, 3, 4}
    known = {listing.key: listing for listing in scan.listings}
    scan = tree.scan(known, beginning=Beginning(1, newest_first=True))
    assert {key.step for key in scan.unlisted} == {2, 3}
