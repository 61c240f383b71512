"""A service from settings: what is refused before anything is started, and what each setting becomes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingest.disk.pressure import Threshold
from ingest.dump_retention.policy import RetentionPolicy
from ingest.layouts.detect import find_dump
from ingest.settings import Settings, load
from ingest.wiring.explaining import explain_steps
from ingest.wiring.options import options_of
from ingest.wiring.services import open_service
from ingest.wiring.stores import has_store, place_of_store
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly
from workers.errors import StoreFormatError, UsageError


def settings(**values: Any) -> Settings:
    return load(**values).settings


def test_a_store_in_the_dump_or_in_memory_is_refused(made: MadeDump) -> None:
    made.add(np.ones(3))
    tree = find_dump(made.root)
    with pytest.raises(UsageError, match="would lie in the dump"):
        place_of_store(settings(store=f"{made.root}/run.zarr"), tree)
    with pytest.raises(UsageError, match="in the memory of one process"):
        place_of_store(settings(store="memory://run.zarr"), tree)


def test_settings_become_what_a_service_is_to_do() -> None:
    chosen = settings(
        quiet_s=7,
        settle_s=3,
        order="newest",
        replace=True,
        after_commit="delete",
        keep_last=4,
        keep_anomalous=True,
        host="node-1",
        under_pressure="newest",
        pressure_free="20%",
    )
    once, forever = options_of(chosen, dry_run=True), options_of(chosen, retry_forever=True)
    assert (once.policy.completeness.quiet_s, once.policy.completeness.settle_s) == (7, 3)
    assert (once.policy.order, once.policy.replace, once.host, once.dry_run) == (
        "newest",
        True,
        "node-1",
        True,
    )
    assert once.retention == RetentionPolicy(4, keep_anomalous=True)
    assert once.pressure is not None
    assert (once.pressure.policy, once.pressure.threshold) == ("newest", Threshold(share=0.2))
    # A watcher never takes again what was removed, or it would undo each `gc`.
    assert (once.take_removed, forever.take_removed) == (True, False)
    assert options_of(settings()).retention is None


def test_a_directory_that_is_not_a_store_shows_before_anything_is_started(
    made: MadeDump, store: Path
) -> None:
    made.add(np.ones(3))
    store.mkdir()
    (store / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    chosen = settings(store=str(store))
    with pytest.raises(StoreFormatError), open_service(find_dump(made.root), chosen):
        pass
    with pytest.raises(StoreFormatError):
        explain_steps(made.root, chosen)


def test_a_store_exists_once_something_is_committed(made: MadeDump, store: Path) -> None:
    made.add(np.ones(3), rank=1, step=2)
    chosen = settings(store=str(store), quiet_s=0, settle_s=0)
    assert not has_store(chosen)
    assert [row.phase for row in explain_steps(made.root, chosen)] == ["ready"]
    ingest_directly(made.root, store)
    assert has_store(chosen)
    assert [row.phase for row in explain_steps(made.root, chosen)] == ["committed"]


def test_sketches_are_kept_unless_a_setting_says_otherwise() -> None:
    assert options_of(settings()).sketches
    assert not options_of(settings(sketches=False)).sketches
