"""The error over tensors and steps on the view of two runs."""

from pathlib import Path

from bench.steps import commit_run
from ingest.page.arguments import Arguments
from ingest.page.links import Links
from ingest.page.moment import Moment
from ingest.page.screen import Asked
from ingest.page.views.growth import growth_of
from ingest.reader.dump_store import open_store


def test_what_differs_first_is_listed_and_drawn(tmp_path: Path) -> None:
    moments = []
    for run, seed in (("a.zarr", 0), ("b.zarr", 1)):
        commit_run(str(tmp_path / run), [0], range(3), [f"op{number}" for number in range(70)], seed=seed)
        moments.append(Moment.of(open_store(tmp_path / run)))
    asked = Asked(moments[0], Arguments({}), Links("", "a.zarr"))
    shown = growth_of(asked, moments[1], 0, "l2_norm")
    assert shown is not None
    assert (shown["tensors"], shown["steps"], len(shown["firsts"])) == (70, 3, 12)
    assert (shown["firsts"][0]["name"], shown["firsts"][0]["step"]) == ("MatMul.op0.output.0", 0)
    assert 'data-rows="35"' in shown["picture"]
    assert ">tensor</text>" in shown["picture"]
    assert growth_of(asked, moments[1], 9, "l2_norm") is None


def test_equal_runs_have_no_first_difference(nan_log: Path) -> None:
    moment = Moment.of(open_store(nan_log))
    shown = growth_of(Asked(moment, Arguments({}), Links("", "a.zarr")), moment, 1, "nan_count")
    assert shown is not None
    assert shown["firsts"] == []


def test_the_legend_says_that_one_run_has_nan_and_the_other_has_not(tmp_path: Path) -> None:
    moments = []
    names = [f"op{number}" for number in range(70)]
    for run, born, seed in (("a.zarr", 1, 0), ("b.zarr", None, 1)):
        commit_run(str(tmp_path / run), [0], range(3), names, born=born, seed=seed)
        moments.append(Moment.of(open_store(tmp_path / run)))
    shown = growth_of(Asked(moments[0], Arguments({}), Links("", "a.zarr")), moments[1], 0, "l2_norm")
    assert shown is not None
    assert dict(shown["legend"])["notch"] == "only one of the two has NaN or Inf"
