from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.planning.pooling import SharedTensor, packing_digest, pool_groups, shared_tensors
from workers.arrays.dtypes import from_name
from workers.dump.formats.header import TensorHeader
from workers.dump.model import TensorName
from workers.model import MIB, SourceFile
from workers.store.blocks import TensorKey
from workers.store.model import Grid, RowKind
from workers.tasks.model import Entry

GRID = Grid()


def key(name: str, copy: int = 0) -> TensorKey:
    return TensorKey("Net", "0", "Add", name, "output", 0, 0, copy)


def digests(*ranks: list[int]) -> np.ndarray:
    """Return digests of tensors by rank; equal numbers are equal, 0 is a tensor that the rank lacks."""
    digest = np.zeros((len(ranks), len(ranks[0]), 16), np.uint8)
    digest[:, :, 0] = ranks
    return digest


def entry(name: str, nbytes: int = 8 * MIB, dtype: str = "float32", kind: RowKind = RowKind.TENSOR) -> Entry:
    element = from_name(dtype)
    header = TensorHeader(element, (nbytes // element.itemsize,), lead=b"", offset=0, nbytes=nbytes)
    source = SourceFile(f"{name}.npy", nbytes, 0)
    return Entry(source, kind, TensorName("Net", "0", "Add", name, "output", 0), header)


def names(entries: list[Entry], rows: tuple[int, ...]) -> list[str]:
    return [entries[row].name.op_name for row in rows]


def test_a_class_is_the_ranks_with_the_same_digest() -> None:
    keys = [key(name) for name in "abcd"]
    digest = digests([1, 2, 3, 0], [1, 2, 4, 5], [1, 6, 7, 5])
    shared = [shared_tensors(keys, digest, rank) for rank in range(3)]
    assert [{k.op_name for k in ranks} for ranks in shared] == [{"a", "b"}, {"a", "b", "d"}, {"a", "d"}]
    assert shared[0][keys[0]] == shared[1][keys[0]] == shared[2][keys[0]]
    assert shared[0][keys[1]] == shared[1][keys[1]]
    assert shared[0][keys[0]].ranks != shared[0][keys[1]].ranks


def test_equal_tensors_are_one_unit_if_the_same_ranks_share_them() -> None:
    keys = [key(name) for name in "cab"]
    shared = shared_tensors(keys, digests([1, 1, 1], [1, 1, 2]), 0)
    assert shared[keys[0]] == shared[keys[1]]
    assert "a" in shared[keys[0]].unit
    assert keys[2] not in shared


@given(st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=5))
def test_all_ranks_of_a_class_see_the_same(contents: list[list[int]]) -> None:
    keys = [key(name) for name in "abcdef"]
    digest = digests(*contents)
    seen: dict[bytes, dict[TensorKey, SharedTensor]] = {}
    for rank in range(len(contents)):
        shared = shared_tensors(keys, digest, rank)
        for ranks in {tensor.ranks for tensor in shared.values()}:
            own = {k: tensor for k, tensor in shared.items() if tensor.ranks == ranks}
            assert seen.setdefault(ranks, own) == own


def test_nothing_is_pooled_without_an_expectation() -> None:
    assert pool_groups([entry("a")], {}, GRID) == []
    assert packing_digest([]) != ""


def test_only_expected_tensors_are_pooled_whatever_else_a_rank_has() -> None:
    shared = {key(name): SharedTensor(b"\3", name) for name in "abcdef"}
    steps = [[entry(name) for name in "abxcdef"], [entry(name) for name in "yfedcbaz"]]
    packed = [[names(step, group.rows) for group in pool_groups(step, shared, GRID)] for step in steps]
    assert packed[0] == packed[1]
    assert sorted(name for group in packed[0] for name in group) == list("abcdef")


def test_a_tensor_that_a_rank_lacks_changes_one_array() -> None:
    shared = {key(str(n)): SharedTensor(b"\3", str(n)) for n in range(40)}
    whole = [entry(str(n)) for n in range(40)]
    lacking = whole[:17] + whole[18:]
    packed = [
        {tuple(names(entries, g.rows)) for g in pool_groups(entries, shared, GRID)}
        for entries in (whole, lacking)
    ]
    assert 8 < len(packed[0]) <= 16  # 320 MiB in 2^n arrays of at most 32 MiB on average
    assert len(packed[0] - packed[1]) == 1


def test_classes_and_types_are_packed_apart() -> None:
    ranks = {"a": b"\1", "b": b"\1", "c": b"\2", "d": b"\2"}
    shared = {key(name): SharedTensor(ranks[name], name) for name in ranks}
    entries = [entry("a"), entry("b", dtype="int8"), entry("c"), entry("d")]
    kinds = [
        {(ranks[entries[row].name.op_name], entries[row].array) for row in group.rows}
        for group in pool_groups(entries, shared, GRID)
    ]
    assert all(len(kind) == 1 for kind in kinds)
    assert len(set.union(*kinds)) == 3


def test_a_class_that_is_too_small_to_pay_stays_where_it_is() -> None:
    shared = {key(name): SharedTensor(b"\3", name) for name in "ab"}
    assert not pool_groups([entry("a", 2 * MIB - 4), entry("b", 2 * MIB)], shared, GRID)
    assert pool_groups([entry("a", 2 * MIB), entry("b", 2 * MIB)], shared, GRID)


def test_copies_count_once() -> None:
    shared = {key(name): SharedTensor(b"\3", "a") for name in "abc"}
    assert not pool_groups([entry(name, 2 * MIB) for name in "abc"], shared, GRID)


@pytest.mark.parametrize(
    "other",
    [
        entry("a", 129 * MIB),
        entry("a", 0),
        entry("a", kind=RowKind.OVERFLOW),
        entry("a")._replace(readable=False),
        entry("a")._replace(header=None),
    ],
)
def test_what_cannot_be_shared_stays_where_it_is(other: Entry) -> None:
    shared = {key(name): SharedTensor(b"\3", name) for name in "ab"}
    groups = pool_groups([other, entry("b")], shared, GRID)
    assert [group.rows for group in groups] == [(1,)]


def test_tensors_of_the_same_name_are_told_apart_as_in_the_view() -> None:
    shared = {key("a", 1): SharedTensor(b"\3", "a")}
    (group,) = pool_groups([entry("a"), entry("a")], shared, GRID)
    assert group.rows == (1,)


def test_the_grid_of_small_shards_bounds_an_array() -> None:
    grid = replace(GRID, shard_nbytes=8 * MIB)
    shared = {key(str(n)): SharedTensor(b"\3", str(n)) for n in range(16)}
    groups = pool_groups([entry(str(n), 4 * MIB) for n in range(16)], shared, grid)
    assert len(groups) > 4
    assert groups[0].spec.shard_nbytes == 8 * MIB
