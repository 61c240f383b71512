"""Who agrees with whom, and on what agreeing tells nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ingest.questions.divergence import divergence
from ingest.questions.divergence.agreement import ABSENT, labels_of, telling
from tests.diverging import WEIGHT, summary
from tests.replicas import Replicas
from workers.arrays.statistics import FIELDS, summarise
from workers.store.consolidated.blocks import Block


@settings(max_examples=60, deadline=None)
@given(
    codes=arrays.arrays(
        np.uint8, st.tuples(st.integers(1, 6), st.integers(1, 12)), elements=st.integers(0, 3)
    ),
    data=st.data(),
)
def test_a_pattern_is_who_agrees_with_whom(codes: np.ndarray, data: st.DataObject) -> None:
    """Against the obvious way to say it."""
    present = data.draw(arrays.arrays(np.bool_, codes.shape))
    digest = np.zeros((*codes.shape, 16), np.uint8)
    digest[:, :, 7] = codes + 1
    digest[:, :, 9] = 5
    digest[~present] = 0
    statistics = np.full((*codes.shape, len(FIELDS)), np.nan)
    ranks = tuple(range(10, 10 + len(codes)))
    row = np.where(present, 0, -1).astype(np.int32)
    found = labels_of(Block(3, ranks, row, statistics, digest), ranks)
    for tensor in range(codes.shape[1]):
        expected = [
            min(j for j in range(len(codes)) if present[j, tensor] and codes[j, tensor] == codes[i, tensor])
            if present[i, tensor]
            else ABSENT
            for i in range(len(codes))
        ]
        assert found[:, tensor].tolist() == expected


@settings(max_examples=100, deadline=None)
@given(value=st.floats(-1e3, 1e3), other=st.floats(-1e3, 1e3), size=st.integers(3, 50), data=st.data())
def test_what_holds_two_values_tells_nothing(
    value: float, other: float, size: int, data: st.DataObject
) -> None:
    """A mask agrees by accident; what holds three values that are far apart does not."""
    which = data.draw(arrays.arrays(np.bool_, size))
    two = np.where(which, value, other)
    three = np.concatenate([[-3.0, 0.5, 3.0], two])
    statistics = np.array([[summarise(two).as_row(), summarise(three).as_row()]])
    block = Block(0, (0,), np.zeros((1, 2), np.int32), statistics, np.ones((1, 2, 16), np.uint8))
    assert not telling(block)[0]


def test_inputs_that_hold_a_weight_are_weights() -> None:
    made = Replicas()
    for step in range(2):
        for rank in range(2):
            contents = {"MatMul.fc.input.1": 5 + step, WEIGHT: 5 + step}
            made.put(rank, step, contents | ({"MatMul.fc.input.1": 9} if rank and step else {}))
    found = divergence(made.store)
    assert summary(found) == [((0, 1), 1, "MatMul.fc.input.1")]
    assert found.odd[0].first.why == "parameter"


def test_what_is_only_reported_is_compared_by_statistics() -> None:
    made = Replicas()
    for step in range(3):
        for rank in range(3):
            made.put(rank, step, {WEIGHT: step + 1 + 50 * (rank == 2 and step == 1)}, reported=True)
    (found,) = divergence(made.store).differences
    assert (found.ranks, found.first_step, found.by) == ((2,), 1, "statistics")


def _trained(parts: dict[int, bool], gradients: int, since: int = 0) -> Replicas:
    """Return two ranks with three parameters: by step, whether they are apart.

    Their gradients differ by `gradients` from a step on.
    """
    made = Replicas()
    for step, is_apart in parts.items():
        for rank in range(2):
            contents = {
                f"Parameter.l{layer}.output.0": 100 * step + layer + 10 * is_apart * rank
                for layer in range(3)
            }
            own = {f"Gradient.l{layer}.output.0": 5000 + 100 * step + layer for layer in range(3)}
            off = gradients * rank * (step >= since)
            made.put(rank, step, contents | {name: each + off for name, each in own.items()})
    return made


@pytest.mark.parametrize("warm_up", [0, 2])
def test_ranks_that_train_apart_and_meet_are_compared_where_they_meet(warm_up: int) -> None:
    """Some begin with steps whose gradients are shared."""
    parts = {step: bool(step % 2) and step > warm_up for step in range(6)}
    found = divergence(_trained(parts, gradients=10, since=warm_up).store)
    assert found.agree
    assert found.apart == tuple(step for step, is_apart in parts.items() if is_apart)
    assert any("local SGD" in note for note in found.notes)


def test_ranks_that_part_for_good_or_share_gradients_do_not_train_apart() -> None:
    for parts, gradients in (
        ({0: False, 1: False, 2: True, 3: True}, 10),
        ({0: False, 1: True, 2: False}, 0),
    ):
        found = divergence(_trained(parts, gradients).store)
        assert not found.apart
        assert found.is_alarm
