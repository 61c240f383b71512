"""The webhook that settings name."""

from pathlib import Path

import pytest

from ingest.reporting.logs import PostLog
from ingest.settings import load
from ingest.wiring.webhooks import open_webhook


def test_without_a_webhook_nothing_is_posted(tmp_path: Path) -> None:
    with open_webhook(load(store=str(tmp_path / "run.zarr")).settings) as webhook:
        assert webhook is None


@pytest.mark.parametrize("severity", ["warning", "critical"])
def test_a_webhook_is_open_for_the_store_and_its_posts_are_logged(tmp_path: Path, severity: str) -> None:
    """It posts nothing before something is found, so nobody has to listen."""
    chosen = load(
        store=str(tmp_path / "run.zarr"), webhook="http://127.0.0.1:9/hook", webhook_severity=severity
    ).settings
    with open_webhook(chosen) as webhook:
        assert webhook is not None
        assert any(isinstance(getattr(seen, "__self__", None), PostLog) for seen in webhook.observers)
