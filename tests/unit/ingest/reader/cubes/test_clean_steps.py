"""Steps that the cubes know to be clean are passed over, and every answer stays what it was."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ingest
from bench.steps import commit_tables, make_tables
from ingest.api import open_store
from ingest.reader.snapshot import take_snapshot
from ingest.reader.step_statistics import CleanSteps
from tests.cube_stores import NAMES, once
from workers.arrays.statistics import FIELDS, NON_FINITE_FIELDS
from workers.model import StepKey
from workers.store import commit, tables
from workers.store.consolidated.cubes import CubeGrid
from workers.store.model import RowKind
from workers.store.opening import open_objects, resolve

_RANKS, _STEPS = 3, 8
#: Steps whose number of NaN is not known; with NaN; with +Inf that is known, and that comes from nowhere.
_UNKNOWN, _NAN, _INF = 3, 5, 6


def _put(store: Path, rank: int, step: int) -> None:
    """Commit a step that has statistics alone."""
    key = StepKey(rank, step)
    made = make_tables(key, NAMES[: 4 + rank], [1] if step == _NAN and rank == 1 else [])
    made.labels[:, tables.LABELS.index("kind")] = RowKind.STATISTICS.value
    if step == _UNKNOWN:
        made.statistics[2, FIELDS.index("nan_count")] = np.nan
    if step == _INF:
        made.statistics[0, FIELDS.index("pos_inf_count")] = 2
    commit_tables(open_objects(resolve(store)), key, made)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with statistics alone, with cubes in blocks of three steps and two ranks."""
    store = tmp_path_factory.mktemp("clean") / "run.zarr"
    commit.ensure_root(open_objects(resolve(store)))
    for step in range(_STEPS):
        for rank in range(_RANKS):
            _put(store, rank, step)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CubeGrid, "for_size", classmethod(lambda *_: CubeGrid(2, 4, 2, 3)))
        once(open_objects(resolve(store)))
    return store


@pytest.fixture
def without_cubes(store: Path, tmp_path: Path) -> Path:
    """The same run without cubes, at a path of the same name."""
    copy = tmp_path / "run.zarr"
    shutil.copytree(store, copy, ignore=shutil.ignore_patterns("consolidated"))
    return copy


def _clean(store: Path, *counts: str, rank: int | None = None) -> list[int]:
    snapshot = take_snapshot(open_store(store), rank)
    clean = CleanSteps(snapshot, counts)
    return [step for step in snapshot.steps if step in clean]


def test_only_steps_of_which_every_count_is_known_are_clean(store: Path) -> None:
    assert _clean(store, *NON_FINITE_FIELDS) == [0, 1, 2, 4, 7]
    assert _clean(store, "nan_count") == [0, 1, 2, 4, 6, 7]
    assert _clean(store, *NON_FINITE_FIELDS[1:]) == [0, 1, 2, 4, 5, 7]
    assert _clean(store, *NON_FINITE_FIELDS, rank=0) == [0, 1, 2, 4, 5, 7]


ANSWERS: dict[str, Callable[[ingest.DumpStore], object]] = {
    "incidents": lambda opened: ingest.incidents(opened).to_dict()["incidents"],
    "origin of anything": lambda opened: ingest.origin(opened).to_dict(),
    "origin of NaN": lambda opened: ingest.origin(opened, cause="nan").to_dict(),
    "origin of Inf": lambda opened: ingest.origin(opened, cause="inf").to_dict(),
    "origin of an overflow": lambda opened: ingest.origin(opened, cause="overflow").to_dict(),
    "origin on one rank": lambda opened: ingest.origin(opened, rank=0).to_dict(),
    "origin in clean steps": lambda opened: ingest.origin(opened, step=[0, 1, 2]).to_dict(),
    "origin in clean steps and others": lambda opened: ingest.origin(opened, step=[2, 3, 4]).to_dict(),
}


@pytest.mark.parametrize("question", ANSWERS)
def test_answers_are_the_same_with_cubes_and_without(question: str, store: Path, without_cubes: Path) -> None:
    ask = ANSWERS[question]
    answers = [repr(ask(open_store(path))).replace(str(path), "") for path in (store, without_cubes)]
    if question == "incidents":  # the id is one of the URL
        answers = [answer[answer.index("'kind'") :] for answer in answers]
    assert answers[0] == answers[1]
