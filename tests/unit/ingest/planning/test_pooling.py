from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.planning import pooling
from ingest.planning.pooling import (
    PoolGroup,
    Shared,
    SharedTensor,
    pool_groups,
    shared_in_step,
    shared_tensors,
)
from workers.arrays.dtypes import from_name
from workers.dump.formats.header import TensorHeader
from workers.dump.model import TensorName
from workers.model import MIB, SourceFile
from workers.store.consolidated.blocks import TensorKey
from workers.store.model import Grid, RowKind
from workers.tasks.model import Entry

GRID = Grid()
KINDS = ["input", "output", "input", "input", "output", "output"]


def key(name: str, copy: int = 0, op_type: str = "Add", io: str = "output") -> TensorKey:
    return TensorKey("Net", "0", op_type, name, io, 0, 0, copy)


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


def groups_of(entries: list[Entry], shared: Shared, grid: Grid) -> list[PoolGroup]:
    """Plan with payloads that are equal if their files have the same name before a hyphen."""
    samples = [hash(entry.source.path.partition("-")[0]) for entry in entries]
    return pool_groups(entries, samples, shared, grid)


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
    keys = [key(name, op_type=op, io=io) for name, op, io in zip("abcdef", "AABBCC", KINDS, strict=True)]
    digest = digests(*contents)
    seen: dict[bytes, dict[TensorKey, SharedTensor]] = {}
    for rank in range(len(contents)):
        shared = shared_tensors(keys, digest, rank)
        for ranks in {tensor.ranks for tensor in shared.values()}:
            own = {k: tensor for k, tensor in shared.items() if tensor.ranks == ranks}
            assert seen.setdefault(ranks, own) == own


def test_a_kind_of_which_not_all_are_shared_is_apart() -> None:
    keys = [key("a", op_type="Cast"), key("b", op_type="Cast"), key("c"), key("d"), key("e", io="input")]
    shared = shared_tensors(keys, digests([1, 2, 3, 4, 3], [1, 2, 3, 5, 3]), 0)
    assert [shared[k].kind for k in keys[:2]] == ["", ""]
    assert keys[3] not in shared
    # An output of an unsure kind, equal to an input of a sure one.
    assert shared[keys[4]].unit == shared[keys[2]].unit
    assert [(shared[k].kind, shared[k].is_firm) for k in (keys[4], keys[2])] == [("", True), ("", False)]


def test_a_tensor_that_is_not_firm_is_pooled_only_if_it_seems_equal() -> None:
    """What an operator writes in place is dumped before or after that: it must not spoil what is shared."""
    shared = {
        key("a"): SharedTensor(b"\3", "a"),
        key("b"): SharedTensor(b"\3", "a", is_firm=False),
        key("c"): SharedTensor(b"\3", "c", is_firm=False),
    }
    entries = [entry("b"), entry("a"), entry("c")]
    equal, differs = [7, 7, 7], [6, 7, 7]
    assert [group.rows for group in pool_groups(entries, equal, shared, GRID)] == [(1, 0)]
    assert [group.rows for group in pool_groups(entries, differs, shared, GRID)] == [(1,)]
    assert pool_groups(entries[:1], [None], shared, GRID) == []


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
    groups = groups_of([other, entry("b")], shared, GRID)
    assert [group.rows for group in groups] == [(1,)]


def test_tensors_of_the_same_name_are_told_apart_as_in_the_view() -> None:
    shared = {key("a", 1): SharedTensor(b"\3", "a")}
    (group,) = groups_of([entry("a"), entry("a")], shared, GRID)
    assert group.rows == (1,)


def test_the_grid_of_small_shards_bounds_an_array() -> None:
    grid = replace(GRID, shard_nbytes=8 * MIB)
    shared = {key(str(n)): SharedTensor(b"\3", str(n)) for n in range(16)}
    groups = groups_of([entry(str(n), 4 * MIB) for n in range(16)], shared, grid)
    assert len(groups) > 4
    assert groups[0].spec.shard_nbytes == 8 * MIB


def test_what_looks_alike_on_several_ranks_of_a_step_is_expected_to_be_shared() -> None:
    """Of a large one, more than the beginning counts: zeros, or the token that all batches begin with."""
    large, sizes = 2 * pooling._PROBED_NBYTES, {"small": 4096, "other": 4096, "same": 0, "end": 0, "zeros": 0}
    entries = [entry(name, nbytes or large) for name, nbytes in sizes.items()]
    probed: list[tuple[int, str]] = []

    def probe(place: int, tensor: Entry) -> int:
        probed.append((place, tensor.name.op_name))
        return place if tensor.name.op_name == "end" else 7

    ranks = [(entries, [1, 2 + rank, 3, 4, pooling._ZEROS]) for rank in range(2)]
    found = [{name.op_name for name in shared} for shared in shared_in_step(ranks, GRID, probe)]
    assert found == [{"small", "same"}] * 2
    assert sorted(probed) == [(rank, name) for rank in range(2) for name in ("end", "same")]
