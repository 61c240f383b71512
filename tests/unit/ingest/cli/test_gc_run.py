"""What `gc` does with its options, and with a signal."""

import shutil
import threading
from pathlib import Path

import pytest
import typer

from ingest.cli import gc_run
from ingest.settings import load
from ingest.store_gc.plan import GcPolicy


def test_options_become_a_policy() -> None:
    policy = gc_run.policy_of(
        older_than="30d",
        keep_last=3,
        max_size="1.5 KiB",
        tensors_around_anomalies=2,
        keep_anomalous=True,
        grace="1h",
    )
    assert policy == GcPolicy(30 * 86400, 3, 1536, 2, True, 3600)


def test_an_interrupted_run_keeps_what_is_left(
    nan_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The signal comes before anything is removed."""
    stopped = threading.Event()
    stopped.set()
    monkeypatch.setattr(gc_run, "stop_on_signals", lambda: stopped)
    store = Path(shutil.copytree(nan_store, tmp_path / "run.zarr"))
    with pytest.raises(typer.Exit) as end:
        gc_run.carry_out(load(store=str(store)).settings, GcPolicy(keep_last=1), plan_file=None, json=False)
    assert end.value.exit_code == 130
    assert "run the same command again" in capsys.readouterr().err
    assert (store / "rank_0" / "step_1" / "zarr.json").exists()
