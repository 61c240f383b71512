"""Steps that the cubes exclude are not read, and every answer stays what it was."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ingest
from ingest.reader import cube_conditions
from tests.cube_stores import once
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from workers.store.consolidated.cubes import CubeGrid
from workers.store.opening import open_objects, resolve
from workers.store.step import StoredStep

_RANKS, _STEPS = (2, 0), 5


def values(rank: int, step: int) -> list[np.ndarray]:
    """Tensors whose sizes grow with the step; those of step 3 of rank 2 have an infinity."""
    random = np.random.default_rng(10 * step + rank)
    spread = (random.standard_normal(300) * 10.0**step).astype("<f4")
    if (rank, step) == (2, 3):
        spread[5] = np.inf
    return [spread, np.arange(4), np.zeros(5, "<f2"), *([np.full(3, -7.0, "<f4")] if step == 4 else [])]


@pytest.fixture(scope="module")
def made_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five steps of two ranks, and cubes with one rank and two tensors in a chunk."""
    root = tmp_path_factory.mktemp("possible")
    store = root / "run.zarr"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CubeGrid, "for_size", classmethod(lambda *_: CubeGrid(1, 2, 2, 2)))
        for rank in _RANKS:  # the higher one comes first on the axis of ranks
            dump = MadeDump(root / f"dump_{rank}")
            for step in range(_STEPS):
                for slot, tensor in enumerate(values(rank, step)):
                    dump.add(tensor, tensor_name(slot=slot, time=slot + 1), rank=rank, step=step)
            ingest_directly(dump.root, store, sketches=True)
            once(open_objects(resolve(store)))
    return store


@pytest.fixture
def store(made_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it whose cubes are asked however few steps there are."""
    monkeypatch.setattr(cube_conditions, "LEAST_STEPS", 1)
    return shutil.copytree(made_store, tmp_path / "run.zarr")


@pytest.fixture
def indexes_read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int | None]]:
    """The ranks and steps whose index was read."""
    read: list[tuple[int, int | None]] = []
    of_step = StoredStep._read_tables

    def noted(step: StoredStep, objects: list[str]) -> dict[str, bytes]:
        read.append((step.key.rank, step.key.step))
        return of_step(step, objects)

    monkeypatch.setattr(StoredStep, "_read_tables", noted)
    return read


def found(store: Path, **conditions: str) -> list[tuple[int, int | None, str]]:
    tensors = ingest.open_store(store).tensors(**conditions)  # type: ignore[arg-type]
    return [(tensor.rank, tensor.step, tensor.name) for tensor in (*tensors, *tensors.undecided)]


CONDITIONS = (
    "max > 1e3",
    "pos_inf_count > 0",
    "p99 > 100",
    "p99.9 < 1 and max > 0",
    "not p50 <= 0.1",
    "underflow_e4m3 > 0.01 and rank == 0",
    "overflow_float16 > 0 or min == -7",
    "role == 'activation' and abs_p99 > 500",
    "zero_count / count > 0.5 and slot == 2",
    "nan_count != 0",
    "max > 1e300",
)


@pytest.mark.parametrize("where", CONDITIONS)
def test_what_is_found_is_the_same_with_cubes_and_without(where: str, store: Path) -> None:
    with_cubes = found(store, where=where)
    shutil.rmtree(store / "consolidated")
    assert with_cubes == found(store, where=where)


def test_only_steps_that_may_fulfil_it_are_read(
    store: Path, indexes_read: list[tuple[int, int | None]]
) -> None:
    assert found(store, where="pos_inf_count > 0") != []
    assert indexes_read == [(2, 3)]
    indexes_read.clear()
    assert found(store, where="p99 > 5e3") != []
    assert sorted(set(indexes_read)) == [(0, 4), (2, 4)]
    indexes_read.clear()
    assert found(store, where="max > 1e300") == []
    assert indexes_read == []


QUESTIONS: dict[str, Callable[[ingest.DumpStore], object]] = {
    "precision": lambda opened: ingest.precision(opened, formats=["e4m3"], where="p99 > 5e3").to_dict(),
    "outliers": lambda opened: ingest.outliers(opened, where="max > 5e3").to_dict(),
    "quantiles": lambda opened: ingest.quantiles(opened, where="max > 5e3").to_dict(),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_questions_about_sketches_read_the_same_steps(
    question: str, store: Path, indexes_read: list[tuple[int, int | None]]
) -> None:
    answer = QUESTIONS[question](ingest.open_store(store))
    assert {step for _, step in indexes_read} == {4}
    shutil.rmtree(store / "consolidated")
    assert QUESTIONS[question](ingest.open_store(store)) == answer
