"""What is suspected, and how much it is worth."""

from pathlib import Path

import pytest

from ingest.api import DumpStore, open_store, origin
from ingest.questions.next_dump.suspicion import (
    OperatorId,
    Suspect,
    Suspicion,
    suspicion_of_names,
    suspicion_of_origin,
    with_step_before,
)
from workers.errors import UsageError

PARAMETER = Suspect(OperatorId("Net", "0", "Parameter", "w"), 1.0, "it began here")
ADAM = Suspect(OperatorId("Net", "0", "Adam", "a"), 0.5, "it reads it")


@pytest.fixture(scope="module")
def store(nan_log: Path) -> DumpStore:
    return open_store(nan_log)


def test_the_step_before_is_dumped_unless_it_is_the_first() -> None:
    assert [with_step_before(step) for step in (0, 1, 7)] == [(0,), (0, 1), (6, 7)]


def test_a_parameter_is_left_out_if_others_remain() -> None:
    both = Suspicion((PARAMETER, ADAM), (1,), (0,), "w")
    assert both.without_parameters().suspects == (ADAM,)
    assert "not dumped by themselves" in both.without_parameters().notes[0]
    only = Suspicion((ADAM,), (1,), (0,), "a")
    assert only.without_parameters() is only
    with pytest.raises(UsageError, match="w is a parameter") as error:
        Suspicion((PARAMETER,), (1,), (0,), "w").without_parameters()
    assert error.value.hint


def test_where_it_began_is_worth_most_and_what_is_farther_less(store: DumpStore) -> None:
    suspicion = suspicion_of_origin(store, origin(store))
    assert suspicion.suspects[0].operator.op_type == "Log"
    worths = [suspect.worth for suspect in suspicion.suspects]
    assert worths == sorted(worths, reverse=True)
    assert len({suspect.operator for suspect in suspicion.suspects}) == len(suspicion.suspects)
    assert (suspicion.steps, 1 in suspicion.ranks) == ((1, 2), True)
    assert suspicion.suspects[0].why == "NaN was born in it on rank 1, step 2"


def test_a_name_chooses_the_newest_step_that_has_it(store: DumpStore) -> None:
    suspicion = suspicion_of_names(store, ["Sigmoid.*output*", "Log.*"])
    assert {suspect.operator.op_type for suspect in suspicion.suspects if suspect.worth == 1} == {
        "Sigmoid",
        "Log",
    }
    assert (suspicion.steps, suspicion.ranks) == ((2, 3), (0, 1))
    with pytest.raises(UsageError, match="no tensor is called 'Nothing'"):
        suspicion_of_names(store, ["Log.*", "Nothing"])
