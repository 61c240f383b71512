"""`dump-ingest consolidate` as it is typed."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ingest.cli import consolidate_follow
from ingest.cli.consolidate_follow import Following
from ingest.reader.cube_conditions import open_cubes
from ingest.settings import load
from tests.cli import Answer
from workers.store.opening import open_objects, resolve


def test_what_adds_sketches_to_old_steps_is_named(answer: Answer) -> None:
    assert "dump-ingest sketch" in answer("consolidate", "--help").stdout


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again soon, and serve no metrics."""
    monkeypatch.setattr(consolidate_follow, "_STANDBY_S", 0.05)
    monkeypatch.setenv("DUMP_INGEST_CONSOLIDATOR_METRICS", "")


@contextmanager
def following(
    store: Path, *, rebuild: bool = False, patience_s: float = 0, finish: bool = False
) -> Iterator[Following]:
    """Follow a store in a thread."""
    stop = threading.Event()
    settings = load(store=str(store), finish=finish).settings
    follow = Following(settings, 0.05, patience_s, rebuild, json=False)
    thread = threading.Thread(target=follow.run, args=(stop,))
    thread.start()
    try:
        yield follow
    finally:
        stop.set()
        thread.join(30)
        assert not thread.is_alive()


def wait_for_steps(store: Path, count: int) -> None:
    """Return when the view has `count` steps."""
    objects = open_objects(resolve(str(store)))
    waited = threading.Event()
    for _ in range(600):
        cubes = open_cubes(objects)
        if cubes is not None and len(cubes.steps) == count:
            return
        waited.wait(0.05)
    pytest.fail(f"the view has no {count} steps")


@pytest.mark.parametrize(("finish", "steps"), [(False, 2), (True, 3)])
def test_at_its_end_it_takes_what_a_rank_has_not_committed_if_asked_for(
    finish: bool, steps: int, nan_store: Path, tmp_path: Path
) -> None:
    """The job has ended: the other ranks do not come any more."""
    store = Path(shutil.copytree(nan_store, tmp_path / "run.zarr"))
    shutil.rmtree(store / "rank_1" / "step_3")
    with following(store, patience_s=3600, finish=finish):
        wait_for_steps(store, 2)
    cubes = open_cubes(open_objects(resolve(str(store))))
    assert cubes is not None
    assert len(cubes.steps) == steps


def test_at_its_end_it_takes_what_came_while_it_stood_by(
    nan_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(consolidate_follow, "_STANDBY_S", 3600)
    store, said = tmp_path / "run.zarr", ""
    with following(store, finish=True):
        while "waiting: " not in said:
            threading.Event().wait(0.05)
            said += capsys.readouterr().err
        shutil.copytree(nan_store, store)
    wait_for_steps(store, 3)
