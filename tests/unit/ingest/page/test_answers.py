"""What the HTTP API answers, and its description."""

from __future__ import annotations

from typing import Any

import pytest

from ingest.page.asking import ENDPOINTS, Arguments, Asked, Links
from ingest.page.library import Moment
from tests.page_server import RunningPage
from workers.errors import UsageError

BY_NAME = {question.name: question for question in ENDPOINTS}


def answer(moment: Moment, question: str, **given: str) -> Any:
    parameters = BY_NAME[question].parameters
    return BY_NAME[question].answer(Asked(moment, Arguments.of(given, parameters), Links("", "run.zarr")))


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
