"""A number for each rank and step, and the greatest of them."""

import pytest

from ingest.page.asking import Arguments, Asked, Links
from ingest.page.moment import Moment
from ingest.page.views.matrix import SCREEN
from workers.errors import UsageError


def asked(moment: Moment, **given: str) -> Asked:
    return Asked(moment, Arguments.of(given, SCREEN.parameters), Links("", "run.zarr"))


def test_the_greatest_cells_are_listed_and_zeros_are_not(moment: Moment) -> None:
    shown = SCREEN.show(asked(moment))
    worst = [(cell["rank"], cell["step"], cell["value"]) for cell in shown["worst"]]
    assert worst == [(1, 2, "7"), (1, 3, "7")]
    assert all("/cell?" in cell["url"] for cell in shown["worst"])
    assert (shown["is_hot"], shown["is_aggregated"], shown["is_brushed"]) == (True, False, False)
    assert shown["label"] == "NaN and Inf over 2 ranks and 3 steps"


def test_a_part_of_the_ranks_and_steps_may_be_chosen(moment: Moment) -> None:
    shown = SCREEN.show(asked(moment, ranks="1", steps="2-3", stat="max", name="Log.*"))
    assert shown["matrix"].values.shape == (1, 2)
    assert (shown["is_brushed"], shown["is_hot"]) == (True, False)
    assert "ranks=1" in shown["data_url"]
    assert "Log.*" in shown["lines"].shell


@pytest.mark.parametrize("given", [{"ranks": "x"}, {"steps": "99"}, {"stat": "nonsense"}])
def test_what_is_not_there_is_refused(moment: Moment, given: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        SCREEN.show(asked(moment, **given))
