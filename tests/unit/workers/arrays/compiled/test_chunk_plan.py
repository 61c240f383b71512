"""The numbers of a plan fit the format of Blosc, and one another."""

from workers.arrays.compiled import chunk_plan
from workers.arrays.compiled.chunk_plan import COLUMNS, COLUMNS_AT, FIELDS, ITEMSIZES, Outcome
from workers.store.packed.chunks import HEADER


def test_the_header_is_that_of_the_encoder() -> None:
    assert HEADER.size == chunk_plan.HEADER_NBYTES


def test_a_plan_has_room_for_the_planes_of_each_byte() -> None:
    assert COLUMNS == COLUMNS_AT + 1
    assert max(ITEMSIZES) == FIELDS - COLUMNS


def test_outcomes_differ_and_zero_is_the_good_one() -> None:
    assert Outcome(0) is Outcome.DECODED
    assert sorted(Outcome) == list(range(len(Outcome)))
