"""What `consolidate` prints of a round."""

from pathlib import Path
from typing import Any

import pytest

from ingest.cli.consolidate_report import say_consolidated
from ingest.consolidating.consolidator import Consolidator, StepsConsolidated
from ingest.findings.series import StepFindings
from tests.cli import strict_json
from workers.store.model import Evaluated
from workers.store.opening import open_objects, resolve


@pytest.fixture
def consolidator(tmp_path: Path) -> Consolidator:
    """One that has taken in nothing yet."""
    return Consolidator(open_objects(resolve(str(tmp_path / "run.zarr"))))


@pytest.mark.parametrize(
    ("consolidated", "message"),
    [
        (StepsConsolidated(), "nothing is new\n"),
        (
            StepsConsolidated(appended=(4, 5, 6), rewritten=(2,), waiting=(7,)),
            "steps added: 4-6; steps rewritten: 2; waiting for ranks: 7\n",
        ),
        (
            StepsConsolidated(damaged=("rank 0 step 1: no index",)),
            "nothing is new\ndamaged: rank 0 step 1: no index\n",
        ),
        (
            StepsConsolidated(findings=(StepFindings(3, Evaluated("rules", totals={"loss_spike": 2})),)),
            "nothing is new\nfound: step 3: 2 (loss_spike 2); `dump-ingest anomalies`\n",
        ),
    ],
)
def test_changes_are_told_as_ranges(
    consolidated: StepsConsolidated,
    message: str,
    consolidator: Consolidator,
    capsys: pytest.CaptureFixture[str],
) -> None:
    say_consolidated(consolidated, consolidator, json=False)
    assert capsys.readouterr().err == message


def test_json_has_all_keys_before_there_is_a_view(
    consolidator: Consolidator, capsys: pytest.CaptureFixture[str]
) -> None:
    say_consolidated(StepsConsolidated(appended=(4,)), consolidator, json=True)
    row: dict[str, Any] = strict_json(capsys.readouterr().out)
    assert row["appended"] == [4]
    assert row.keys() == {
        "appended",
        "rewritten",
        "waiting",
        "damaged",
        "findings",
        "steps",
        "ranks",
        "tensors",
    }
