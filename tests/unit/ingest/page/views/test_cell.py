"""The operators of one rank and step."""

from pathlib import Path

import pytest

from bench.steps import commit_tables, make_tables
from ingest.page.asking import Arguments, Asked, Links
from ingest.page.moment import Moment
from ingest.page.views.cell import SCREEN, value_of
from ingest.reader.dump_store import open_store
from tests.npy_files import MadeDump
from tests.page_server import RunningPage
from tests.pipeline import ingest_directly
from workers.errors import UsageError
from workers.model import StepKey
from workers.store.opening import open_objects, resolve


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


def test_the_last_step_leads_to_no_next_one_although_the_rank_has_run_files(moment: Moment) -> None:
    assert moment.ranks_with(None) == [0, 1]
    assert set(SCREEN.show(asked(moment, step="3"))["neighbours"]) == {"previous step", "lower rank"}


def test_the_next_step_is_that_of_the_rank_if_others_number_theirs_differently(store: Path) -> None:
    objects = open_objects(resolve(str(store)))
    for key in (StepKey(0, 0), StepKey(1, 5), StepKey(0, 10)):
        commit_tables(objects, key, make_tables(key, ["op0"]))
    moment = Moment.of(open_store(store))
    ((words, url),) = SCREEN.show(asked(moment, rank="0", step="0"))["neighbours"].items()
    assert (words, "step=10" in url) == ("next step", True)


def test_a_step_without_tensors_says_so(made: MadeDump, store: Path) -> None:
    (made.directory(0) / "notes.json").write_text("{}")
    ingest_directly(made.root, store)
    with RunningPage(store) as page:
        shown = page.get(f"/runs/{store.name}/cell?rank=0&step=0").text
    assert "This step has no tensors." in shown
    assert "<table" not in shown


@pytest.mark.parametrize("given", [{"rank": "9"}, {"step": "9"}, {"stat": "nonsense"}])
def test_what_is_not_there_is_refused(moment: Moment, given: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        SCREEN.show(asked(moment, **given))
