"""The tensors of each step that match, and the error if there are none."""

from collections.abc import Callable
from pathlib import Path

import pytest

import ingest
from ingest.questions.heatmap import heatmap
from ingest.questions.trend import trend
from tests.replicas import Replicas
from workers.errors import UsageError


def test_a_name_that_looks_like_a_glob_is_found_by_itself() -> None:
    made = Replicas()
    made.put(0, 1, {"Adam.w[0].input.0": 1, "Adam.w0.input.0": 2})
    assert trend(made.store, "Adam.w[0].input.0", "max")["name"].unique().tolist() == [
        "Adam.w[0].input.0",
        "Adam.w0.input.0",
    ]
    assert trend(made.store, "Adam.w[[]0].input.0", "max")["name"].tolist() == ["Adam.w[0].input.0"]


@pytest.mark.parametrize("ask", [trend, heatmap])
def test_what_is_not_there_is_refused_and_near_names_are_named(
    ask: Callable[..., object], nan_log: Path
) -> None:
    store = ingest.open_store(nan_log)
    with pytest.raises(UsageError, match="no tensor") as error:
        ask(store, "Logg.*")
    assert "Log.Default_net-LogLoss_Log-op0.output.0" in error.value.hint
    with pytest.raises(UsageError, match="no step 9"):
        ask(store, step=9)
