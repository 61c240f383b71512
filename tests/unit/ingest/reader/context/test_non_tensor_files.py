"""Files of a dump that are not tensors: found by name and place, and read in pieces."""

import re
from pathlib import Path

import numpy as np
import pytest

from ingest.api import open_store
from ingest.reader.context.non_tensor_files import NonTensorFiles, nearest
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly


@pytest.fixture
def files(made: MadeDump, store: Path) -> NonTensorFiles:
    """The files of rank 1: some of its own in a step, and one that only rank 0 has."""
    for rank in (0, 1):
        made.add(np.ones(2), rank=rank)
    for path, text in (
        ("rank_0/graphs/graph_0.ir", "graph of rank 0"),
        ("rank_1/Net/0/0/stack.json", "near"),
        ("rank_1/Net/stack.json", "far"),
        ("rank_1/Net/0/0/deep/er/note.json", "deep"),
    ):
        file = made.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    ingest_directly(made.root, store)
    return NonTensorFiles(open_store(store), 1)


def read(files: NonTensorFiles, step: int | None, source: str) -> bytes | None:
    return files.read(files.of_step(step)[source])


def test_files_of_a_step_go_by_path(files: NonTensorFiles) -> None:
    assert read(files, 0, "rank_1/Net/0/0/stack.json") == b"near"
    assert files.of_step(99) == {}
    file = files.of_step(0)["rank_1/Net/0/0/stack.json"]
    assert (file.name, file.nbytes) == ("stack.json", 4)


def test_nearest_file_above_is_found(files: NonTensorFiles) -> None:
    file = files.nearest_above(0, "rank_1/Net/0/0/deep/er/tensor.npy", "stack.json")
    assert file is not None
    assert file.source == "rank_1/Net/0/0/stack.json"
    assert files.nearest_above(0, "rank_1/Net/0/0/tensor.npy", "construct.json") is None


def test_run_files_of_another_rank_stand_in(files: NonTensorFiles) -> None:
    (file,) = files.of_run(re.compile(r".*\.ir"))
    assert file.source == "rank_0/graphs/graph_0.ir"
    assert files.of_run(re.compile(r".*\.csv")) == []


def test_large_files_are_problems(files: NonTensorFiles) -> None:
    file = files.of_step(0)["rank_1/Net/0/0/stack.json"]
    assert files.read(file, limit=3) is None
    assert files.problems == ["rank_1/Net/0/0/stack.json: 4 bytes, more than the 3 that are read"]


def test_damaged_files_are_problems(files: NonTensorFiles, store: Path) -> None:
    file = files.of_step(0)["rank_1/Net/0/0/stack.json"]
    for shard in store.glob("rank_1/step_0/*/files/c/*"):
        shard.unlink()
    assert files.read(file) is None
    (problem,) = files.problems
    assert problem.startswith("rank_1/Net/0/0/stack.json: ")


def test_nearest_file_has_the_longest_common_path(files: NonTensorFiles) -> None:
    candidates = files.of_step(0).values()
    file = nearest(candidates, "rank_1/Net/0/0/deep/er/tensor.npy")
    assert file is not None
    assert file.name == "note.json"
    assert nearest([], "rank_1") is None
