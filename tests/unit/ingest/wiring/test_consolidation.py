"""The consolidator, from settings."""

from pathlib import Path

import numpy as np
import pytest

from ingest.consolidating.lease import LeaseHeld
from ingest.service.one_shot import Report
from ingest.settings import load
from ingest.wiring.consolidation import consolidate, consolidate_after, open_consolidator
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly
from workers.errors import UsageError
from workers.rules.schema import load_rules
from workers.store.backends.local import LocalObjects
from workers.store.model import StoreAddress


@pytest.fixture
def filled(made: MadeDump, store: Path) -> Path:
    """A store of one step."""
    made.add(np.ones(3), step=1)
    ingest_directly(made.root, store)
    return store


def test_a_place_without_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        consolidate(tmp_path / "nowhere.zarr")
    assert not (tmp_path / "nowhere.zarr").exists()


def test_after_an_ingest_a_failure_is_recorded_and_the_commits_stand(filled: Path) -> None:
    objects = LocalObjects(StoreAddress(str(filled)))
    rules = load_rules().enabled
    report = Report()
    with open_consolidator(load(store=str(filled)).settings):
        consolidate_after(report, objects, rules)
    assert isinstance(report.not_consolidated, LeaseHeld)
    again = Report()
    consolidate_after(again, objects, rules)
    assert again.not_consolidated is None
