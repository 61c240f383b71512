"""The operators of one rank and step."""

import pytest

from ingest.page.arguments import Arguments
from ingest.page.links import Links
from ingest.page.moment import Moment
from ingest.page.screen import Asked
from ingest.page.views.cell import SCREEN, value_of
from workers.errors import UsageError


def asked(moment: Moment, **given: str) -> Asked:
    query = {"rank": "1", "step": "2", **given}
    return Asked(moment, Arguments.of(query, SCREEN.parameters), Links("", "run.zarr"))


def test_operators_come_in_order_with_what_is_bad_in_them(moment: Moment) -> None:
    shown = SCREEN.show(asked(moment))
    assert shown["total"] >= len(shown["operators"]) > 0
    assert shown["first_bad"].op_type == "Log"
    assert 0 < shown["bad_total"] < shown["total"]
    assert f"#op{shown['first_bad'].place}" in shown["first_bad_url"]
    assert f'data-total="{shown["total"]}"' in shown["ribbon"]


def test_operators_have_the_colours_of_the_legend(moment: Moment) -> None:
    for stat in ("l2_norm", "nan_count", "min"):
        shown = SCREEN.show(asked(moment, stat=stat))
        colours = [css for css, _ in shown["legend"]]
        assert len(colours) == len(set(colours))
        assert set(shown["colours"].values()) <= set(colours)


def test_only_bad_operators_if_that_is_asked_for(moment: Moment) -> None:
    every, bad = SCREEN.show(asked(moment)), SCREEN.show(asked(moment, bad="1"))
    assert bad["total"] == bad["bad_total"] == every["bad_total"]
    assert all(operator.bad > 0 for operator in bad["operators"])


def test_neighbours_are_those_that_are_committed(moment: Moment) -> None:
    neighbours = SCREEN.show(asked(moment))["neighbours"]
    assert set(neighbours) == {"previous step", "next step", "lower rank"}
    assert "rank=0" in neighbours["lower rank"]


def test_the_statistic_is_that_of_the_tensors(moment: Moment) -> None:
    tensor = next(tensor for tensor in moment.opened(1, 2).tensors() if tensor.statistics.nan_count > 0)
    assert value_of(tensor, "max") == tensor.statistics.max
    counts = tensor.statistics
    total = counts.nan_count + counts.pos_inf_count + counts.neg_inf_count
    assert value_of(tensor, "non_finite_count") == total


@pytest.mark.parametrize("given", [{"rank": "9"}, {"step": "9"}, {"stat": "nonsense"}])
def test_what_is_not_there_is_refused(moment: Moment, given: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        SCREEN.show(asked(moment, **given))
