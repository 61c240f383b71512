"""The parts of a service, from its settings."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingest.consolidating.lease import LeaseHeld
from ingest.layouts.detect import find_dump
from ingest.service.one_shot import Report
from ingest.settings import Settings, load
from ingest.wiring.consolidation import consolidate, consolidate_after, open_consolidator
from ingest.wiring.stores import place_of_store, refuse_misplaced
from tests.stores import MadeDump, ingest_directly
from workers.errors import UsageError
from workers.rules.schema import load_rules
from workers.store.backends.local import LocalObjects
from workers.store.model import StoreAddress
from workers.store.opening import open_objects, resolve

# The consolidator, from settings.


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


# The store that settings name, and how payloads are cut for it.


def settings(**values: Any) -> Settings:
    return load(**values).settings


def test_a_store_in_the_dump_or_in_memory_is_refused(made: MadeDump) -> None:
    made.add(np.ones(3))
    tree = find_dump(made.root)
    with pytest.raises(UsageError, match="would lie in the dump"):
        place_of_store(settings(store=f"{made.root}/run.zarr"), tree)
    with pytest.raises(UsageError, match="in the memory of one process"):
        place_of_store(settings(store="memory://run.zarr"), tree)


def test_a_store_in_another_store_is_refused(made: MadeDump, store: Path, tmp_path: Path) -> None:
    """`gc` and a new view of the outer one would delete parts of the inner one."""
    made.add(np.ones(3))
    ingest_directly(made.root, store)
    for place in (store / "other.zarr", store / "consolidated", store / "rank_0/step_0/other.zarr"):
        with pytest.raises(UsageError, match=f"{place} would lie in the store {store}"):
            refuse_misplaced(open_objects(resolve(place)))
    refuse_misplaced(open_objects(resolve(tmp_path / "other.zarr")))
