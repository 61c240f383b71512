"""Each question of the API is answered as Python answers it."""

from typing import Any

import pytest

import ingest
from ingest.page.answers import QUESTIONS, sides_of
from ingest.page.arguments import Arguments
from ingest.page.links import Links
from ingest.page.moment import Moment
from ingest.page.screen import Asked
from workers.errors import UsageError

BY_NAME = {question.name: question for question in QUESTIONS}


def answer(moment: Moment, question: str, **given: str) -> Any:
    parameters = BY_NAME[question].parameters
    return BY_NAME[question].answer(Asked(moment, Arguments.of(given, parameters), Links("", "run.zarr")))


def test_questions_have_names_of_their_own() -> None:
    assert len(BY_NAME) == len(QUESTIONS)
    for question in QUESTIONS:
        names = [parameter.name for parameter in question.parameters]
        assert len(set(names)) == len(names)


def test_steps_are_chosen_by_rank_and_step(moment: Moment) -> None:
    rows = answer(moment, "steps", rank="1")
    assert {(row["rank"], row["step"]) for row in rows} == {(1, None), (1, 1), (1, 2), (1, 3)} & {
        (opened.key.rank, opened.key.step) for opened in moment.steps
    }
    assert len(answer(moment, "steps", rank="1", step="2")) == 1
    assert answer(moment, "steps", step="99") == []


def test_findings_and_incidents_are_those_of_the_library(moment: Moment) -> None:
    assert len(answer(moment, "findings")) == len(ingest.anomalies(moment.store).findings)
    expected = [incident.id for incident in ingest.incidents(moment.store).incidents]
    assert [row["id"] for row in answer(moment, "incidents")] == expected
    assert [row["id"] for row in answer(moment, "incidents", id=expected[0])] == expected[:1]
    assert answer(moment, "layout", step="1") == ingest.layout(moment.store, 1).to_dict()
    assert answer(moment, "origin")["op_type"] == "Log"


def test_values_and_tensors_are_named_in_full(moment: Moment) -> None:
    tensor = moment.opened(1, 2).tensors()[0]
    given = {"rank": "1", "step": "2", "name": tensor.name}
    assert answer(moment, "tensor", **given)["name"] == tensor.name
    window = answer(moment, "values", **given, rows="2", columns="1")
    assert len(window["rows"]) <= 2
    assert len(window["columns"]) <= 1
    with pytest.raises(UsageError, match="has no tensor"):
        answer(moment, "tensor", **{**given, "name": "Nothing"})
    with pytest.raises(UsageError, match="rank is missing"):
        answer(moment, "tensors", step="2")


def test_what_reads_many_indexes_is_slow() -> None:
    nothing = Arguments({})
    assert {question.name for question in QUESTIONS if question.is_slow(nothing)} == {
        "comparison",
        "growth",
        "heatmap",
        "layout",
        "outliers",
        "precision",
        "rank_values",
    }
    assert not BY_NAME["outliers"].is_slow(Arguments({"rank": "0", "step": "1"}))
    assert BY_NAME["matrix"].is_slow(Arguments({"stat": "max"}))


def test_a_report_compares_with_no_other_run(moment: Moment) -> None:
    asked = Asked(moment, Arguments({}), Links("", "run.zarr"))
    with pytest.raises(UsageError, match="no run"):
        sides_of(asked, "other.zarr", 0, 1)


def test_values_of_ranks_are_those_of_the_heatmap(moment: Moment) -> None:
    given = {"name": "Log.*", "stat": "max"}
    rows = answer(moment, "rank_values", **given)
    assert rows == [{name: row[name] for name in rows[0]} for row in answer(moment, "heatmap", **given)]


def test_what_needs_sketches_says_so(moment: Moment) -> None:
    given = {"name": "Log.*", "rank": "0", "step": "1"}
    with pytest.raises(UsageError, match="histogram"):
        answer(moment, "precision", **given)
    with pytest.raises(UsageError, match="marginals"):
        answer(moment, "outliers", **given)
