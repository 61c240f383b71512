"""A number for each rank and step, and the greatest of them."""

import shutil
from pathlib import Path

import pytest

from ingest.page.asking import Arguments, Asked, Links
from ingest.page.moment import Moment
from ingest.page.views.matrix import SCREEN
from tests.page_server import RunningPage
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


def test_only_statistics_of_tensors_are_slow(moment: Moment) -> None:
    """Counts are in the commits, which are read already."""
    assert not SCREEN.is_slow(asked(moment).arguments)
    assert SCREEN.is_slow(asked(moment, stat="max").arguments)


@pytest.mark.parametrize("given", [{"ranks": "x"}, {"steps": "99"}, {"stat": "nonsense"}])
def test_what_is_not_there_is_refused(moment: Moment, given: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        SCREEN.show(asked(moment, **given))


def test_a_store_without_a_step_has_no_picture(nan_log: Path, tmp_path: Path) -> None:
    shutil.copytree(nan_log, tmp_path / "run.zarr", ignore=shutil.ignore_patterns("rank_*", "consolidated"))
    with RunningPage(tmp_path / "run.zarr") as page:
        for view in ("matrix", "matrix?stat=max", "incidents", "incidents?layout=1", "live"):
            shown = page.get(f"/runs/run.zarr/{view}")
            assert (shown.status, "No step is committed yet" in shown.text) == (200, True), view
