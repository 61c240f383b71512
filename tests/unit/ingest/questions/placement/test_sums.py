"""Over which ranks a tensor was summed, found from its values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.questions.placement.sums import (
    Account,
    Groups,
    Layer,
    StepElements,
    Summand,
    accounts,
    deviation,
    gathered_from,
    is_unmasked_lookup,
    scattered_sums,
    summand_of,
)

ALONE: Groups = ((0,), (1,), (2,), (3,))
PAIRS: Groups = ((0, 1), (2, 3))
ACROSS: Groups = ((0, 2), (1, 3))
PARTITIONS = [ALONE, PAIRS, ACROSS]


def parts_of(seed: int, dtype: type = np.float32) -> tuple[dict[int, np.ndarray], Summand]:
    rng = np.random.default_rng(seed)
    parts: dict[int, np.ndarray] = {rank: rng.standard_normal((5, 6)).astype(dtype) for rank in range(4)}
    summand = summand_of(parts, parts)
    assert summand is not None
    return parts, summand


def summed(parts: dict[int, np.ndarray], groups: Groups, factor: float = 1.0) -> dict[int, np.ndarray]:
    totals: dict[int, np.ndarray] = {}
    for group in groups:
        total = sum(parts[rank].astype(np.float64) for rank in group)
        totals |= dict.fromkeys(group, (factor * np.asarray(total)).astype(parts[0].dtype))
    return totals


@given(seed=st.integers(0, 1000), groups=st.sampled_from(PARTITIONS), factor=st.sampled_from([1.0, 2.0, 0.5]))
def test_the_ranks_and_the_factor_of_a_sum_are_found(seed: int, groups: Groups, factor: float) -> None:
    factor = 1.0 if groups is ALONE else factor
    parts, summand = parts_of(seed)
    ways = accounts(summed(parts, groups, factor), [summand], None, PARTITIONS)
    assert ways == [(Account(groups, factor),)]
    assert accounts(summed(parts, groups, 1.25), [summand], None, PARTITIONS) == []


@pytest.mark.parametrize("times", [0, 1, 2])
def test_how_often_a_bias_is_in_a_sum_is_found(times: int) -> None:
    parts, summand = parts_of(3)
    bias = dict.fromkeys(range(4), np.arange(1, 7, dtype=np.float32))
    results = {rank: (total + times * bias[rank]) for rank, total in summed(parts, PAIRS).items()}
    ((way,),) = accounts(results, [summand], bias, PARTITIONS)
    assert (way.groups, way.biases, way.is_biased_once) == (PAIRS, times, times == 1)


def test_of_several_summands_each_has_its_own_ranks() -> None:
    """As of three layers that read one tensor, of which one does not add up what it passes back."""
    first, second = parts_of(1), parts_of(2)
    results = {rank: summed(first[0], PAIRS)[rank] + own for rank, own in summed(second[0], ALONE).items()}
    ways = accounts(results, [first[1], second[1]], None, PARTITIONS)
    assert ways == [(Account(PAIRS), Account(ALONE))]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_rounding_of_the_type_is_no_difference(dtype: type) -> None:
    parts, summand = parts_of(5, dtype)
    assert accounts(summed(parts, PAIRS), [summand], None, PARTITIONS) == [(Account(PAIRS),)]


def test_a_sum_that_is_off_in_one_row_of_one_rank_is_named() -> None:
    parts, summand = parts_of(7)
    results = summed(parts, PAIRS)
    results[2] = results[2].copy()
    results[2][3] *= 1.5
    ranks, difference = deviation(results, summand, None, PARTITIONS)
    assert difference is not None
    assert (ranks, difference.where) == ((2,), "row")
    results[1] = results[1] + 1
    assert deviation(results, summand, None, PARTITIONS) == ((), None)


class Held(StepElements):
    """The elements of some tensors, by rank and place."""

    def __init__(self, elements: dict[tuple[int, int], np.ndarray]) -> None:
        self._elements = elements

    def holders(self, tensor: int) -> tuple[int, ...]:
        return tuple(rank for rank, place in self._elements if place == tensor)

    def content(self, rank: int, tensor: int) -> bytes:
        return self._elements[rank, tensor].tobytes()

    def any_of(self, rank: int, tensor: int) -> np.ndarray | None:
        return self._elements.get((rank, tensor))


#: Places of the weight, the input and the output.
LAYER = Layer("up", weight=0, input=1, output=2)
TWO: Groups = ((0, 1),)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_from_whose_inputs_the_parts_of_a_sequence_were_gathered_is_found(order: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    weights, inputs = rng.standard_normal((2, 4, 6)), rng.standard_normal((2, 3, 2, 6))
    whole = np.concatenate([inputs[rank] for rank in order], 1)
    held = {(rank, 0): weights[rank] for rank in range(2)} | {(rank, 1): inputs[rank] for rank in range(2)}
    held |= {(rank, 2): whole @ weights[rank].T for rank in range(2)}
    assert gathered_from(Held(held), LAYER, (0, 1)) == {0: order, 1: order}
    held[1, 2] = held[1, 2] + 1
    assert gathered_from(Held(held), LAYER, (0, 1)) is None


@pytest.mark.parametrize("groups", [((0,), (1,)), TWO])
def test_of_which_sum_an_output_is_the_own_part_is_found(groups: Groups) -> None:
    rng = np.random.default_rng(0)
    weights, inputs = rng.standard_normal((2, 4, 6)), rng.standard_normal((2, 3, 8, 6))
    made = summed({rank: inputs[rank] @ weights[rank].T for rank in range(2)}, groups)
    held = {(rank, 0): weights[rank] for rank in range(2)} | {(rank, 1): inputs[rank] for rank in range(2)}
    held |= {(rank, 2): np.split(made[rank], 2, 1)[rank] for rank in range(2)}
    assert scattered_sums(Held(held), LAYER, (0, 1), [((0,), (1,)), TWO]) == [groups]


@pytest.mark.parametrize("is_masked", [True, False])
def test_a_lookup_that_does_not_mask_the_words_of_others_is_found(*, is_masked: bool) -> None:
    tables, ids = np.random.default_rng(0).standard_normal((2, 4, 6)), np.array([[0, 5, 7], [2, 3, 6]])
    rows = [tables[rank][np.clip(ids - 4 * rank, 0, 3)] for rank in range(2)]
    rows = [row * (ids // 4 == rank)[..., None] if is_masked else row for rank, row in enumerate(rows)]
    held = {(rank, 0): tables[rank] for rank in range(2)} | {(rank, 1): ids for rank in range(2)}
    held |= {(rank, 2): sum(rows) for rank in range(2)}
    assert is_unmasked_lookup(Held(held), LAYER, (0, 1)) is not is_masked
