"""The disk of a dump that runs full: when that is, when it will be, and what becomes of steps meanwhile."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.api import DumpStore, open_store
from ingest.disk import FORECAST_S, DiskSpace, Pressure, Threshold, Trend, parse_threshold
from ingest.doctor.checks import run_checks
from ingest.reporting.log_output import configure
from ingest.reporting.logs import ServiceLog
from ingest.service.one_shot import ingest_once
from ingest.settings import load
from ingest.steps.decide import CompletenessPolicy, StepPolicy
from ingest.steps.watcher import QuietClock
from tests.cli import run_here
from tests.services import make_service
from tests.stores import SMALL_GRID, DumpLibrary, MadeDump, ingest_directly, plan_all, tensor_name
from tests.stores import run as run_plan
from workers.errors import TensorsRemoved, UsageError
from workers.model import StepKey
from workers.store.model import CommitSummary

GIB = 1024**3
NEVER, ALWAYS = Threshold(), Threshold(nbytes=2**62)


def space(free: int, size: int = 1000, free_inodes: int = 0, inodes: int = 0) -> DiskSpace:
    return DiskSpace(free, size, free_inodes, inodes)


# -- arithmetic


def test_a_threshold_is_a_share_or_bytes() -> None:
    assert parse_threshold("10%") == Threshold(share=0.1)
    assert parse_threshold(" 2.5 % ") == Threshold(share=0.025)
    assert parse_threshold("200GiB") == Threshold(nbytes=200 * GIB)
    assert parse_threshold("0") == NEVER
    assert load(pressure_free=0).settings.pressure_free == "0"


@pytest.mark.parametrize(
    "text", ["", "100%", "-5%", "ten", "10 %%", "-1", "nan", "1e400GB", "10%; rm", "0.1"]
)
def test_what_is_no_threshold_is_refused_with_its_name(text: str) -> None:
    with pytest.raises(UsageError, match=r"pressure_free .*such as 10%"):
        load(pressure_free=text)


def test_pressure_ends_later_than_it_began() -> None:
    pressure = Pressure("newest", Threshold(share=0.1))
    found = [pressure.judge(space(free)).under_pressure for free in (100, 99, 101, 124, 125, 101)]
    assert found == [False, True, True, True, False, False]


@given(
    free=st.integers(0, 10**15),
    rate=st.floats(1, 10**12),
    every=st.floats(10, 60),
    count=st.integers(2, 200),
)
def test_a_steady_pace_is_carried_on(free: int, rate: float, every: float, count: int) -> None:
    trend = Trend()
    for number in range(count):
        trend.add(1e6 + number * every, round(free + rate * every * (count - 1 - number)))
    found = trend.full_in_s()
    looked_back = min((count - 1) * every, 1800)
    if found is None:
        assert free / rate > 0.98 * min(FORECAST_S, 10 * (looked_back - every))
    else:
        assert found == pytest.approx(free / rate, rel=0.01, abs=1)


@given(st.lists(st.integers(0, 10**15), max_size=400), st.floats(0, 100))
def test_a_forecast_never_fails_and_takes_bounded_memory(frees: list[int], every: float) -> None:
    trend = Trend()
    for number, free in enumerate(frees):
        trend.add(number * every, free)
    found = trend.full_in_s()
    assert found is None or 0 <= found <= FORECAST_S
    assert len(trend._samples) <= 182


def test_a_disk_that_fills_is_logged_ahead_of_time_and_not_at_every_look(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure("info", "json")
    now = [0.0]
    pressure, log = Pressure("statistics", clock=lambda: now[0]), ServiceLog(lambda: now[0])
    for _ in range(80):
        log.observe(pressure.judge(space(round((1000 - now[0]) * GIB), 1000 * GIB)))
        now[0] += 12
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    filling = [line for line in said if line["event"] == "disk_filling"]
    assert len(filling) == 2
    assert filling[0]["full_in_s"] == pytest.approx(filling[0]["free_bytes"] / GIB, abs=2)
    assert filling[0]["full_in_s"] > 800
    (nearly,) = [line for line in said if line["event"] == "disk_nearly_full"]
    assert nearly["policy"] == "statistics"


def test_doctor_says_how_full_the_disk_is(tmp_path: Path) -> None:
    for wanted, said in (("0", False), ("99.99%", True)):
        (check,) = [
            check for check in run_checks(load(pressure_free=wanted), tmp_path) if check.check == "disk"
        ]
        assert check.ok
        assert "B free (" in check.detail
        assert ("nearly full" in check.detail) == bool(check.hint) == said


# -- a generation without tensors


def test_everything_but_the_tensors_is_as_in_the_whole_generation(dumps: DumpLibrary, tmp_path: Path) -> None:
    dump = dumps["dtypes-1rank"] / "dump"
    ingest_directly(dump, tmp_path / "whole", SMALL_GRID)
    for plan in plan_all(dump, tmp_path / "less", SMALL_GRID, leave_out_tensors="no room"):
        run_plan(plan)
    whole, less = open_store(tmp_path / "whole"), open_store(tmp_path / "less")
    assert less.keys == whole.keys
    for key in whole.keys:
        one, other = whole.step(key.rank, key.step), less.step(key.rank, key.step)
        for name in ("labels", "numbers", "shape", "digest", "statistics"):
            np.testing.assert_array_equal(getattr(one.tables, name), getattr(other.tables, name))
        without = other.commit.without_tensors
        assert without is not None
        assert (without.by, without.reason) == ("policy", "no room")
        assert not any(path.startswith("tensors") for path in other.commit.nodes)
        assert one.commit.fingerprint != other.commit.fingerprint
    assert not list((tmp_path / "less").glob("*/*/*/tensors"))
    assert list(less.verify()) == []
    with pytest.raises(TensorsRemoved, match="were never stored: no room"):
        less.tensors()[0].read()
    assert "complete, no tensors" in run_here("ls", tmp_path / "less").stdout


# -- the service


class Bench:
    """A service over a dump, with a disk as full as the test says; started again where that is asked for."""

    def __init__(self, made: MadeDump, store: Path) -> None:
        self.made, self.store = made, store
        self.restart(NEVER)

    def restart(self, threshold: Threshold, policy: str = "statistics", **options: Any) -> None:
        self.pressure = Pressure(policy, threshold)  # type: ignore[arg-type]
        self.service = make_service(
            self.made.root,
            self.store,
            policy=StepPolicy(CompletenessPolicy(quiet_s=0, settle_s=0)),
            quiet_clock=QuietClock(files=lambda _: 4e9),
            poll_s=0.01,
            pressure=self.pressure,
            **options,
        )

    def ingest(self) -> list[CommitSummary]:
        """Take what there is to take now."""
        self.service.schedule.scan_soon()
        report = ingest_once(self.service, threading.Event())
        assert not report.failures
        return report.commits

    def steps(self) -> dict[int, bool]:
        """Return which steps are in the store, and whether they have their tensors."""
        found: DumpStore = open_store(self.store)
        return {step.key.step: step.has_tensors for step in found.select() if step.key.step is not None}


@pytest.fixture
def bench(made: MadeDump, store: Path) -> Bench:
    for step in range(3):
        made.add(np.full(100, step, "<f4"), tensor_name(time=step + 1), step=step)
    (made.root / "notes.txt").write_text("run files have no tensors to leave out")
    return Bench(made, store)


Change = Callable[[Bench], None]


def same(bench: Bench) -> None:
    """Go on with the same process."""


def restarted(bench: Bench) -> None:
    """End it, and start another."""
    bench.restart(bench.pressure.threshold)


@pytest.mark.parametrize("between", [same, restarted])
def test_steps_get_their_tensors_when_the_pressure_is_over(bench: Bench, between: Change) -> None:
    bench.pressure.threshold = ALWAYS
    assert len(bench.ingest()) == 4
    assert bench.steps() == {0: False, 1: False, 2: False}
    between(bench)
    assert bench.ingest() == []  # as long as it lasts, that is enough
    bench.pressure.threshold = NEVER
    between(bench)
    assert {summary.key for summary in bench.ingest()} == {StepKey(0, step) for step in range(3)}
    assert bench.steps() == {0: True, 1: True, 2: True}
    assert open_store(bench.store).tensors(step=1)[0].read()[0] == 1
    between(bench)
    assert bench.ingest() == []


@pytest.mark.parametrize("between", [same, restarted])
def test_a_step_without_tensors_whose_source_shrinks_is_kept(bench: Bench, between: Change) -> None:
    more = bench.made.add(np.full(100, 7.0), tensor_name(slot=1, time=9), step=1)
    bench.pressure.threshold = ALWAYS
    bench.ingest()
    more.unlink()
    bench.pressure.threshold = NEVER
    between(bench)
    assert {summary.key.step for summary in bench.ingest()} == {0, 2}
    assert bench.steps() == {0: True, 1: False, 2: True}
    assert len(open_store(bench.store).tensors(step=1)) == 2


# -- a store that is slow
