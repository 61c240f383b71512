"""Flipped bits are found to 64 KiB, also when the tensors are gone."""

import math
from pathlib import Path

import numpy as np
import pytest

import ingest
from bench.steps import commit_tables, make_tables
from ingest.questions.localize import localize, named_steps
from tests.stores import MadeDump, Values, ingest_directly, tensor_name
from workers.arrays.digest import BLOCK_NBYTES
from workers.errors import UsageError
from workers.model import StepKey
from workers.store.opening import open_objects, resolve

SHAPE = (1400, 200)
#: Elements of a block of float32.
BLOCK = BLOCK_NBYTES // 4


@pytest.fixture
def flipped(made: MadeDump, store: Path) -> tuple[ingest.DumpStore, list[int]]:
    """Two ranks with equal tensors, but for some bits of one; and the elements that differ."""
    values = np.random.default_rng(5).standard_normal(SHAPE, np.float32)
    other = values.copy()
    places = [3, 2 * BLOCK + 7, 3 * BLOCK, math.prod(SHAPE) - 1]
    other.view(np.uint32).reshape(-1)[places] ^= 1
    for step in range(2):
        for rank, written in enumerate((values, other)):
            made.add(written, tensor_name(time=1), step=step, rank=rank)
            made.add(values[:3], tensor_name(slot=1, time=2), step=step, rank=rank)
            made.add(written[:3], tensor_name(slot=2, time=3), step=step, rank=rank)
            made.add(
                written.astype("<f8" if rank else "<f4")[:4],
                tensor_name(slot=3, time=4),
                step=step,
                rank=rank,
            )
    ingest_directly(made.root, store, sketches=True)
    return ingest.open_store(store), places


def test_every_flipped_bit_is_in_a_block_that_is_named(flipped: tuple[ingest.DumpStore, list[int]]) -> None:
    store, places = flipped
    answer = localize(store.step(1, 0), store.step(0, 0))
    large, small, other_type = answer.tensors
    assert (answer.equal, answer.only_in_a, answer.only_in_b) == (1, 0, 0)
    assert (large.blocks, large.differing) == (18, 4)
    covered = {place for part in large.ranges for place in range(part.begin, part.end)}
    assert set(places) <= covered
    assert covered == {*range(BLOCK), *range(2 * BLOCK, 4 * BLOCK), *range(17 * BLOCK, math.prod(SHAPE))}
    first, middle, last = large.ranges
    assert (first.first, last.last) == ((0, 0), (1399, 199))
    assert middle.first == tuple(map(int, np.unravel_index(2 * BLOCK, SHAPE)))
    assert (small.blocks, small.differing, small.ranges[0].end) == (1, 1, 600)
    assert (other_type.reason, other_type.ranges) == ("another type, shape or memory order", ())
    assert [tensor.to_dict()["exactness"] for tensor in answer.tensors] == ["bounded", "bounded", ""]


def test_flipped_signs_are_found_by_row_and_column_without_any_digest_of_a_block(
    made: MadeDump, store: Path
) -> None:
    # The first has no digests of blocks, because it is small; the second has both.
    values = np.random.default_rng(6).standard_normal((300, 300), np.float32)
    large = np.random.default_rng(7).standard_normal((1000, 300), np.float32)
    other, other_large, lowest = values.copy(), large.copy(), values.copy()
    other[17, [3, 4, 250]] *= -1
    other_large[[5, 900], 44] += 0.5
    lowest.view(np.uint32)[50, 60] ^= 1
    for rank, tensors in enumerate(((values, large, values), (other, other_large, lowest))):
        for slot, tensor in enumerate(tensors):
            made.add(tensor, tensor_name(slot=slot, time=slot + 1), rank=rank)
    ingest_directly(made.root, store, sketches=True)
    small, both, invisible = localize(f"{store}@0,0", f"{store}@1,0").tensors
    runs = {along.axis: along.runs for along in small.positions}
    assert (small.ranges[0].end, runs) == (90_000, {0: ((17, 18),), 1: ((3, 5), (250, 251))})
    assert {along.axis: along.runs for along in both.positions} == {0: ((5, 6), (900, 901)), 1: ((44, 45),)}
    assert [(part.first[0], part.last[0]) for part in both.ranges] == [(0, 54), (873, 928)]
    # A change below the rounding of the sums is in a range, and at no position.
    assert (invisible.differing, [along.runs for along in invisible.positions]) == (6, [(), ()])


@pytest.mark.parametrize(
    "other",
    [
        np.zeros((2, 3), "<i4"),
        np.zeros((3, 2), "<f4"),
        np.zeros((2, 3), ">f4"),
        np.zeros((2, 3), "<f4", order="F"),
    ],
    ids=["type", "shape", "order of bytes", "order of axes"],
)
def test_equal_bytes_that_mean_other_elements_are_a_difference(
    made: MadeDump, store: Path, other: Values
) -> None:
    for rank, values in enumerate((np.zeros((2, 3), "<f4"), other)):
        made.add(values, tensor_name(time=1), rank=rank)
    ingest_directly(made.root, store)
    for sides in ((0, 1), (1, 0)):
        answer = localize(*(f"{store}@{rank},0" for rank in sides))
        assert answer.equal == 0
        assert [tensor.reason for tensor in answer.tensors] == ["another type, shape or memory order"]


@pytest.fixture
def names(store: Path) -> list[str]:
    """The names of two steps of a store."""
    objects = open_objects(resolve(store))
    keys = [StepKey(rank, 4) for rank in range(2)]
    for key in keys:
        commit_tables(objects, key, make_tables(key, ["op"]))
    return [f"{store}@{key.rank},{key.step}" for key in keys]


@pytest.mark.parametrize("end", ["", "@0", "@step=4"])
def test_a_name_without_rank_or_step_is_refused(names: list[str], end: str) -> None:
    with pytest.raises(UsageError, match="does not name a rank and a step"):
        named_steps(names[0].partition("@")[0] + end)
