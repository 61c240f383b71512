"""A table of another step or rank has a right checksum of its own, but is not the one that was committed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingest.api import open_store, repair
from ingest.dispatch.runners import in_threads
from ingest.wiring.consolidation import sketch_steps
from tests.damages import only
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly, plan_all
from workers.model import StepKey
from workers.rules.schema import load_rules
from workers.store import commit, tables
from workers.store.commit import Commit
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects, resolve
from workers.store.tables import Tables, checksums_of
from workers.tasks import publish as publishing
from workers.tasks.convert import convert
from workers.tasks.publish import build_tables, publish

KEY, OTHER = StepKey(0, 1), StepKey(0, 2)


@pytest.fixture
def filled(made: MadeDump) -> MadeDump:
    """Two steps of equal form, with findings, histograms, digests of blocks and marginals."""
    for step in (1, 2):
        values = np.tile(np.arange(1000, dtype=np.float32) * step, (300, 1))
        values[0, :step] = np.nan
        made.add(values, tensor_name(time=step), step=step)
    return made


@pytest.fixture
def objects(filled: MadeDump, store: Path) -> ObjectStore:
    ingest_directly(filled.root, store, rules=load_rules().enabled, sketches=True)
    return open_objects(resolve(str(store)))


def committed_in(objects: ObjectStore, key: StepKey = KEY) -> Commit:
    committed = commit.read(objects, key)
    assert committed is not None
    return committed


def stored_in(objects: ObjectStore) -> dict[str, int]:
    """Return what the tables of the step end with."""
    committed = committed_in(objects)
    keys = committed.record.checksums
    chunks = {key: objects.get(f"{committed.prefix}/{key}") for key in keys}
    return checksums_of({key: data for key, data in chunks.items() if data is not None})


def test_a_commit_lists_every_table(objects: ObjectStore) -> None:
    listed = committed_in(objects).record.checksums
    names = {key.partition("/c/")[0].split("/")[0] for key in listed}
    assert names == {
        *("index", "statistics", "findings"),
        *("histograms", "block_digests", "marginal_axes", "marginals"),
    }
    assert set(tables.chunk_keys()) <= listed.keys()
    assert stored_in(objects) == listed


@pytest.mark.usefixtures("objects")
@pytest.mark.parametrize(
    "table",
    [
        *("index/labels", "index/numbers", "index/digest", "statistics"),
        *("findings/*/numbers", "histograms", "block_digests", "marginals"),
    ],
)
def test_the_table_of_another_step_is_damage_and_is_mended(store: Path, table: str) -> None:
    path = only(store, f"{KEY.path}/*/{table}/c/0/0")
    before = path.read_bytes()
    path.write_bytes(only(store, f"{OTHER.path}/*/{table}/c/0/0").read_bytes())
    assert path.read_bytes() != before
    assert any("crc32c is another" in str(damage) for damage in open_store(store).verify())
    assert repair(store, apply=True).is_clean
    assert path.read_bytes() == before
    assert list(open_store(store).verify()) == []


def test_what_is_added_to_a_commit_is_listed(filled: MadeDump, store: Path) -> None:
    ingest_directly(filled.root, store)
    objects = open_objects(resolve(str(store)))
    assert set(committed_in(objects).record.checksums) == set(tables.chunk_keys())
    sketch_steps(open_store(store), in_threads)
    assert "histograms/c/0/0" in committed_in(objects).record.checksums
    assert stored_in(objects) == committed_in(objects).record.checksums


def test_tables_that_come_out_otherwise_elsewhere_are_those_of_the_commit(
    filled: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of sums depends on the processor. Two workers that commit the same step must not mix."""
    plan = plan_all(filled.root, store)[0]
    receipts = [convert(job) for job in plan.jobs]
    objects = open_objects(resolve(str(store)))

    def build_there(*args: Any) -> Tables:
        built = build_tables(*args)
        built.statistics[:] = np.nextafter(built.statistics, np.inf)
        return built

    def commit_there(*_: object) -> None:
        monkeypatch.undo()
        with monkeypatch.context() as there:
            there.setattr(publishing, "build_tables", build_there)
            publish(plan, receipts)
        assert stored_in(objects) == committed_in(objects).record.checksums

    monkeypatch.setattr(commit, "_refuse_if_removed", commit_there)  # after the tables were written
    publish(plan, receipts)
    assert stored_in(objects) == committed_in(objects).record.checksums
