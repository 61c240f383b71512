"""What the HTTP API answers, and its description."""

from __future__ import annotations

from typing import Any

import pytest

from ingest.page.answers import ENDPOINTS
from ingest.page.asking import Arguments, Asked, Links
from ingest.page.moment import Moment
from tests.page_server import RunningPage
from workers.errors import UsageError

BY_NAME = {question.name: question for question in ENDPOINTS}


def answer(moment: Moment, question: str, **given: str) -> Any:
    parameters = BY_NAME[question].parameters
    return BY_NAME[question].answer(Asked(moment, Arguments.of(given, parameters), Links("", "run.zarr")))


def test_steps_are_chosen_by_rank_and_step(moment: Moment) -> None:
    rows = answer(moment, "steps", rank="1")
    assert {(row["rank"], row["step"]) for row in rows} == {(1, None), (1, 1), (1, 2), (1, 3)} & {
        (opened.key.rank, opened.key.step) for opened in moment.steps
    }
    assert len(answer(moment, "steps", rank="1", step="2")) == 1
    assert answer(moment, "steps", step="99") == []


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


def test_every_path_of_the_contract_is_served_and_the_other_way_round(page: RunningPage) -> None:
    document = page.get("/openapi.json").json
    assert document["openapi"].startswith("3.1")
    paths = document["paths"]
    assert set(paths) == {
        "/api/v1/runs",
        "/api/v1/moment",
        "/api/v1/runs/{run}/moment",
        "/api/v1/runs/{run}/watchers",
        *(f"/api/v1/runs/{{run}}/{question.name}" for question in ENDPOINTS),
    }
    name = "Log.Default_net-LogLoss_Log-op0.output.0"
    values = {"with": "run.zarr", "rank": "1", "step": "2", "name": name}
    for path, methods in paths.items():
        assert set(methods) == {"get"}
        asked = [
            parameter["name"]
            for parameter in methods["get"]["parameters"]
            if parameter["in"] == "query" and (parameter["required"] or parameter["name"] == "step")
        ]
        query = "&".join(f"{name}={values[name]}" for name in asked)
        got = page.get(f"{path.replace('{run}', 'run.zarr')}?{query}".rstrip("?"))
        # This page knows of no watchers, and its store has no marginals: both are said.
        status = 404 if path.endswith(("/watchers", "/outliers")) else 200
        assert (got.status, path) == (status, path), got.text
        got.json  # noqa: B018  (it must be JSON)
