"""Two runs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from bench.steps import commit_run
from ingest.page.asking import Arguments, Asked, Links
from ingest.page.library import Library
from ingest.page.moment import Moment
from ingest.page.views import compare
from ingest.page.views.compare import SCREEN, growth_of, pairing_of
from ingest.questions.compare import ComparedStep, Comparison
from ingest.questions.compare.programs import OperatorGap, Programs, Why
from ingest.questions.compare.result import GuessedName
from ingest.reader.dump_store import open_store
from workers.model import StepKey


@pytest.fixture(scope="module")
def library(nan_log: Path, tmp_path_factory: pytest.TempPathFactory) -> Library:
    """A run, the same again, and one that has only its first step."""
    root = tmp_path_factory.mktemp("runs")
    for name in ("a.zarr", "b.zarr", "short.zarr"):
        shutil.copytree(nan_log, root / name)
    for step in root.glob("short.zarr/rank_*/step_[23]"):
        shutil.rmtree(step)
    return Library(str(root), refresh_s=60)


def asked(library: Library, **given: str) -> Asked:
    moment = library.run("a.zarr").moment()
    return Asked(moment, Arguments.of(given, SCREEN.parameters), Links("", "a.zarr"), library)


def test_what_takes_long_is_left_out_and_linked(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("_CELLS_AT_ONCE", "_NBYTES_AT_ONCE"):
        monkeypatch.setattr(compare, limit, 10)
    quick = SCREEN.show(asked(library, **{"with": "b.zarr"}))
    assert (quick["growth"], quick["overlays"]) == (None, [])
    assert "over=1" in quick["over_url"]
    assert "elements=1" in quick["elements_url"]
    assert "--no-elements" in quick["lines"].shell
    whole = SCREEN.show(asked(library, **{"with": "b.zarr", "over": "1", "elements": "1"}))
    assert whole["growth"] is not None
    assert (whole["over_url"], whole["elements_url"]) == ("", "")
    assert "--no-elements" not in whole["lines"].shell


def test_what_differs_first_is_listed_and_drawn(tmp_path: Path) -> None:
    moments = []
    for run, seed in (("a.zarr", 0), ("b.zarr", 1)):
        commit_run(str(tmp_path / run), [0], range(3), [f"op{number}" for number in range(70)], seed=seed)
        moments.append(Moment.of(open_store(tmp_path / run)))
    asked_growth = Asked(moments[0], Arguments({}), Links("", "a.zarr"))
    shown = growth_of(asked_growth, moments[1], 0, "l2_norm")
    assert shown is not None
    assert (shown["tensors"], shown["steps"], len(shown["firsts"])) == (70, 3, 12)
    assert (shown["firsts"][0]["name"], shown["firsts"][0]["step"]) == ("MatMul.op0.output.0", 0)
    assert 'data-rows="35"' in shown["picture"]
    assert ">tensor</text>" in shown["picture"]
    assert growth_of(asked_growth, moments[1], 9, "l2_norm") is None


def comparison(**given: Any) -> Comparison:
    steps = (ComparedStep(StepKey(0, 1), StepKey(2, 3), {}),)
    return Comparison("a", "b", steps, (), None, **given)


def asked_pairing(moment: Moment) -> Asked:
    return Asked(moment, Arguments.of({}, SCREEN.parameters), Links("", "a.zarr"))


def test_gaps_and_guesses_are_rows_that_lead_to_their_runs(moment: Moment) -> None:
    gaps = (
        OperatorGap("A", "Cast.c[0]", Why.MOVES),
        OperatorGap("B", "MatMul.m", Why.FUSED, "Dense.d"),
    )
    guess = GuessedName("Add.x.*", "Add.y.*", "sequence")
    shown = pairing_of(
        asked_pairing(moment), comparison(programs=Programs(5, 5, 4, gaps), guesses=(guess,)), "b.zarr"
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
