"""A black box writes statistics of all steps, and elements of those around what happened."""

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import ingest
from ingest.findings.waiting import wait
from ingest.layouts.black_box import DIRECTORY, OUTSIDE, Trigger
from ingest.layouts.recorder import STEP_FILE
from ingest.reader.cube_conditions import sketches_of_step
from ingest.recording import black_box, writer
from ingest.recording.black_box import Ring, adopt
from ingest.recording.triggers import Triggers, write_trigger
from ingest.reporting.webhook import incident_payload
from tests import recordings
from tests.stores import ingest_directly
from workers.rules.schema import load_rules
from workers.store.consolidated.cubes import SKETCHES

MODELS = Path(__file__).parents[3] / "torch_models.py"


@pytest.fixture
def net(torch: Any, nets: ModuleType) -> Any:
    torch.manual_seed(0)
    return nets.Net()


def saved(dump: Path) -> list[int]:
    """Return the steps of rank 0 that have elements."""
    return sorted(
        int(path.parent.name.removeprefix("step_")) for path in dump.glob("recorded/rank_0/*/*.safetensors")
    )


def box(net: Any, dump: Path, **options: Any) -> ingest.Recorder:
    return ingest.record(net, dump, **{"black_box": 4, "keep": "10MiB", **options})


@pytest.mark.parametrize("ring", [None, "ring"])
def test_an_infinity_saves_the_steps_around_it_and_the_others_keep_their_statistics(
    ring: str | None, net: Any, nets: ModuleType, tmp_path: Path
) -> None:
    def plant(step: int) -> None:
        net.second.rescale.broken = step == 13

    dump = tmp_path / "run-dump"
    with box(net, dump, ring=ring and tmp_path / ring) as recorder:
        nets.train(net, 20, before=plant)
    why = "Inf in Module.Rescale second.rescale output.0 (rank 0, step 13)"
    assert recorder.incidents == {why: [10, 11, 12, 13, 14, 15]}
    assert saved(dump) == [10, 11, 12, 13, 14, 15]
    assert recordings.steps(recorder.directory) == list(range(20))
    assert recordings.mark(recorder.directory, 13) == {"tensors": 29, "incident": why}
    assert recordings.mark(recorder.directory, 9) == {"tensors": 29}
    assert not recorder.problems
    assert ring is None or list((tmp_path / ring).iterdir()) == []
    summaries = ingest_directly(dump, tmp_path / "run.zarr")
    assert {(one.status, bool(one.tensors), one.tensors + one.statistics_only) for one in summaries} == {
        ("complete", True, 29),
        ("complete", False, 29),
    }
    store = ingest.open_store(tmp_path / "run.zarr")
    origin = ingest.origin(store)
    assert (origin.op_name, origin.step) == ("second.rescale", 13)
    (weight,) = store.tensors("Parameter.first.fc.weight.*", step=12)
    np.testing.assert_allclose(np.mean(weight.read(), dtype=np.float64), weight.statistics.mean)


def test_steps_that_are_not_saved_have_the_histograms_that_their_elements_would_have(
    net: Any, nets: ModuleType, torch: Any, tmp_path: Path
) -> None:
    told, bounds, weights = [], [], deepcopy(net.state_dict())
    for name, options in (("box", {"black_box": 2, "incidents": 0}), ("all", {"what": "tensors"})):
        net.load_state_dict(weights)
        torch.manual_seed(0)
        with ingest.record(net, tmp_path / name, **options):
            nets.train(net, 6)
        url = tmp_path / f"{name}.zarr"
        summaries = ingest_directly(tmp_path / name, url, sketches=True)
        assert {bool(one.statistics_only) for one in summaries} == {name == "box"}
        ingest.consolidate(url)
        store = ingest.open_store(url)
        assert not list(store.verify())
        told.append(ingest.quantiles(store, "*", magnitude=True).tensors)
        bounds.append(
            sketches_of_step(store.consolidated(), 4, {"p99": SKETCHES.index("p99")}, np.ones(1, bool))
        )
    assert told[0] == told[1]
    assert len(told[0]) == 6 * 29
    np.testing.assert_array_equal(bounds[0]["p99"], bounds[1]["p99"])


def test_an_exception_saves_the_last_steps(net: Any, nets: ModuleType, tmp_path: Path) -> None:
    def fail(step: int) -> None:
        if step == 9:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), box(net, tmp_path):
        nets.train(net, 20, before=fail)
    assert saved(tmp_path) == [5, 6, 7, 8]


@pytest.mark.parametrize("how", ["call", "file"])
def test_anybody_may_trigger(how: str, net: Any, nets: ModuleType, tmp_path: Path) -> None:
    def trigger(step: int) -> None:
        if step == 9 and how == "call":
            recorder.trigger("the loss looks odd")
        elif step == 9:
            (tmp_path / "black-box").mkdir(exist_ok=True)
            (tmp_path / "black-box" / OUTSIDE).write_text("the loss looks odd\n")

    with box(net, tmp_path) as recorder:
        nets.train(net, 20, before=trigger)
    ((why, steps),) = recorder.incidents.items()
    assert why.startswith("the loss looks odd (rank 0, step ")
    assert steps == list(range(steps[0], steps[-1] + 1))
    if how == "call":
        assert steps == [5, 6, 7, 8, 9, 10]
    assert not (tmp_path / "black-box" / OUTSIDE).exists()


def test_a_spike_of_the_loss_triggers(net: Any, torch: Any, tmp_path: Path) -> None:
    with box(net, tmp_path, of="outputs") as recorder:
        for step in range(40):
            net(torch.ones(1, 8))
            loss = 2.5 + 0.01 * (step % 3) + 7 * (step == 30)
            # What stays NaN is told once, like that of any tensor: here, not within another incident.
            recorder.save("loss", torch.tensor(loss if step < 36 else torch.nan))
    assert recorder.incidents == {
        "saved loss output.0 is 9.5, the median of 30 steps is 2.51 (rank 0, step 30)": list(range(27, 33)),
        "NaN in saved loss output.0 (rank 0, step 36)": list(range(33, 39)),
    }


def test_incidents_are_as_many_as_may_be_and_what_is_not_saved_says_why(
    net: Any, torch: Any, tmp_path: Path
) -> None:
    with box(net, tmp_path, of="outputs", incidents=2, black_box=1, after=0) as recorder:
        for step in range(20):
            net(torch.ones(1, 8))
            if step % 5 == 4:
                recorder.trigger(f"number {step}")
    assert saved(tmp_path) == [4, 9]
    mark = recordings.mark(recorder.directory, 14)
    assert mark["incident"] == "number 14 (rank 0, step 14)"
    assert mark["not_saved"] == "2 incidents of this run were saved, and no more may be"


def test_a_budget_of_bytes_is_kept(net: Any, torch: Any, tmp_path: Path) -> None:
    with box(net, tmp_path, of="outputs", budget=2000) as recorder:
        for _ in range(8):
            net(torch.ones(4, 8))
        recorder.trigger("look")
    written = sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors"))
    assert saved(tmp_path) == [4, 5]
    assert written < 4000
    told = recordings.mark(recorder.directory, 6)["not_saved"]
    assert told == "incidents may take 2.0 KiB of each process, and have"


def test_ranks_that_hear_of_a_trigger_later_save_the_same_steps(tmp_path: Path) -> None:
    ranks = [Triggers(tmp_path, rank, before=3, after=2, limit=1) for rank in range(2)]
    ranks[1].add(13, "NaN")
    ranks[0].add(14, "NaN of the other one")
    for rank in ranks:
        rank.look(15)
    (first, *others) = ranks[0].incidents()
    assert [step for step in range(30) if first.has(step)] == [10, 11, 12, 13, 14, 15]
    assert (str(first.trigger), others) == ("NaN (rank 1, step 13)", [])
    ranks[0].add(15, "the same incident")
    assert len(list(tmp_path.iterdir())) == 2
    ranks[0].add(16, "another one")
    assert [one.is_beyond_budget for one in ranks[0].incidents()] == [False, True]


def test_the_ring_never_takes_more_than_it_may() -> None:
    ring = Ring(1 << 20, 3, None)
    for step in range(50):
        rooms = [ring.room(step, 1 + (step * 7919 + number * 104729) % 100_000) for number in range(12)]
        assert ring.nbytes <= 1 << 20
        given = [room[0] for room in rooms if room is not None]
        for number, data in enumerate(given):
            data[:] = number
        assert all((data == number).all() for number, data in enumerate(given))
        ring.hold(ring.finish(step))
        assert step in ring.steps
        assert len(ring.steps) <= 3


def test_a_ring_that_is_too_small_leaves_elements_out_and_says_so(
    net: Any, nets: ModuleType, tmp_path: Path
) -> None:
    with pytest.warns(RuntimeWarning, match="tensors were left out"), box(net, tmp_path, keep="64KiB") as r:
        nets.train(net, 3, before=lambda step: r.trigger("look") if step == 2 else None)
    assert sum(recordings.mark(r.directory, step).get("left_out", 0) for step in range(3)) == r.left_out


def test_a_machine_without_memory_shrinks_the_ring_and_what_it_held_no_longer_is_told(
    net: Any, nets: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = itertools.chain([10**15] * 4, itertools.repeat(0))  # fewer than are kept when it is triggered
    monkeypatch.setattr(black_box, "available_nbytes", lambda: next(left))

    def before(step: int) -> None:
        """Wait until the ring holds all steps that are over, so that it drops these, and no step in part."""
        while step > 1 and not (recorder.directory / f"step_{step - 2}" / STEP_FILE).exists():
            time.sleep(0.01)
        time.sleep(0.1)
        if step == 5:
            recorder.trigger("look")

    with box(net, tmp_path) as recorder:
        nets.train(net, 8, before=before)
    marks = {step: recordings.mark(recorder.directory, step) for step in range(8)}
    assert {step for step, mark in marks.items() if "incident" in mark} == set(range(1, 7))
    gone = {step for step, mark in marks.items() if "did not hold it any more" in mark.get("not_saved", "")}
    assert gone
    assert saved(tmp_path) == sorted({*range(1, 7)} - gone)


def test_a_disk_that_hangs_does_not_stop_the_training(
    net: Any, nets: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, finish = threading.Event(), writer.StepFiles.finish

    def wait_and_finish(*args: Any) -> None:
        opened.wait(60)
        finish(*args)

    monkeypatch.setattr(writer.StepFiles, "finish", wait_and_finish)
    monkeypatch.setattr(black_box, "_PATIENCE_S", 0.1)
    with pytest.warns(RuntimeWarning, match="takes nothing more"), box(net, tmp_path, keep="1MiB"):
        nets.train(net, 30)
    opened.set()
    for lock in black_box._own.values():  # it would be held until the process ends
        lock.close()
    black_box._own.clear()


def test_a_disk_that_fails_for_a_while_costs_those_steps_alone(
    net: Any, nets: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, failing = writer._write_safetensors, [True]

    def fail_once(*args: Any) -> None:
        if failing:
            failing.pop()
            raise OSError(28, "No space left on device")
        write(*args)

    monkeypatch.setattr(writer, "_write_safetensors", fail_once)
    with box(net, tmp_path) as recorder:
        nets.train(net, 12, before=lambda step: recorder.trigger("look") if step == 6 else None)
    assert saved(tmp_path) == [3, 4, 5, 6, 7]
    assert recordings.mark(recorder.directory, 2)["not_saved"] == "OSError: No space left on device"
    assert recordings.steps(recorder.directory) == list(range(12))


def test_steps_that_could_not_be_written_are_told_by_the_next_one_that_could(
    net: Any, nets: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = writer.StepFiles.finish

    def fail_in_some(files: Any, stacks: bytes, mark: Any) -> None:
        if files._directory.name in ("step_3", "step_4", "step_5"):
            raise OSError(28, "No space left on device", str(files._directory))
        finish(files, stacks, mark)

    monkeypatch.setattr(writer.StepFiles, "finish", fail_in_some)
    with pytest.warns(RuntimeWarning, match="3 steps from 3 to 5 were not written"), box(net, tmp_path) as r:
        nets.train(net, 8)
    told = "3 steps from 3 to 5 were not written as a whole: OSError: No space left on device"
    problems = [recordings.mark(r.directory, step).get("problems", []) for step in (2, 6, 7)]
    assert problems == [[], [told], []]
    assert r.problems == [told]


PROGRAM = """
import os, signal, sys, time
import ingest, torch
from tests import torch_models
net, (dump, ring, how, at) = torch_models.Net(), sys.argv[1:]
def die(step):
    if step == int(at):
        time.sleep(0.5)
        os.kill(os.getpid(), getattr(signal, how))
        time.sleep(30)
with ingest.record(net, dump, black_box=4, keep="10MiB", ring=ring or None):
    torch_models.train(net, 20, before=die)
"""


def die(dump: Path, ring: str, how: str, at: int = 12) -> int:
    program = [sys.executable, "-c", PROGRAM, str(dump), ring, how, str(at)]
    return subprocess.run(program, cwd=MODELS.parents[1], check=False, timeout=120).returncode


def test_after_a_kill_a_ring_in_files_is_taken_in_and_one_in_memory_is_said_to_be_lost(
    torch: Any, tmp_path: Path
) -> None:
    del torch
    for ring in (str(tmp_path / "ring"), ""):
        dump = tmp_path / ("memory" if not ring else "files")
        assert die(dump, ring, "SIGKILL") == -signal.SIGKILL
        assert saved(dump) == []
        (told,) = adopt(dump)
        assert adopt(dump) == []
        last = recordings.mark(dump / "recorded/rank_0", 11)
        if ring:
            assert told.endswith("died: steps 5 to 11 were saved")
            assert saved(dump) == [5, 6, 7, 8, 9, 10, 11]
            assert last["ended"].endswith("died")
        else:
            assert told.endswith("died: the elements of its last steps are lost")
            assert last["not_saved"].endswith("the elements of its last steps are lost")
        summaries = ingest_directly(dump, tmp_path / "run.zarr")
        assert {summary.status for summary in summaries} == {"complete"}
        assert list(ingest.open_store(tmp_path / "run.zarr").verify()) == []
    assert list((tmp_path / "ring").iterdir()) == []


def test_sigterm_saves_and_then_ends_the_process_as_ever(torch: Any, tmp_path: Path) -> None:
    del torch
    assert die(tmp_path, "", "SIGTERM") == -signal.SIGTERM
    assert saved(tmp_path) == [8, 9, 10, 11]
    assert "SIGTERM" in recordings.mark(tmp_path / "recorded/rank_0", 11)["incident"]


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("exception", "ZeroDivisionError: in step 20"),
        ("call", "the loss looks odd"),
        ("spike", "saved loss output.0 is 100, the median of [0-9]+ steps is 7"),
        ("SIGTERM", "SIGTERM"),
        ("SIGKILL", "the process [0-9]+ on .* died"),
    ],
)
def test_whoever_waits_hears_of_an_incident_without_an_anomaly_and_where_the_page_has_it(
    how: str, why: str, net: Any, nets: ModuleType, tmp_path: Path
) -> None:
    dump, url = tmp_path / "run-dump", tmp_path / "run.zarr"

    def happen(step: int) -> None:
        recorder.save("loss", nets.torch.tensor(100.0 if (step, how) == (20, "spike") else 7.0))
        if (step, how) == (20, "call"):
            recorder.trigger(why)
        if (step, how) == (20, "exception"):
            raise ZeroDivisionError("in step 20")

    if how.startswith("SIG"):
        die(dump, "", how)
        adopt(dump)
    else:
        with suppress(ZeroDivisionError), box(net, dump) as recorder:
            nets.train(net, 24, before=happen)
    # Another rank saves the same steps, and knows whose trigger it was.
    shutil.copytree(dump / "recorded/rank_0", dump / "recorded/rank_1")
    ingest_directly(dump, url, rules=load_rules().enabled)
    waited = wait(str(url), severity="warning", since=1.0, timeout_s=0)
    assert waited.incident is not None
    incident = waited.incident
    told = f"black_box on rank 0, step {incident.first_step}: {why} .rank 0, step {incident.first_step}."
    assert re.fullmatch(told, waited.reason)
    assert (incident.rank, incident.steps, incident.rules, incident.tensor) == (0, 1, {"black_box": 1}, "")
    (alert,) = incident_payload(incident, "https://page")["alerts"]
    assert alert["generatorURL"] == f"https://page/runs/run.zarr/incidents?id={incident.id}"


def test_a_program_with_a_handler_of_its_own_for_sigterm_keeps_it(
    net: Any, nets: ModuleType, tmp_path: Path
) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    try:
        with box(net, tmp_path) as recorder:
            nets.train(net, 12, before=lambda n: os.kill(os.getpid(), signal.SIGTERM) if n == 6 else None)
            deadline = time.monotonic() + 30
            while not recorder.incidents and time.monotonic() < deadline:
                time.sleep(0.01)
        assert seen == [signal.SIGTERM]
        assert any(why.startswith("SIGTERM (rank 0, step ") for why in recorder.incidents)
        assert signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, None)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_forked_child_that_is_asked_to_end_ends_alone(net: Any, nets: ModuleType, tmp_path: Path) -> None:
    with box(net, tmp_path) as recorder:
        nets.train(net, 1)
        child = os.fork()
        if not child:
            signal.alarm(60)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        nets.train(net, 1)
    assert recorder.incidents == {}
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_restart_repeats_steps_and_does_not_replace_what_was_saved(
    net: Any, nets: ModuleType, tmp_path: Path
) -> None:
    with box(net, tmp_path) as recorder:
        nets.train(net, 10, before=lambda step: recorder.trigger("look") if step == 6 else None)
    evidence = {path: path.read_bytes() for path in tmp_path.rglob("*.safetensors")}
    with box(net, tmp_path, first_step=2) as again:
        nets.train(net, 10)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.safetensors")} == evidence
    assert recordings.steps(again.directory) == list(range(12))


def test_a_restart_records_steps_of_an_incident_that_this_rank_did_not_save(
    net: Any, nets: ModuleType, tmp_path: Path
) -> None:
    with box(net, tmp_path) as recorder:
        nets.train(net, 3)
    write_trigger(tmp_path / DIRECTORY, Trigger(4, 1, "the other rank died", 2, 5))
    with box(net, tmp_path, first_step=2):
        nets.train(net, 6)
    assert recordings.steps(recorder.directory) == list(range(8))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"black_box": 0}, "black_box=0 is less than 1"),
        ({"keep": "much"}, "keep: 'much' is not a number of bytes"),
        ({"keep": 0}, "keep=0 is less than 1"),
        ({"budget": "-1"}, "budget: '-1' is not a number of bytes"),
        ({"after": -1}, "after=-1 is less than 0"),
        ({"what": "tensors"}, "what='tensors' records elements of every step"),
        ({"black_box": None}, "keep, ring and budget are those of a black box"),
    ],
)
def test_an_argument_of_the_box_that_cannot_be_used_is_named(
    options: dict[str, Any], message: str, net: Any, tmp_path: Path
) -> None:
    with pytest.raises(ingest.UsageError, match=message) as error:
        box(net, tmp_path, **options)
    assert error.value.hint


def test_only_a_black_box_can_be_triggered(net: Any, tmp_path: Path) -> None:
    with pytest.raises(ingest.UsageError, match="not a black box"):
        ingest.record(net, tmp_path).trigger("now")
