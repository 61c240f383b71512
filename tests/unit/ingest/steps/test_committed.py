"""A watcher that starts again: what it asks the store for, and what it reads of the dump."""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.steps import CountingStore
from ingest.service.service import Service
from ingest.steps.decide import CompletenessPolicy, StepPolicy
from ingest.steps.watcher import DumpState, QuietClock
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from tests.services import make_service
from workers.model import StepKey
from workers.store import commit
from workers.store.opening import connect, open_objects, resolve

STEPS = 40
KEYS = [StepKey(0, step) for step in range(STEPS)]


@pytest.fixture
def filled(made: MadeDump, store: Path) -> MadeDump:
    """A dump of one rank that is in the store."""
    for step in range(STEPS):
        made.add(np.full(3, step, "<f4"), tensor_name(time=step + 1), step=step)
    ingest_directly(made.root, store)
    return made


@pytest.fixture
def opened(made: MadeDump) -> Iterator[list[str]]:
    """The files of the dump that are opened."""
    paths: list[str] = []
    listening = True
    root = str(made.root)

    def observe(event: str, arguments: tuple[Any, ...]) -> None:
        if listening and event == "open" and str(arguments[0]).startswith(root):
            paths.append(str(arguments[0]))

    sys.addaudithook(observe)  # there is no way to take it away again
    yield paths
    listening = False


def started(made: MadeDump, store: Path, **options: Any) -> tuple[Service, CountingStore, list[DumpState]]:
    """Return a service that has done nothing yet, the store that it asks, and what it sees."""
    objects = CountingStore(connect(resolve(str(store))))
    views: list[DumpState] = []
    service = make_service(
        made.root,
        objects,
        observers=[lambda event: views.append(event) if isinstance(event, DumpState) else None],
        policy=StepPolicy(CompletenessPolicy(0, 0)),
        quiet_clock=QuietClock(files=lambda _: 4e9),
        poll_s=0.01,
        **options,
    )
    return service, objects, views


def test_a_restart_reads_no_file_that_is_committed(filled: MadeDump, store: Path, opened: list[str]) -> None:
    new = filled.add(np.zeros(3), step=STEPS)
    service, objects, views = started(filled, store)
    service.tick()
    assert views[0].pending.keys() == {StepKey(0, STEPS)}
    assert set(opened) == {str(new)}
    assert objects.requests <= STEPS + 10


def test_a_restart_asks_only_for_steps_that_the_dump_has(filled: MadeDump, store: Path) -> None:
    for step in range(5, STEPS):
        shutil.rmtree(filled.directory(step))
    service, objects, views = started(filled, store)
    service.tick()
    assert not views[0].pending
    assert objects.requests == 5 + 2  # and for the first and the last step of the rank: where they come from


def test_new_steps_do_not_wait_until_all_others_are_known(
    filled: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To ask an object store for ten thousand commits takes longer than a job makes steps."""
    monkeypatch.setattr("ingest.steps.committed._MOST", 1)
    monkeypatch.setattr("ingest.service.service._TICK_S", 1e-4)
    filled.add(np.zeros(3), step=STEPS)
    service, _, views = started(filled, store)
    service.committed.at_look_s = 0.0
    outcomes = service.tick()
    assert StepKey(0, STEPS) in {outcome.plan.key for outcome in outcomes}
    # What is not known is not even listed, so nothing is deleted and no run ends.
    assert len(views[0].unlisted) == STEPS - 1  # it was asked for one of them
    assert not views[0].pending.keys() - {StepKey(0, STEPS)}
    assert {outcome.plan.key for outcome in outcomes} == {StepKey(0, STEPS)}
    while not service.committed.is_checked:
        outcomes += service.tick()
    outcomes += service.tick()
    assert not views[-1].pending
    assert not views[-1].unlisted
    assert len(views[-1].present) == STEPS + 1
    assert {outcome.plan.key for outcome in outcomes} == {StepKey(0, STEPS)}


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def _of_another_step(path: Path) -> None:
    shutil.copyfile(path.parent.parent / "step_4" / "zarr.json", path)


@pytest.mark.parametrize("damage", [_cut, _of_another_step, Path.unlink])
def test_what_is_no_commit_is_made_again(
    filled: MadeDump, store: Path, damage: Callable[[Path], None]
) -> None:
    damage(store / KEYS[3].path / "zarr.json")
    service, _, views = started(filled, store)
    outcomes = service.tick()
    assert views[0].pending.keys() == {KEYS[3]}
    assert {outcome.plan.key for outcome in outcomes} == {KEYS[3]}
    again = commit.read(open_objects(resolve(str(store))), KEYS[3])
    assert again is not None
    assert again.key == KEYS[3]
