"""Why `find` may have found nothing."""

from pathlib import Path

import ingest
from ingest.cli.find_hints import hints


def test_a_name_that_no_tensor_has_is_answered_with_those_that_are_near(nan_store: Path) -> None:
    (hint,) = hints(ingest.open_store(nan_store), 1, 2, {"name": "Lgo*"})
    assert hint.startswith("No tensor is named like Lgo*; near: Log.Default_net-LogLoss_Log-op0.input.0, ")
