"""Finding places: by names alone, of all layouts at once."""

import re
from collections import Counter
from pathlib import Path

import pytest

from ingest.layouts import detect, walk
from ingest.layouts import places as search
from ingest.layouts.detect import LAYOUTS, find_dump
from ingest.layouts.places import Discovery, PlaceSearch


def discover(root: Path, below: str = "") -> Discovery:
    return PlaceSearch(root, LAYOUTS, below).run()


def make(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()


def places(discovery: Discovery) -> set[tuple[str, str]]:
    return {(place.layout.name, place.path) for place in discovery.places}


def beside(discovery: Discovery) -> set[str]:
    return {file.path for walk in discovery.outside.values() for file in walk.files}


def test_files_outside_of_places_belong_to_the_rank_of_their_directory(tmp_path: Path) -> None:
    make(tmp_path, "rank_1/Net/0/8/a", "rank_1/graphs/deep/g.ir", "rank_1/note", "root.txt")
    discovery = discover(tmp_path)
    owned = {
        owner.rank.number if owner.rank else None: sorted(file.path for file in walk.files)
        for owner, walk in discovery.outside.items()
    }
    assert owned == {None: ["root.txt"], 1: ["rank_1/graphs/deep/g.ir", "rank_1/note"]}


def test_part_of_a_dump_is_all_that_is_entered(tmp_path: Path) -> None:
    make(tmp_path, "rank_0/Net/0/8/a", "rank_1/Net/0/8/a", "rank_1/Net/0/9/a", "root.txt")
    discovery = discover(tmp_path, "rank_1/Net")
    assert places(discovery) == {("mindspore", "rank_1/Net/0/8"), ("mindspore", "rank_1/Net/0/9")}
    assert beside(discovery) == set()


def test_directories_that_a_writer_moves_files_from_are_left_alone(tmp_path: Path) -> None:
    make(tmp_path, "rank_0/_/0/8/a", "rank_0/Net/0/8/b")
    discovery = discover(tmp_path)
    assert places(discovery) == {("mindspore", "rank_0/Net/0/8")}
    assert beside(discovery) == set()


@pytest.mark.parametrize(
    ("name", "reported"), [("rank_01", "rank_01"), ("rank_x", "rank_x/Net"), ("rank_1.bak", "rank_1.bak/Net")]
)
def test_directory_that_is_nearly_one_of_a_rank_is_reported(name: str, reported: str, tmp_path: Path) -> None:
    """What is in it would be missed."""
    make(tmp_path, "rank_0/Net/0/8/a", f"{name}/Net/0/8/a", "logs/Net/0/8/a")
    discovery = discover(tmp_path)
    assert [str(problem) for problem in discovery.unowned.problems] == [
        f"{reported}: is not how a dump names the directory of a rank"
    ]


@pytest.mark.parametrize(
    "path",
    [
        "step6/rank01/dump_tensor_data/a.npy",
        "step6/rank1.bak/dump_tensor_data/a.pt",
        "step6/Rank1/dump_tensor_data/a.pt",
        "rank01/1.Model-2.Linear-output.0.pt",
        "data_dump/rank-1/1.Model-2.Linear-output.0.pt",
    ],
)
def test_tensors_under_a_name_like_that_of_a_rank_are_reported(path: str, tmp_path: Path) -> None:
    """They were left out without a word, wherever the names of ranks are not the first level."""
    make(tmp_path, "step6/rank0/dump.json", "data_dump/rank0/1.Model-2.Linear-output.0.pt", path)
    make(tmp_path, "step6/rank1_logs/log.txt", "step6/ranks/a.pt", "step6/rank0/rank2/a.pt")
    directory = path.removesuffix("/1.Model-2.Linear-output.0.pt").partition("/dump_tensor_data")[0]
    assert [str(problem) for problem in discover(tmp_path).unowned.problems] == [
        f"{directory}: is not how a dump names the directory of a rank"
    ]


@pytest.mark.parametrize("path", ["rank_0/step_3/fc/a.npy", "step3/rank0/a.npy"])
def test_a_rank_of_a_tree_that_no_layout_knows_is_not_called_misnamed(path: str, tmp_path: Path) -> None:
    make(tmp_path, path)
    assert discover(tmp_path).unowned.problems == []


def test_file_whose_name_fits_several_patterns_is_opened_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "rank_0/Net/0/8/a", "debug_mode/other_rank0_step1.json", "hparams_rank0_step1.json")
    begins_like, opened = walk.begins_like, Counter[str]()

    def counted(path: str, content: re.Pattern[bytes]) -> bool:
        opened[path] += 1
        return begins_like(path, content)

    for module in (detect, search):
        monkeypatch.setattr(module, "begins_like", counted)
    assert places(discover(tmp_path)) == {("mindspore", "rank_0/Net/0/8")}
    assert sorted(opened.values()) == [1, 1]
    opened.clear()
    find_dump(tmp_path)
    assert set(opened.values()) <= {1}


@pytest.mark.parametrize(
    ("directory", "is_left_out"),
    [
        ("rank_-1/Net/0/1", True),
        ("rank_4294967296/Net/0/1", True),
        ("rank_00/Net/0/1", True),
        ("rank_٣/Net/0/1", True),
        ("rank1x/Net/0/1", False),
        ("rank_logs", False),
        ("step6/rank01", True),
        ("step6/rank1.bak", False),
        ("rank_0/Net/0/-1", True),
        ("rank_0/Net/0/1234567890123456789", True),
        ("rank_0/Net/0/latest", False),
        ("rank_0/graphs/17", False),
    ],
)
def test_what_looks_like_a_rank_or_a_step_and_is_none_is_named(
    directory: str, is_left_out: bool, tmp_path: Path
) -> None:
    for path in (directory, "rank_0/Net/0/1"):
        (tmp_path / path).mkdir(parents=True, exist_ok=True)
        (tmp_path / path / "a.npy").write_bytes(b"1")
    problems = [problem for problem in find_dump(tmp_path).scan({}).problems if problem.left_out]
    assert len(problems) == is_left_out
    for problem in problems:
        assert directory.startswith(problem.path)
        assert problem.hint
