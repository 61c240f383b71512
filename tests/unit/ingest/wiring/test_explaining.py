"""Steps are explained without a running watcher, and nothing is written."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingest.settings import Settings, load
from ingest.wiring.services import explain_steps
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly
from workers.errors import StoreFormatError, UsageError


def settings(**values: Any) -> Settings:
    return load(**values).settings


def test_a_step_is_ready_and_then_committed(made: MadeDump, store: Path) -> None:
    made.add(np.ones(3), rank=1, step=2)
    chosen = settings(store=str(store), quiet_s=0, settle_s=0)
    assert [row.phase for row in explain_steps(made.root, chosen)] == ["ready"]
    assert not store.exists()
    ingest_directly(made.root, store)
    assert [row.phase for row in explain_steps(made.root, chosen)] == ["committed"]


def test_what_is_not_a_dump_or_not_a_store_is_refused(made: MadeDump, store: Path, tmp_path: Path) -> None:
    made.add(np.ones(3))
    store.mkdir()
    (store / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    with pytest.raises(StoreFormatError):
        explain_steps(made.root, settings(store=str(store)))
    with pytest.raises(UsageError):
        explain_steps(tmp_path / "nowhere", settings(store=str(store)))
