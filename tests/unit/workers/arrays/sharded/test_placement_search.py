"""Which way holds, by the values."""

import numpy as np
import pytest

from tests.in_memory import Values, search_in
from workers.arrays.sharded.assembly import pieces_read

RNG = np.random.default_rng(1)
WHOLE = RNG.normal(size=(12, 8)).astype(np.float32)
NOISE = RNG.normal(size=WHOLE.shape).astype(np.float32)
Q, K, V = np.split(WHOLE, 3)
ZIGZAG = [np.concatenate([WHOLE[:3], WHOLE[9:]]), WHOLE[3:9]]


def rows(*parts: Values) -> Values:
    return np.concatenate(parts)


WAYS = {
    "replicated": [WHOLE, WHOLE],
    "flat shard": np.split(WHOLE.reshape(-1), 2),
    "flat shard (uneven)": np.split(WHOLE.reshape(-1), [0, 13, 70]),
    "flat shard (2 positions of padding)": np.split(np.append(WHOLE.reshape(-1), [0, 0]), 2),
    "replicated, flat shard": np.split(WHOLE.reshape(-1), 2) * 2,
    "shard 0": np.split(WHOLE, 2),
    "shard 1": np.split(WHOLE, 4, axis=1),
    "shard 0 (uneven)": np.array_split(WHOLE, 5),
    "shard 0 (2 positions of padding)": [WHOLE[:7], rows(WHOLE[7:], np.zeros((2, 8), np.float32))],
    "partial sum": [WHOLE - NOISE, NOISE],
    "blocks 0 (2+2+2 per rank)": [rows(Q[:2], K[:2], V[:2]), rows(Q[2:], K[2:], V[2:])],
    "blocks 0 (4+1+1 per rank)": [
        rows(WHOLE[:4], WHOLE[8:9], WHOLE[10:11]),
        rows(WHOLE[4:8], WHOLE[9:10], WHOLE[11:]),
    ],
    "zigzag 0": [rows(WHOLE[:3], WHOLE[9:]), WHOLE[3:9]],
    "shard 0, shard 1": [part for row in np.split(WHOLE, 2) for part in np.split(row, 2, axis=1)],
    "shard 0, replicated": [part for part in np.split(WHOLE, 2) for _ in range(2)],
    "replicated, shard 0": np.split(WHOLE, 2) * 2,
    "shard 0, partial sum": [WHOLE[:6] - NOISE[:6], NOISE[:6], WHOLE[6:] - NOISE[6:], NOISE[6:]],
    "zigzag 0, shard 1": [part for row in ZIGZAG for part in np.split(row, 2, axis=1)],
    "zigzag 0, shard 0": [part for row in ZIGZAG for part in np.split(row, 2)],
    "zigzag 0, partial sum": [part for row in ZIGZAG for part in (row - NOISE[:6], NOISE[:6])],
    "shard 1, zigzag 0": [np.split(row, 2, axis=1)[place] for place in (0, 1) for row in ZIGZAG],
    "zigzag 0, blocks 1 (2+1+1 per rank)": [
        row[:, own] for row in ZIGZAG for own in ([0, 1, 4, 6], [2, 3, 5, 7])
    ],
}


@pytest.mark.parametrize("way", WAYS)
def test_the_way_that_holds_is_the_closest(way: str) -> None:
    found = search_in([np.asarray(part) for part in WAYS[way]], [WHOLE])
    assert str(found.ways[0].a) == way
    assert found.ways[0].error < 1e-6
    assert all(other.error > 0.1 for other in found.ways[1:] if "mean" not in str(other.a))


def test_ragged_shards_on_a_mesh() -> None:
    """Each replica has shards of four lengths, one of them empty."""
    shards = np.split(WHOLE, [5, 5, 6])
    answer = search_in([shard for shard in shards for _ in range(2)], [WHOLE])
    assert str(answer.ways[0].a) == "shard 0, replicated (uneven)"
    assert answer.ways[0].error == 0.0


@pytest.mark.parametrize(("parts_a", "parts_b"), [(4, 2), (2, 4), (2, 2)])
def test_both_sides_may_be_cut(parts_a: int, parts_b: int) -> None:
    found = search_in(np.split(WHOLE, parts_a), np.split(WHOLE, parts_b))
    assert found.ways[0].error == 0.0
    assert found.ways[0].kinds == ("shard 0", "shard 0") or found.ways[0].same_on_both


@pytest.mark.parametrize("ranks", [[WHOLE, NOISE], [np.float32(2), np.float32(3)]], ids=["2-D", "0-D"])
def test_what_is_cut_alike_is_compared_rank_by_rank(ranks: list[Values]) -> None:
    found = search_in([np.asarray(part) for part in ranks], [np.asarray(part) for part in ranks])
    assert found.ways[0].same_on_both
    assert found.ways[0].error == 0.0


def test_swapped_and_repeated_shards_are_found_where_they_are() -> None:
    swapped = search_in([WHOLE[6:], WHOLE[:6]], [WHOLE])
    assert swapped.order is not None
    assert [part[0].whole for part in swapped.order.stretches] == [6, 0]
    twice = search_in([WHOLE[:6], WHOLE[:6]], [WHOLE])
    assert twice.order is not None
    assert [part[0].whole for part in twice.order.stretches] == [0, 0]


@pytest.mark.parametrize("side", [0, 1])
def test_of_replicas_the_worst_counts_on_either_side(side: int) -> None:
    sides = [[WHOLE], [WHOLE, WHOLE + np.float32(0.5)]]
    found = search_in(sides[1 - side], sides[side])
    replicated = next(way for way in found.ways if "replicated" in way.kinds)
    assert replicated.error > 0.1
    assert replicated.spread == pytest.approx(replicated.error)
    assert replicated.worst is not None
    assert pieces_read(replicated.worst[side]) == (1,)


def test_means_over_other_numbers_of_ranks_agree_beside_replicas() -> None:
    """As losses of four data-parallel ranks against two, each on two tensor-parallel ones."""
    four = [np.float32(value) for value in (2.1, 1.7, 2.05, 1.95)]
    pairs = [np.float32((four[0] + four[1]) / 2), np.float32((four[2] + four[3]) / 2)]
    two = [np.asarray(each) for each in pairs for _ in (0, 1)]
    found = search_in([np.asarray(each) for each in four], two)
    assert ("mean", "mean, replicated") in {way.kinds for way in found.ways if way.error < 1e-6}
