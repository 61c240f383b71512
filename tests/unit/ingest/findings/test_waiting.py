"""Waiting for an incident, a step, or silence; by a clock that the test turns."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import ingest
from ingest.findings.waiting import Waited, wait, wait_with
from ingest.reader.catalog import open_catalog
from tests.stores import DumpLibrary, asked_dump, plan_all, run
from workers.errors import UsageError
from workers.model import StepKey
from workers.rules.schema import load_rules


class Clock:
    """A clock that moves while somebody sleeps; what is due then is done."""

    def __init__(self, due: dict[float, Callable[[], object]] | None = None) -> None:
        self.now = 0.0
        self.due = dict(due or {})

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for at in sorted(self.due):
            if at <= self.now:
                self.due.pop(at)()


def wait_by(
    clock: Clock, store: Path, until: str, *, step: int | None = None, timeout_s: float = 100
) -> Waited:
    return wait_with(
        lambda: open_catalog(str(store)),
        until,
        severity="critical",
        step=step,
        timeout_s=timeout_s,
        idle_s=20,
        poll_s=5,
        clock=clock,
        sleep=clock.sleep,
    )


@pytest.fixture
def steps(dumps: DumpLibrary, tmp_path: Path) -> tuple[Path, dict[StepKey, Callable[[], object]]]:
    """A store that does not exist yet, and what commits each step into it."""
    store = tmp_path / "run.zarr"
    dump = asked_dump(dumps, tmp_path / "dump", (1, 2, 3))
    plans = plan_all(dump, store, rules=load_rules().enabled)
    return store, {plan.key: partial(run, plan) for plan in plans}


Steps = tuple[Path, dict[StepKey, Callable[[], object]]]


def test_an_incident_counts_once_every_rank_has_its_step(steps: Steps) -> None:
    """What other ranks had in the step of the incident is part of the evidence."""
    store, commit = steps
    clock = Clock(
        {
            10: commit[StepKey(0, 1)],
            12: commit[StepKey(1, 1)],
            20: commit[StepKey(1, 2)],  # the NaN
            50: commit[StepKey(0, 2)],
        }
    )
    waited = wait_by(clock, store, "incident")
    assert (waited.came, clock.now) == (True, 50)
    assert "NaN" in waited.reason
    assert waited.incident is not None
    assert (waited.incident.rank, waited.incident.first_step) == (1, 2)


def test_a_step_counts_once_every_rank_has_it_or_a_later_one(steps: Steps) -> None:
    store, commit = steps
    clock = Clock({5: commit[StepKey(0, 1)], 10: commit[StepKey(1, 3)], 30: commit[StepKey(0, 2)]})
    assert wait_by(clock, store, "step", step=2).came
    assert clock.now == 30
    waited = wait_by(clock, store, "step", step=3, timeout_s=7)
    assert (waited.came, waited.reason) == (False, "rank 0 has committed step 2, and not step 3")
    assert clock.now == 37


def test_a_store_that_never_comes_ends_with_the_time(tmp_path: Path) -> None:
    for until in ("incident", "idle"):
        assert wait_by(Clock(), tmp_path / "none.zarr", until, step=1).came is False
    assert wait(str(tmp_path / "none.zarr"), timeout_s=0).reason == "there is no store yet"


def test_what_cannot_be_waited_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'loss'"):
        ingest.wait(str(tmp_path), "loss")
    with pytest.raises(UsageError, match="--until step needs the number of a step"):
        ingest.wait(str(tmp_path), "step")


def test_a_resumed_job_waits_for_incidents_of_its_own(steps: Steps) -> None:
    store, commit = steps
    for key in (StepKey(0, 1), StepKey(1, 1), StepKey(0, 2), StepKey(1, 2)):
        commit[key]()
    for since, came in ((time.time() - 3600, True), (time.time() + 3600, False)):
        assert wait(str(store), timeout_s=0, since=since).came is came
