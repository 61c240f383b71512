"""Which operators of two runs are the same."""

from typing import Any

from ingest.page.arguments import Arguments
from ingest.page.links import Links
from ingest.page.moment import Moment
from ingest.page.screen import Asked
from ingest.page.views.compare import SCREEN
from ingest.page.views.pairing import pairing_of
from ingest.questions.compare import ComparedStep, Comparison
from ingest.questions.compare.programs import OperatorGap, Programs, Why
from ingest.questions.compare.result import GuessedName
from workers.model import StepKey


def comparison(**given: Any) -> Comparison:
    steps = (ComparedStep(StepKey(0, 1), StepKey(2, 3), {}),)
    return Comparison("a", "b", steps, (), None, **given)


def asked(moment: Moment) -> Asked:
    return Asked(moment, Arguments.of({}, SCREEN.parameters), Links("", "a.zarr"))


def test_gaps_and_guesses_are_rows_that_lead_to_their_runs(moment: Moment) -> None:
    gaps = (
        OperatorGap("A", "Cast.c[0]", Why.MOVES),
        OperatorGap("B", "MatMul.m", Why.FUSED, "Dense.d"),
    )
    guess = GuessedName("Add.x.*", "Add.y.*", "sequence")
    shown = pairing_of(
        asked(moment), comparison(programs=Programs(5, 5, 4, gaps), guesses=(guess,)), "b.zarr"
    )
    assert shown is not None
    assert shown.summary.startswith("A ran 5 operators, B 5, and 4 are the same")
    guessed, only_a, only_b = shown.rows
    assert (guessed.name_a, guessed.name_b, guessed.why) == ("Add.x.*", "Add.y.*", "by sequence")
    assert [row.is_guess for row in shown.rows] == [True, False, False]
    assert (only_a.name_a, only_a.name_b, only_a.why) == ("Cast.c[0]", "", "passes elements on as they are")
    assert only_a.url.startswith("/runs/a.zarr/cell?rank=0&step=1&name=Cast.c%5B%5B%5D0%5D")
    assert only_b.why == "A does it in Dense.d, or right before"
    assert only_b.url.startswith("/runs/b.zarr/cell?rank=2&step=3&")


def test_what_is_not_listed_is_counted(moment: Moment) -> None:
    gaps = tuple(OperatorGap("A", f"Cast.c{number}", Why.UNKNOWN) for number in range(70))
    shown = pairing_of(asked(moment), comparison(programs=Programs(70, 1, 0, gaps)), "b.zarr")
    assert shown is not None
    assert (len(shown.rows), shown.more) == (60, 10)


def test_names_that_tell_all_need_no_table(moment: Moment) -> None:
    assert pairing_of(asked(moment), comparison(), "b.zarr") is None
