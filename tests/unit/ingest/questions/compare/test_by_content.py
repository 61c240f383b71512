"""Tensors that all ranks of both sides hold alike are not read."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from ingest.questions.compare import LayoutMap, Verdict, compare
from ingest.questions.compare.by_content import same_content
from ingest.questions.compare.held_tensors import HeldTensors, hold_together
from ingest.questions.compare.selection import Selection
from ingest.questions.compare.sources import open_source
from ingest.questions.placement.decide import Certainty
from tests.pipeline import ingest_directly
from tests.sharded_net import LAYOUT, Dump, write

ONES, ZEROS = np.ones((2, 2), np.float32), np.zeros((2, 2), np.float32)


def held(root: Path, *ranks: Dump) -> HeldTensors:
    """Return the tensors of a store: a dump has no digests."""
    write(root / "dump", [list(ranks)])
    ingest_directly(root / "dump", root / "run.zarr", layout=LAYOUT)
    source = open_source(Selection(str(root / "run.zarr")))
    return hold_together(0, {key.rank: source.load(key) for key in source.keys}, {})


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> HeldTensors:
    return held(tmp_path_factory.mktemp("replicas"), {"a": ONES, "b": ONES}, {"a": ONES, "b": ZEROS})


def test_equal_digests_on_all_ranks_are_replicas(replicas: HeldTensors) -> None:
    a = next(number for number, key in enumerate(replicas.keys) if key.op_name.endswith("a"))
    decision = same_content(replicas, a, replicas, a)
    assert decision is not None
    assert (decision.certainty, decision.explanation) == (
        Certainty.CERTAIN,
        "all pieces have the same digest",
    )
    assert decision.way is not None
    assert [dimension.size for dimension in decision.way.a.dimensions] == [2]


def test_other_digests_are_not(replicas: HeldTensors) -> None:
    numbers = {key.op_name[-1]: number for number, key in enumerate(replicas.keys)}
    assert same_content(replicas, numbers["b"], replicas, numbers["b"]) is None
    assert same_content(replicas, numbers["a"], replicas, numbers["b"]) is None


def test_a_dump_has_no_digests_to_compare(tmp_path: Path) -> None:
    source = open_source(Selection(str(write(tmp_path, [[{"a": ONES}, {"a": ONES}]]))), layout=LAYOUT)
    sides = hold_together(0, {key.rank: source.load(key) for key in source.keys}, {})
    assert same_content(sides, 0, sides, 0) is None


@pytest.fixture
def stores(tmp_path: Path) -> tuple[Path, Path]:
    """Two ranks and one with the same tensors, of numbers and of text."""
    dump: Dump = {"a": ONES, "text": np.array(["x", "y"])}
    for name, ranks in (("two", 2), ("one", 1)):
        write(tmp_path / name, [[dump] * ranks])
        ingest_directly(tmp_path / name, tmp_path / f"{name}.zarr", layout=LAYOUT)
    return tmp_path / "two.zarr", tmp_path / "one.zarr"


def test_no_element_is_read_of_what_has_equal_digests(stores: tuple[Path, Path]) -> None:
    for store in stores:
        for shards in store.glob("rank_*/step_*/*/tensors/*/c"):
            shutil.rmtree(shards)
    rows = compare(*stores, keep_equal=True).tensors
    assert [(row.verdict, row.basis) for row in rows] == [(Verdict.EQUAL, "digest")] * 2


def test_a_layout_map_that_says_otherwise_counts(stores: tuple[Path, Path]) -> None:
    mapped = LayoutMap.model_validate({"placements": [{"name": "*.a.*", "a": "partial sum"}]})
    counts = compare(*stores, layout_map=mapped).counts
    assert counts == {Verdict.EQUAL: 1, Verdict.UNKNOWN: 1}
