"""Looking at one tree again and again."""

import errno
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from docs import tables
from ingest.layouts.base import MESH_FIELDS, Beginning, Layout, Listing, Place, System
from ingest.layouts.detect import LAYOUTS, find_dump
from ingest.layouts.mindspore import MINDSPORE
from ingest.layouts.walk import aged, files_by_place, list_places, read_small
from tests.stores import MadeDump, listings, npy_bytes, tensor_name
from workers.model import StepKey
from workers.rules.ready import READY

# Looking at one tree again and again: what belongs to which step, and whether a later one has begun.


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


# Directories are listed to the last regular file, and nothing leads out of them.


def test_links_and_pipes_are_named_and_not_followed(made: MadeDump) -> None:
    made.add(b"", tensor_name())
    directory = made.directory()
    (directory / "link.npy").symlink_to("/etc/passwd")
    (directory / "tree").symlink_to("/etc", target_is_directory=True)
    os.mkfifo(directory / "pipe")
    listing = listings(made.root)[StepKey(0, 0)]
    assert len(listing.files) == 1
    assert [(Path(problem.path).name, problem.reason.split(";")[0]) for problem in listing.problems] == [
        ("link.npy", "is a symbolic link"),
        ("pipe", "is not a regular file"),
        ("tree", "is a symbolic link"),
    ]


class StaleEntry:
    """An entry of a directory whose kind the file system did not tell, and that cannot be examined."""

    def __init__(self, entry: os.DirEntry[str]) -> None:
        self.name, self.path = entry.name, entry.path

    def is_dir(self, **_: bool) -> NoReturn:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), self.path)

    stat = is_dir


@pytest.mark.parametrize("stale", ["rank_1", "Net", "1", "a.npy"])
def test_an_entry_that_cannot_be_examined_is_named_and_left_out(
    stale: str, made: MadeDump, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS answers so for a file or directory that was replaced on another host."""
    for rank in range(2):
        for step in range(2):
            made.add(b"", rank=rank, step=step)
            made.add(b"", "a.npy", rank=rank, step=step)
    scandir = os.scandir

    @contextmanager
    def listed(directory: Any) -> Iterator[Iterator[Any]]:
        with scandir(directory) as entries:
            yield (
                StaleEntry(entry) if entry.name == stale and "rank_0" not in entry.path else entry
                for entry in entries
            )

    monkeypatch.setattr(os, "scandir", listed)
    scan = find_dump(made.root).scan({})
    assert {StepKey(0, 0), StepKey(0, 1)} <= {listing.key for listing in scan.listings}
    problems = [*scan.problems, *(problem for listing in scan.listings for problem in listing.problems)]
    assert {(Path(problem.path).name, problem.reason) for problem in problems} == {
        (stale, "cannot be examined: Stale file handle")
    }


def test_deep_directories_do_not_exhaust_the_stack(made: MadeDump) -> None:
    """A few kilobytes of nested directories must not end the service."""
    made.add(b"")
    fd = os.open(made.directory(), os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    try:
        assert len(listings(made.root)[StepKey(0, 0)].files) == 1
    finally:  # shutil would exhaust the stack as well
        subprocess.run(["rm", "-r", str(made.root)], check=True)


def test_small_file_is_read_and_nothing_else(tmp_path: Path) -> None:
    """A link could lead out of the dump, and a pipe would wait for ever."""
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    assert read_small(tmp_path / "file") == b"content"
    assert [read_small(tmp_path / name) for name in ("link", "pipe", "missing", ".")] == [None] * 4


# Listings of places: which files, when again, and how two become one.


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
    found = [Place(MINDSPORE, path, {}) for path in places]
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


# Devices and processes that would be one rank: nothing of that rank is ingested.


_BIN = "Add.a.1.1.1722484800151657"
_SGLANG = "step=0___rank=0___dump_index=1___name=x.pt"


def _listed(root: Path, *paths: str) -> dict[StepKey, Listing]:
    _make(root, *paths)
    return {listing.key: listing for listing in find_dump(root).scan({}).listings}


def test_two_devices_are_not_one_rank(tmp_path: Path) -> None:
    """A map that names only some devices may give one of them the number of another."""
    _listed(tmp_path, *(f"20260101000000/{device}/Net/1/1/{_BIN}" for device in (0, 1, 8)))
    listings = {listing.key: listing for listing in find_dump(tmp_path, rank_map={0: 8}).scan({}).listings}
    (problem,) = listings[StepKey(8, 1)].problems
    assert problem.denied
    assert problem.reason == "devices 0 and 8 would both be rank 8"
    assert not listings[StepKey(1, 1)].problems


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (f"dump_20260101_000000_000000/{_SGLANG}", f"dump_20260102_000000_000000/{_SGLANG}"),
        (
            "sglang_dump_1.5/forward_pass_id=1___rank=0___name=x___dump_index=1.pt",
            "sglang_dump_2.5/forward_pass_id=1___rank=0___name=x___dump_index=1.pt",
        ),
        ("TP0_PP0_Rank0_pid8/Pass00000.pt", "TP0_PP0_Rank0_pid9/Pass00000.pt"),
    ],
)
def test_two_runs_are_not_mixed(first: str, second: str, tmp_path: Path) -> None:
    """Their steps have the same numbers: a job that is started again counts from the beginning."""
    listings = _listed(tmp_path, first, second, second.replace("ank=0", "ank=1").replace("Rank0", "Rank1"))
    for key, listing in listings.items():
        assert [problem.denied for problem in listing.problems] == [True] * (key.rank == 0)
    alone = find_dump((tmp_path / second).parent).scan({})
    assert [problem for listing in alone.listings for problem in listing.problems] == []


def test_job_that_starts_again_from_a_checkpoint_continues(tmp_path: Path) -> None:
    """Its steps go on counting: each of its times is a part of one dump."""
    listings = _listed(tmp_path, f"20260101000000/0/Net/1/3/{_BIN}", f"20260101990000/0/Net/1/4/{_BIN}")
    assert not any(listing.problems for listing in listings.values())


# docs/formats.md and docs/rules.md say what the code does.


EVIDENCE = {
    "msprobe": "a.0.forward.input.0.npy",
    "msprobe_saved": "debug.json",
    "vllm": "module_calls.txt",
    "mindspore_raw": "w_output_0_shape_2_Float32_DefaultFormat.bin",
    "hugging_face": "trainer_state.json",
    "olmo": "model.pt",
}
CONTENT = {
    "transformer_engine_statistics": b"2026-01-01 00:00:00,000 - INFO - a_weight_max \t "
    b"iteration=000008 \t value=1\n",
    "torchtitan_numerics": b"Total captured activations: 0\n",
    "debug_mode": b'{"format": "torch.utils._debug_mode.DebugMode.logs", "version": 1, "logs": []}',
}


@pytest.mark.parametrize("page", ["formats.md", "rules.md"])
def test_the_page_holds_the_tables_that_the_code_makes(page: str) -> None:
    """`python docs/tables.py --write` brings them up to date."""
    assert tables.filled(page) == (tables.DOCS / page).read_text("utf-8")


def test_the_built_in_rules_as_values_are_those_of_the_file() -> None:
    assert tables.rules_as_values() == READY.read_text("utf-8")


@pytest.mark.parametrize(
    ("layout", "system"), [(layout, system) for layout in LAYOUTS for system in layout.systems]
)
def test_each_place_in_the_table_is_found_as_that_layout(
    layout: Layout, system: System, tmp_path: Path
) -> None:
    """By the walk that `ingest` makes, among all layouts, not by the pattern alone."""
    is_file = tables.is_of_file(layout, system)
    directory, _, file_name = system.place.rpartition("/")
    name = file_name if is_file else EVIDENCE.get(layout.name, "file")
    path = f"{directory}/{name}".lstrip("/") if is_file else f"{system.place}/{name}"
    (tmp_path / "dump" / path).parent.mkdir(parents=True)
    content = CONTENT.get(layout.name) or npy_bytes(np.zeros(0, np.float32))
    (tmp_path / "dump" / path).write_bytes(content)
    dump = find_dump(tmp_path / "dump")
    (listing,) = [listing for listing in dump.scan({}).listings if listing.files and listing.places]
    holding = max(listing.places, key=lambda place: len(place.path))
    place = directory if is_file else system.place
    assert (holding.layout.name, holding.directory) == (layout.name, place)
    fields = tables.match(layout, system)
    assert [file.path for file in listing.files] == [path]
    numbers = {int(fields.get(name, -1)) for name in ("rank", "device", "pid", *MESH_FIELDS)}
    assert listing.key.rank in numbers | {0}
