"""Which step is compared with which, and what only one side has."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.questions.compare.selection import Selection, pair_steps
from ingest.reader.snapshot import LeftOut
from workers.errors import UsageError
from workers.model import StepKey


def side(
    ranks: range | list[int],
    steps: range | list[int],
    *,
    rank: int | None = None,
    step: int | None = None,
    left_out: list[StepKey] | None = None,
) -> Any:
    """Return a side with these steps on each of these ranks; `rank` and `step` are what the user named."""
    return whole([StepKey(n, number) for number in steps for n in ranks], left_out or (), rank, step)


def whole(
    keys: Iterable[StepKey],
    left_out: Iterable[StepKey] = (),
    rank: int | None = None,
    step: int | None = None,
) -> Any:
    selection = Selection("run.zarr", rank, step)
    left = [LeftOut(key, "partial") for key in left_out]
    return SimpleNamespace(label=str(selection), selection=selection, keys=list(keys), left_out=left)


def test_several_ranks_and_steps_are_compared_by_number() -> None:
    pairing = pair_steps(side([0, 1], [3, 4]), side([1, 2], [4, 5]))
    assert pairing.groups == (((StepKey(1, 4),), (StepKey(1, 4),)),)
    assert pairing.only_a == (StepKey(0, 3), StepKey(1, 3), StepKey(0, 4))
    assert pairing.only_b == (StepKey(2, 4), StepKey(1, 5), StepKey(2, 5))
    assert pairing.half_complete == ()
    assert pairing.notes == []


def test_a_single_rank_on_either_side_is_compared_whatever_the_numbers() -> None:
    pairing = pair_steps(side([3], [1, 2]), side([7], [2, 3]))
    assert pairing.groups == (((StepKey(3, 2),), (StepKey(7, 2),)),)
    assert (pairing.only_a, pairing.only_b) == ((StepKey(3, 1),), (StepKey(7, 3),))
    assert pairing.notes == ["rank 3 of A is compared with rank 7 of B"]


def test_one_step_is_compared_with_another_only_if_both_are_named() -> None:
    both = pair_steps(side([0], [1], rank=0, step=1), side([0], [5], rank=0, step=5))
    assert both.groups == (((StepKey(0, 1),), (StepKey(0, 5),)),)
    with pytest.raises(UsageError, match="no rank and step in common"):
        pair_steps(side([0], [1], rank=0, step=1), side([0], [5]))


def test_who_names_one_step_does_not_miss_the_others() -> None:
    pairing = pair_steps(side([0, 1], [2], step=2), side([0, 1], range(5)))
    assert len(pairing.groups) == 2
    assert (pairing.only_a, pairing.only_b) == ((), ())
    # Another rank of the same step is missed.
    assert pair_steps(side([0, 1], [2]), side([0], [2], step=2)).only_a == ()
    assert pair_steps(side([0, 1], [2], step=2), side([0], [2])).only_a == (StepKey(1, 2),)


def test_who_names_one_rank_does_not_miss_the_others() -> None:
    pairing = pair_steps(side([1], [2, 3], rank=1), side([0, 1], [3, 4]))
    assert pairing.groups == (((StepKey(1, 3),), (StepKey(1, 3),)),)
    assert pairing.only_a == (StepKey(1, 2),)
    assert pairing.only_b == (StepKey(1, 4),)


def test_a_step_that_is_complete_on_one_side_alone_is_not_missing() -> None:
    pairing = pair_steps(side([3], [1, 2, 3]), side([7], [1], left_out=[StepKey(7, 2)]))
    assert pairing.only_a == (StepKey(3, 3),)
    assert pairing.half_complete == (StepKey(3, 2),)
    turned = pair_steps(side([7], [1], left_out=[StepKey(7, 2)]), side([3], [1, 2, 3]))
    assert (turned.only_b, turned.half_complete) == ((StepKey(3, 3),), (StepKey(3, 2),))


def test_what_has_nothing_in_common_is_refused_with_what_there_is() -> None:
    with pytest.raises(UsageError, match=r"run\.zarr@step=1 and run\.zarr have no rank") as refusal:
        pair_steps(side([0, 1], [1], step=1), side([0, 1], [5, 6, 7]))
    assert refusal.value.hint == (
        "A has ranks 0-1 and step 1, B has ranks 0-1 and steps 5-7. Name what to compare: STORE@RANK,STEP."
    )


_KEYS = st.sets(st.builds(StepKey, st.integers(0, 2), st.integers(0, 3)), min_size=1)


@given(_KEYS, _KEYS, _KEYS)
def test_without_a_selection_every_step_is_compared_or_named_once(
    a: set[StepKey], b: set[StepKey], left_out: set[StepKey]
) -> None:
    in_order = [sorted(keys, key=lambda key: key.order) for keys in (a, b)]
    ours, theirs = whole(in_order[0]), whole(in_order[1], left_out - b)
    try:
        pairing = pair_steps(ours, theirs)
    except UsageError:
        assert not a & b
        return
    compared_a, compared_b = ([group[n][0] for group in pairing.groups] for n in (0, 1))
    assert (
        sorted([*compared_a, *pairing.only_a, *pairing.half_complete], key=lambda key: key.order) == ours.keys
    )
    assert sorted([*compared_b, *pairing.only_b], key=lambda key: key.order) == theirs.keys
    assert pair_steps(theirs, ours).groups == tuple(
        sorted(((y, x) for x, y in pairing.groups), key=lambda group: group[0][0].order)
    )
