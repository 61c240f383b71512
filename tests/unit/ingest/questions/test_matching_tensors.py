"""The tensors of each step that match, and the error if there are none."""

from collections.abc import Callable
from pathlib import Path

import pytest

import ingest
from ingest.questions.heatmap import heatmap
from ingest.questions.trend import trend
from workers.errors import UsageError


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
