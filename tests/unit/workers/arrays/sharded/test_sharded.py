"""How tensors of several ranks make one."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.in_memory import InMemory, Values, elements, search_in
from workers.arrays.marginals import marginals_of
from workers.arrays.sharded.assembly import (
    Agreement,
    AxisSegment,
    Joined,
    Piece,
    Same,
    Summed,
    interleaved,
    joined,
    pieces_read,
    replicas,
    zigzag,
)
from workers.arrays.sharded.placement import MeshGrid, block_placements, grids, held_as, placements, ways_held
from workers.arrays.sharded.placement_search import FoundPlacement, match_order, place_by_content

# The ways in which pieces of some shapes may make up a tensor.


Shape = tuple[int, ...]


@pytest.mark.parametrize(
    ("count", "shape", "whole", "expected"),
    [
        (1, (6, 8), (6, 8), {"whole"}),
        (2, (6, 8), (6, 8), {"replicated", "partial sum", "mean"}),
        (2, (3, 8), (6, 8), {"shard 0"}),
        (2, (6, 4), (6, 8), {"shard 1"}),
        (4, (4, 8), (13, 8), {"shard 0 (3 positions of padding)"}),
        (2, (3, 8), (7, 8), {"shard 0 (1 position of padding in B)"}),
        (2, (3, 8), (20, 8), set()),
        (2, (3, 7), (6, 8), set()),
        (2, (3, 8, 1), (6, 8), set()),
    ],
)
def test_shapes_allow_these_ways(count: int, shape: Shape, whole: Shape, expected: set[str]) -> None:
    shapes = [shape] * count
    found = {str(way) for grid in grids(count) for way in placements(grid, shapes, whole)}
    assert found == expected


def test_two_dimensions_of_a_mesh() -> None:
    found = {str(way) for grid in grids(4) for way in placements(grid, [(3, 4)] * 4, (6, 8))}
    assert found == {"shard 0, shard 1", "shard 1, shard 0"}
    halves = {way.kind for grid in grids(4) for way in placements(grid, [(3, 8)] * 4, (6, 8))}
    assert {"replicated, shard 0", "shard 0, replicated", "shard 0, partial sum"} <= halves


def test_two_dimensions_of_a_mesh_hold_chunks_and_blocks() -> None:
    """A fused projection under context parallelism. Like neighbours of a guessed mesh are one dimension."""
    (grid,) = (grid for grid in grids(4) if len(grid.names) == 2)
    found = {str(way) for way in block_placements(grid, [(4, 3)] * 4, (8, 6))}
    assert {"zigzag 0, blocks 1 (1+1+1 per rank)", "blocks 1 (1+1+1 per rank), zigzag 0"} <= found
    along_one = {str(way) for way in block_placements(grid, [(2, 6)] * 4, (8, 6))}
    assert {"zigzag 0, shard 0", "shard 0, zigzag 0"} <= along_one
    assert not {"zigzag 0", "zigzag 0, zigzag 0", "shard 0"} & along_one


def test_a_mesh_of_many_ranks_is_bounded() -> None:
    assert [grid.numbers.shape for grid in grids(6)] == [(6,), (2, 3), (3, 2)]
    assert len(grids(1)) == 1
    assert all(len(placements(grid, [(8,) * 3] * 16, None)) <= 96 for grid in grids(16))
    (way,) = (way for grid in grids(64) for way in placements(grid, [(8, 8)] * 64, (512, 8)))
    assert str(way) == "shard 0"


# Which way holds, by the values.


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


# Placements that contents show.


HASHED = np.random.default_rng(7).normal(size=(48, 12)).astype(np.float32)
#: Of two ranks: positions of sequences of 8, 24 and 16 tokens.
SEQUENCES = [
    [*range(2), *range(6, 8), *range(8, 14), *range(26, 32), *range(32, 36), *range(44, 48)],
    [*range(2, 6), *range(14, 26), *range(36, 44)],
]
#: Of two ranks: columns of blocks of 8, 2 and 2.
BLOCKS = [[0, 1, 2, 3, 8, 10], [4, 5, 6, 7, 9, 11]]


def placed(parts: Sequence[Values], grid: Sequence[MeshGrid] | None = None) -> FoundPlacement:
    shapes = [part.shape for part in parts]
    return place_by_content(
        grid or grids(len(parts)), shapes, elements(parts), InMemory(HASHED), HASHED.shape
    )


def test_sequences_in_zigzag_and_unequal_blocks() -> None:
    packed, blocks = placed([HASHED[own] for own in SEQUENCES]), placed([HASHED[:, own] for own in BLOCKS])
    assert str(packed.placement) == "zigzag 0 of each sequence (8+24+16)"
    assert str(blocks.placement) == "blocks 1 (4+1+1 per rank)"
    assert packed.placement is not None
    assert np.array_equal(
        packed.placement.assembly.read(elements([HASHED[own] for own in SEQUENCES]), 0, HASHED.size),
        HASHED.reshape(-1),
    )


def test_each_dimension_of_a_mesh_is_found() -> None:
    parts = [HASHED[own][:, columns] for own in SEQUENCES for columns in BLOCKS]
    assert str(placed(parts).placement) == ("zigzag 0 of each sequence (8+24+16), blocks 1 (4+1+1 per rank)")
    noise = np.random.default_rng(8).normal(size=(24, 12)).astype(np.float32)
    sums = [part for own in SEQUENCES for part in (HASHED[own] - noise, noise)]
    assert str(placed(sums).placement) == "zigzag 0 of each sequence (8+24+16), partial sum"
    halves = [part for own in SEQUENCES for part in np.split(HASHED[own], 2)]
    assert str(placed(halves).placement) == "zigzag 0 of each sequence (8+24+16), shard 0"


def test_an_order_of_no_known_way_is_named_by_its_dimension() -> None:
    grid = MeshGrid(("cp", "tp"), np.arange(4).reshape(2, 2))
    swapped = [HASHED[:, 6:], HASHED[:, :6]] * 2
    found = placed(swapped, [grid])
    assert found.placement is None
    assert found.order is not None
    assert found.order.of == "tp"


@pytest.mark.parametrize("values", [np.ones_like(HASHED), HASHED + 1])
def test_other_values_have_no_order(values: Values) -> None:
    assert placed([values[own] for own in SEQUENCES]) == FoundPlacement()


# How ranks hold a tensor is told from marginals alone, as `placement_search` tells it from elements.


MARGINAL_RNG = np.random.default_rng(6)
SUMMED = MARGINAL_RNG.standard_normal((96, 400, 40)).astype(np.float32)
Array = np.ndarray[Any, Any]


def told(pieces: Sequence[Array], whole: Array = SUMMED, axes: Sequence[int] = (0, 1, 2)) -> str:
    ways = ways_held(
        [marginals_of(np.ascontiguousarray(piece), axes) for piece in pieces],
        [piece.shape for piece in pieces],
        marginals_of(whole, axes),
        whole.shape,
    )
    return str(held_as(ways))


def partial_sums(ranks: int) -> list[Array]:
    parts = [MARGINAL_RNG.standard_normal(SUMMED.shape).astype(np.float32) for _ in range(ranks - 1)]
    return [*parts, SUMMED - np.sum(parts, axis=0)]


@pytest.mark.parametrize("ranks", [2, 4])
def test_each_way_is_told_from_all_others(ranks: int) -> None:
    assert told([SUMMED] * ranks) == "replicated"
    assert told(partial_sums(ranks)) == "partial sum"
    for axis in range(3):
        assert told(np.array_split(SUMMED, ranks, axis)) == f"shard {axis}"


def test_one_axis_suffices_and_order_matters() -> None:
    pieces = np.array_split(SUMMED, [30], 1)
    for axis in range(3):
        assert told(pieces, axes=[axis]) == "shard 1"
    assert told(pieces[::-1], axes=[1]) == "None"


def test_what_is_something_else_is_not_told() -> None:
    other = MARGINAL_RNG.standard_normal(SUMMED.shape).astype(np.float32)
    assert told([other, other]) == "None"
    assert told([other[:48], other[48:]]) == "None"
    assert told([SUMMED[:48]]) == "None"


# Where positions of an axis lie in a whole, by content.


SEGMENTED = np.random.default_rng(2).normal(size=(3, 10, 4)).astype(np.float32)


def test_stretches_are_found_with_rounding() -> None:
    order = [7, 8, 9, 0, 1, 2, 3, 4, 5, 6]
    parts = np.split(SEGMENTED[:, order], 2, axis=1)
    noisy = [part * np.float32(1 + 1e-6) for part in parts]
    found = match_order(
        elements(noisy), [part.shape for part in parts], InMemory(SEGMENTED), SEGMENTED.shape, 1
    )
    assert found is not None
    assert [list(map(tuple, stretches)) for stretches in found.stretches] == [
        [(0, 7, 3), (3, 0, 2)],
        [(0, 2, 5)],
    ]
    assert found.segments(10) == [AxisSegment(0, 3, 2), AxisSegment(1, 0, 5), AxisSegment(0, 0, 3)]
    assert found.segments(11) == []


def test_nothing_is_said_of_equal_positions_and_of_other_values() -> None:
    same = np.ones((4, 3), np.float32)
    assert match_order(elements([same[:2]]), [(2, 3)], InMemory(same), (4, 3), 0) is None
    other = np.random.default_rng(3).normal(size=(3, 5, 4)).astype(np.float32)
    assert match_order(elements([other]), [(3, 5, 4)], InMemory(SEGMENTED), SEGMENTED.shape, 1) is None


def test_packed_sequences_are_found_if_they_are_not_short() -> None:
    """Each of 40 sequences is cut into four chunks, of which a rank has an early and a late one."""
    rng = np.random.default_rng(4)
    for length, is_clear in ((40, True), (12, False)):
        whole = rng.normal(size=(40 * length, 6)).astype(np.float32)
        chunks = whole.reshape(40, 4, length // 4, 6)
        parts = [chunks[:, [rank, 3 - rank]].reshape(-1, 6) for rank in range(2)]
        found = match_order(elements(parts), [part.shape for part in parts], InMemory(whole), whole.shape, 0)
        assert (found is not None) == is_clear
        assert found is None or bool(found.segments(len(whole)))


def test_values_in_random_order_are_not_an_order() -> None:
    whole = np.random.default_rng(5).normal(size=(512, 6)).astype(np.float32)
    mixed = whole[np.random.default_rng(6).permutation(512)]
    parts = np.split(mixed, 2)
    assert match_order(elements(parts), [(256, 6)] * 2, InMemory(whole), whole.shape, 0) is None


# Whole tensors from pieces, by range.


ASSEMBLED = np.arange(6 * 8 * 10, dtype=np.float32).reshape(6, 8, 10)


@given(
    axis=st.integers(0, 2),
    count=st.integers(1, 5),
    ends=st.tuples(st.integers(0, ASSEMBLED.size), st.integers(0, ASSEMBLED.size)),
)
@settings(max_examples=60, deadline=None)
def test_any_range_of_joined_pieces_is_that_of_the_whole(
    axis: int, count: int, ends: tuple[int, int]
) -> None:
    parts = np.array_split(ASSEMBLED, count, axis=axis)
    whole = joined([Piece(number, part.shape) for number, part in enumerate(parts)], axis)
    start, stop = sorted(ends)
    assert whole.shape == ASSEMBLED.shape
    assert whole.read(elements(parts), start, stop).tolist() == ASSEMBLED.reshape(-1)[start:stop].tolist()


def test_padding_at_the_end_is_cut_off() -> None:
    padded = np.concatenate([ASSEMBLED[4:], np.full((1, 8, 10), -1, np.float32)])
    whole = joined([Piece(0, (4, 8, 10)), Piece(1, (3, 8, 10))], 0, 6)
    assert whole.shape == (6, 8, 10)
    read = whole.read(elements([ASSEMBLED[:4], padded]), 0, ASSEMBLED.size)
    assert np.array_equal(read, ASSEMBLED.reshape(-1))


def test_blocks_and_chunks_are_put_into_their_order() -> None:
    thirds = np.split(ASSEMBLED, 3)
    ranks = [np.concatenate([third[rank : rank + 1] for third in thirds]) for rank in (0, 1)]
    parts = [Piece(number, (3, 8, 10)) for number in (0, 1)]
    fused = interleaved(parts, 0, [1, 1, 1])
    assert np.array_equal(fused.read(elements(ranks), 0, ASSEMBLED.size), ASSEMBLED.reshape(-1))
    early_and_late = [np.concatenate([ASSEMBLED[:, :2], ASSEMBLED[:, 6:]], axis=1), ASSEMBLED[:, 2:6]]
    halves = zigzag([Piece(number, (6, 4, 10)) for number in (0, 1)], 1)
    assert np.array_equal(halves.read(elements(early_and_late), 7, 400), ASSEMBLED.reshape(-1)[7:400])
    sequences = [[0, 3, 4, 7], [1, 2, 5, 6]]  # two of four positions each
    packed = zigzag([Piece(number, (6, 4, 10)) for number in (0, 1)], 1, (4, 4))
    read = packed.read(elements([ASSEMBLED[:, own] for own in sequences]), 0, ASSEMBLED.size)
    assert np.array_equal(read, ASSEMBLED.reshape(-1))


@pytest.mark.parametrize(("factor", "expected"), [(1.0, [4.0, 6.0]), (0.5, [2.0, 3.0])])
def test_sums_and_means(factor: float, expected: list[float]) -> None:
    parts = elements([np.array([1, 2], np.float16), np.array([3, 4], np.float16)])
    summed = Summed((Piece(0, (2,)), Piece(1, (2,))), factor)
    assert summed.read(parts, 0, 2).tolist() == expected
    assert summed.shape == (2,)


def test_replicas_are_every_choice_among_what_should_be_the_same() -> None:
    same = Same((Piece(0, (2,)), Piece(1, (2,))))
    whole = Joined((same, Piece(2, (2,))), 0, (AxisSegment(0, 0, 2), AxisSegment(1, 0, 2)))
    assert list(map(pieces_read, replicas(whole))) == [(0, 2), (1, 2)]
    assert pieces_read(whole) == (0, 2)


# How far two arrays are apart.


def agreement(a: list[float], b: list[float]) -> Agreement:
    added = Agreement()
    for number in range(len(a)):  # in pieces
        added.add(np.array(a[number : number + 1]), np.array(b[number : number + 1]))
    return added


def test_a_factor_explains_the_error() -> None:
    scaled = agreement([6.0, 8.0], [3.0, 4.0])
    assert scaled.factor == pytest.approx(2.0)
    assert scaled.error_besides_factor == pytest.approx(0.0, abs=1e-7)
    assert agreement([4.0, -3.0], [3.0, 4.0]).error_besides_factor == pytest.approx(1.0)
    assert agreement([0.0, 0.0], [3.0, 4.0]).error_besides_factor == 1.0


def test_nan_and_infinities_must_be_in_the_same_places() -> None:
    assert agreement([math.nan, 1.0], [math.nan, 1.0]).error == 0.0
    assert agreement([-math.inf, 1.0], [-math.inf, 1.0]).error == 0.0
    assert agreement([math.inf, 1.0], [-math.inf, 1.0]).error == math.inf
    assert agreement([math.nan, 1.0], [0.0, 1.0]).error == math.inf
