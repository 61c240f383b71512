"""Conditions on sketches give the same from the cubes as from the steps."""

from pathlib import Path

import numpy as np
import pytest

import ingest
from ingest.reader.cube_conditions import sketches_of_step
from ingest.reader.step_tables import read_entries
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from workers.errors import DamagedStore, UsageError
from workers.store.consolidated.cubes import GROUP, SKETCHES, CubeGrid
from workers.store.opening import open_objects, resolve
from workers.store.sketch_columns import SketchColumns
from workers.store.sketches import StepSketches


def values(step: int) -> list[np.ndarray]:
    random = np.random.default_rng(step)
    spread = (random.standard_normal(300) * 10.0 ** random.integers(-8, 6, 300)).astype("<f4")
    half = random.standard_normal(50).astype("<f2")
    half[:3] = [np.nan, np.inf, -np.inf]
    return [
        spread,
        spread,
        half,
        np.zeros(7, "<f4"),
        np.full(3, np.nan, "<f4"),
        np.arange(5),
        -np.abs(spread).astype("<f8") * 1e200,
        np.zeros(0, "<f4"),
        np.ones(4, bool),
    ]


@pytest.fixture
def filled(made: MadeDump, store: Path) -> ingest.DumpStore:
    """Two steps with tensors of all kinds, and their cubes."""
    for step in (3, 4):
        for slot, tensor in enumerate(values(step)):
            made.add(tensor, tensor_name(slot=slot, time=slot + 1), step=step)
    ingest_directly(made.root, store, sketches=True)
    ingest.consolidate(store)
    return ingest.open_store(store)


def test_bounds_are_those_of_the_histograms(filled: ingest.DumpStore) -> None:
    cubes = filled.consolidated()
    wanted = {name.replace(".", "_"): place for place, name in enumerate(SKETCHES)}
    for place, step in enumerate(cubes.steps.tolist()):
        opened = filled.step(0, step)
        known = sketches_of_step(cubes, place, wanted, np.ones(1, bool))
        columns = SketchColumns(opened.tables, "", lambda: StepSketches(read_entries(opened)))  # noqa: B023
        rows = cubes.cube("row", place)[0]
        for name, column in known.items():
            expected = columns.column(name)
            for side in (0, 1):
                np.testing.assert_array_equal(column[side][0][rows >= 0], expected[side][rows[rows >= 0]])


def test_a_step_need_not_have_objects_for_tensors_that_were_added_later(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        CubeGrid, "for_size", classmethod(lambda _cls, _ranks, _tensors: CubeGrid(1, 2, 2, 2))
    )
    for step, tensors in enumerate((1, 5)):
        dump = MadeDump(tmp_path / f"dump_{step}")
        for slot in range(tensors):
            dump.add(np.full(5, slot + 1.0, "<f4"), tensor_name(slot=slot, time=slot + 1), step=step)
        ingest_directly(dump.root, store, sketches=True)
        ingest.consolidate(store)
    cubes = ingest.open_store(store).consolidated()
    assert cubes.find("p99 > 2.5")["step"].tolist() == [1, 1, 1]
    assert cubes.find("p99 > 0.5", step=[0])["step"].tolist() == [0]
    open_objects(resolve(store)).delete(f"{GROUP}/sketches/c/1/0/0/0/1")
    with pytest.raises(DamagedStore, match="sketches/c/1/0/0/0/1: missing"):
        cubes.find("p99 > 2.5")


def test_steps_without_histograms_are_named(made: MadeDump, store: Path) -> None:
    made.add(values(1)[0], tensor_name(), step=1)
    ingest_directly(made.root, store, sketches=False)
    ingest.consolidate(store)
    cubes = ingest.open_store(store).consolidated()
    with pytest.raises(UsageError, match="1 tensor has no histogram") as caught:
        cubes.find("p99 > 1")
    assert "consolidate --rebuild" in caught.value.hint
    ingest.sketch(store)
    ingest.consolidate(store, rebuild=True)
    assert len(ingest.open_store(store).consolidated().find("abs_p99.9 > 1")) == 1
