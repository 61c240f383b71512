"""What is decided about a step."""

import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.steps import CountingStore
from ingest.api import open_store
from ingest.layouts.base import Problem
from ingest.planning.plan import without_tensors
from ingest.service.one_shot import Report, ingest_once
from ingest.service.service import Service
from ingest.steps.committed import CommittedFiles, FilesNotTaken, comes_from_other_dump, compare
from ingest.steps.decide import (
    CompletenessPolicy,
    Decision,
    KeepExisting,
    Offer,
    Plan,
    Proposal,
    Refuse,
    StepPolicy,
    StepRow,
    decide,
    explain,
    explain_table,
    held_as,
)
from ingest.steps.state import Cover, DeletionStage, Pause, Phase, StepState, StepTable, Wait, WaitFor
from ingest.steps.watcher import DumpState, QuietClock
from tests.made_steps import (
    files_in,
    made_commit,
    made_files,
    made_inspected,
    made_listing,
    made_plan,
    made_state,
)
from tests.services import make_service
from tests.stores import DumpLibrary, MadeDump, ingest_directly, plan_all, tensor_name
from workers.errors import DamagedStore, StepRemoved
from workers.model import SourceFile, StepKey
from workers.store import commit
from workers.store.commit import Commit
from workers.store.model import Origin
from workers.store.opening import connect, open_objects, resolve
from workers.store.step import StoredStep

# What is done with a step: by its state, its commit and the policy, without a dump, a store or a clock.


KEY = StepKey(3, 40)
DENIED = Problem("rank_3", "permission denied", "setfacl", denied=True)


def complete(key: StepKey = KEY, *versions: int) -> StepState:
    """Return a step that is complete, and whose headers were read."""
    state = made_state(key, *(versions or (1, 2, 3)))
    assert state.listing is not None
    state.inspected = made_inspected(state.listing)
    return state


def propose(
    state: StepState,
    commit: Commit | None = None,
    *,
    committed: CommittedFiles | DamagedStore | StepRemoved | None = None,
    removed: bool = False,
    left_out: str = "",
    name: str = "",
) -> Proposal:
    plan = made_plan(state, without_tensors=left_out, name=name)
    return Proposal(
        plan, commit, lambda: removed, lambda: CommittedFiles() if committed is None else committed
    )


@pytest.mark.parametrize(
    "what", ["files", "time", "content", "permission", "tasks", "deletion", "pause", "store"]
)
def test_whatever_a_step_waits_for_has_a_name(what: str) -> None:
    state = complete()
    match what:
        case "files":
            state.lose_files()
        case "time":
            state.quiet_for_s = 3.14
        case "content":
            state.record_listing(made_listing(KEY, 1, later_begun=True), now=5.0, reached=0.0)
            assert state.listing is not None
            state.quiet_for_s, state.inspected = 5.0, made_inspected(state.listing, unfinished="short.npy")
        case "permission":
            state.record_listing(made_listing(KEY, 1, problems=(DENIED,)), now=0.0, reached=0.0)
        case "tasks":
            state.offer(jobs=1)
        case "deletion":
            state.deletion.stage = DeletionStage.REMOVING
        case "pause":
            state.pause = Pause(10.0, "it failed")
        case _:
            state.is_unchecked = True
    decision = decide(state, StepPolicy(), 9.0, propose(state))
    assert isinstance(decision, Wait)
    assert decision.wait_for == WaitFor(what)
    assert decision.reason


def test_files_that_may_not_be_read_deny_their_step() -> None:
    state = complete()
    assert state.inspected is not None
    state.inspected = replace(state.inspected, denied=(DENIED,))
    decision = decide(state, StepPolicy(), 0.0, propose(state))
    assert isinstance(decision, Wait)
    assert decision.problems == (DENIED,)


def test_run_files_are_never_without_their_payloads() -> None:
    policy = StepPolicy(leave_out_tensors="the disk is full")
    assert decide(complete(), policy, 0.0) == Plan("the disk is full")
    assert decide(complete(StepKey(3, None)), policy, 0.0) == Plan("")


def test_a_step_that_has_its_tensors_in_the_store_is_planned_with_them_again() -> None:
    state, policy = complete(), StepPolicy(leave_out_tensors="full")
    commit = made_commit(KEY, "other")
    assert decide(state, policy, 0.0, propose(state, commit, left_out="full")) == Plan("")
    without = made_commit(KEY, "other", removed_tensors=True)
    assert isinstance(decide(state, policy, 0.0, propose(state, without, left_out="full")), Offer)


def test_workers_that_see_other_files_for_the_fifth_time_see_another_disk() -> None:
    state = complete()
    for _ in range(4):
        state.record_stale(state.fingerprint)
    assert state.listing is not None
    state.inspected = made_inspected(state.listing)
    assert isinstance(decide(state, StepPolicy(), 0.0, propose(state)), Offer)
    state.stale = (state.fingerprint, 5)
    decision = decide(state, StepPolicy(), 0.0, propose(state))
    assert isinstance(decision, Refuse)
    assert "same path" in decision.error.hint


def covered_as(decision: Decision, state: StepState) -> Phase:
    """Return as what the store covers a step after a decision to keep what it has."""
    assert isinstance(decision, KeepExisting)
    assert decision.cover.reason
    state.cover = decision.cover
    phase = held_as(state, StepPolicy(leave_out_tensors="full"), lambda _: False)
    assert phase is decision.cover.phase
    return phase


def test_what_was_removed_on_purpose_is_not_taken_again() -> None:
    state = complete()
    assert covered_as(decide(state, StepPolicy(), 0.0, propose(state, removed=True)), state) is Phase.REMOVED


def test_the_generation_that_is_committed_stays_though_the_look_names_it_otherwise() -> None:
    """It knows no bad files, which are part of the name."""
    state = complete()
    proposal = propose(state, made_commit(KEY, "with bad files"), name="with bad files")
    assert covered_as(decide(state, StepPolicy(), 0.0, proposal), state) is Phase.COMMITTED
    state = complete()
    name = without_tensors(state.fingerprint)
    left_out = made_commit(KEY, name, removed_tensors=True)
    decision = decide(state, StepPolicy(), 0.0, propose(state, left_out, left_out="full", name=name))
    assert covered_as(decision, state) is Phase.LEFT_OUT


def test_a_whole_commit_is_not_replaced_because_a_file_cannot_be_read_any_more() -> None:
    """After a restart of the disk, or of the watcher: what is committed is better than what is there."""
    state = complete()
    proposal = propose(state, made_commit(KEY, state.fingerprint), name="one file is unreadable")
    assert covered_as(decide(state, StepPolicy(), 0.0, proposal), state) is Phase.COMMITTED


@pytest.mark.parametrize("replaces", [False, True])
def test_another_dump_is_replaced_only_if_that_was_asked_for(replaces: bool) -> None:
    state = complete()
    proposal = propose(state, made_commit(KEY, "a", root="/other"))
    decision = decide(state, StepPolicy(replace=replaces), 0.0, proposal)
    assert isinstance(decision, Offer if replaces else Refuse)


def test_an_offer_names_the_generation_that_it_replaces() -> None:
    state = complete()
    decision = decide(state, StepPolicy(), 0.0, propose(state, made_commit(KEY, "a")))
    assert isinstance(decision, Offer)
    assert decision.plan.replaces == "a"


@pytest.mark.parametrize(("deletes", "status", "told"), [(False, "complete", True), (True, "partial", True)])
def test_less_than_the_commit_has_keeps_it_and_is_told(deletes: bool, status: str, told: bool) -> None:
    state = complete(KEY, 1, 2)
    commit = made_commit(KEY, "a", status=status)
    proposal = propose(state, commit, committed=files_in(made_files(KEY, 1, 2, 3)))
    decision = decide(state, StepPolicy(deletes=deletes), 0.0, proposal)
    assert covered_as(decision, state) is Phase.KEPT
    assert isinstance(decision, KeepExisting)
    assert (decision.event is not None) is told


FATES = {Offer: "taken", KeepExisting: "kept", Refuse: "named"}


@pytest.mark.parametrize("deletes", [False, True])
@pytest.mark.parametrize(
    ("versions", "fate"),
    [
        ((1, 2, 3), "taken"),  # stored otherwise, such as in other chunks
        ((1, 2, 3, 4), "taken"),
        ((1, 2, 9), "taken"),
        ((1, 2, 0), "kept"),
        ((1, 0, 0), "kept"),
        ((1, 0, 0, 4), "named"),  # one that is late
        ((9, 0, 0), "named"),  # a table that was written again, and nothing else
        ((9, 2, 0), "named"),
        ((0, 0, 0, 4, 5, 6), "named"),  # as many, all of which are late
        ((9, 8, 0), "taken"),  # another dump of the step, with fewer files
        ((9, 8, 7), "taken"),
    ],
)
def test_files_that_are_gone_stay_in_the_store_unless_the_step_was_dumped_again(
    versions: tuple[int, ...], fate: str, deletes: bool
) -> None:
    state = complete(KEY, *versions)
    proposal = propose(state, made_commit(KEY, "a"), committed=files_in(made_files(KEY, 1, 2, 3)))
    decision = decide(state, StepPolicy(deletes=deletes), 0.0, proposal)
    assert FATES[type(decision)] == fate
    if fate == "kept":
        assert isinstance(decision, KeepExisting)
        assert (decision.event is None) is deletes
    if fate == "named":
        assert isinstance(decision, Refuse)
        assert isinstance(decision.error, FilesNotTaken)
        assert all(path in decision.error.message for path in decision.error.files)
        assert "--replace" in decision.error.hint
    replaced = decide(state, StepPolicy(deletes=deletes, replace=True), 0.0, proposal)
    assert isinstance(replaced, KeepExisting if fate == "kept" else Offer)


@pytest.mark.parametrize(
    ("versions", "fate"), [((9, 2, 0), "taken"), ((1, 0, 0, 4, 5), "taken"), ((1, 0, 0, 4), "named")]
)
def test_run_files_come_and_go(versions: tuple[int, ...], fate: str) -> None:
    key = StepKey(3, None)
    state = complete(key, *versions)
    proposal = propose(state, made_commit(key, "a"), committed=files_in(made_files(key, 1, 2, 3)))
    assert FATES[type(decide(state, StepPolicy(), 0.0, proposal))] == fate


def test_an_index_that_cannot_be_read_replaces_nothing() -> None:
    state = complete()
    damaged = propose(state, made_commit(KEY, "a"), committed=DamagedStore("broken"))
    assert isinstance(decide(state, StepPolicy(), 0.0, damaged), Refuse)
    gone = propose(state, made_commit(KEY, "a"), committed=StepRemoved("gone"))
    decision = decide(state, StepPolicy(), 0.0, gone)
    assert isinstance(decision, Wait)
    assert decision.wait_for is WaitFor.LOOK


def test_without_tensors_is_good_enough_only_while_they_are_left_out() -> None:
    state = complete()
    state.committed = without_tensors(state.fingerprint)
    assert held_as(state, StepPolicy(), lambda _: False) is None
    assert held_as(state, StepPolicy(leave_out_tensors="full"), lambda _: False) is Phase.LEFT_OUT


def test_a_commit_counts_whatever_was_removed_before_it() -> None:
    state = complete()
    assert held_as(state, StepPolicy(), lambda _: True) is Phase.REMOVED
    state.committed = "another generation"
    assert held_as(state, StepPolicy(), lambda _: True) is None
    state.cover = Cover(state.fingerprint, Phase.KEPT, "less")
    assert held_as(state, StepPolicy(), lambda _: True) is Phase.KEPT


# A watcher that starts again: what it asks the store for, and what it reads of the dump.


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


# What the dump has of a step compared with its commit: by names, times, and what the files hold.


def test_a_file_under_another_name_is_not_gone() -> None:
    committed = files_in(made_files(KEY, 1, 2))
    first, second = made_files(KEY, 1, 2)
    seen = compare(committed, (first, SourceFile("rank_3/40/renamed.npy", second.size, second.mtime_ns)))
    assert (seen.fresh, seen.gone, seen.lost) == (("rank_3/40/renamed.npy",), 0, 0)


@pytest.mark.parametrize("op", ["MatMul.net_MatMul-op0", "Add.%3-op0"])
def test_the_same_tensors_under_other_names_are_the_same_contents(
    op: str, made: MadeDump, store: Path
) -> None:
    """Names of dump files have the time in them. A table that tells of tensors does not hold them."""
    for slot in range(3):
        made.add(np.full(4, 1.0, "<f4"), tensor_name(op, slot=slot, time=5))
    table = made.add(b"Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot\n", "statistic.csv")
    ingest_directly(made.root, store)
    stored = commit.read(open_objects(resolve(str(store))), StepKey(0, 0))
    assert stored is not None
    committed = CommittedFiles.of(StoredStep(open_objects(resolve(str(store))), stored).tables)
    assert len(committed.versions) == len(committed.contents) == 4
    for path in table.parent.iterdir():
        path.unlink()
    for slot in range(2):
        made.add(np.full(4, 2.0, "<f4"), tensor_name(op, slot=slot, time=9))
    made.add(b"Op Type,Op Name\n", "statistic.csv")
    (plan,) = plan_all(made.root, store)
    seen = compare(committed, tuple(dict.fromkeys(entry.source for entry in plan.entries)), plan.entries)
    assert (len(seen.fresh), seen.gone, seen.lost, seen.rewritten) == (3, 3, 1, 1)
    assert seen.is_dumped_again


# What people are told of a step: its phase, and why.


def row(state: StepState, **more: object) -> StepRow:
    return explain(state, StepPolicy(), 100.0, **more)  # type: ignore[arg-type]


def test_a_pause_says_when_it_ends_and_what_it_is_for() -> None:
    state = made_state(KEY, 1)
    state.pause = Pause(142.04, "no scheduler")
    paused = row(state)
    assert (paused.phase, paused.tried_again_in_s) == ("paused", 42.0)
    assert paused.reason == "left alone for 42 s more: no scheduler"
    state.pause = Pause(99.0, "no scheduler")
    assert row(state).phase == "ready"


def test_tasks_say_how_far_they_are() -> None:
    state = made_state(KEY, 1)
    work = state.offer(jobs=12)
    assert (row(state).phase, row(state).waits_for) == ("offered", "tasks")
    work.phase, work.jobs_done = Phase.CONVERTING, 7
    assert row(state).reason == "7 of 12 tasks done"
    work.phase, work.retry = Phase.RETRYING, Pause(102.5, "a worker died")
    state.is_isolated = True
    retrying = row(state)
    assert (retrying.phase, retrying.tried_again_in_s) == ("retrying", 2.5)
    assert retrying.reason.startswith("submitted again in 2.5 s: a worker died; workers died of it")
    work.phase, work.retry = Phase.PUBLISHING, None
    assert row(state).phase == "publishing"


def test_rows_come_by_step_and_ranks_without_run_files_have_no_row_for_them() -> None:
    table = StepTable()
    table.follow({StepKey(1, 0), StepKey(0, 1), StepKey(0, None), StepKey(1, None)})
    table.ensure(StepKey(0, None)).is_unchecked = True
    rows = explain_table(table, StepPolicy(), 0.0)
    assert [(shown.rank, shown.step) for shown in rows] == [(0, None), (1, 0), (0, 1)]
    assert rows[0].waits_for == "store"
    known = StepRow(1, 0, "ready", "as was found out")
    assert explain_table(table, StepPolicy(), 0.0, {table.ensure(StepKey(1, 0)): known})[1] is known


# Device ids mean something on their host only: what the store calls a host decides whose steps are whose.


def ingest(dump: Path, store: Path, host: str) -> Report:
    return ingest_once(make_service(dump, store, host=host), threading.Event())


@pytest.mark.parametrize(("later", "taken"), [("node-1", True), ("node-2", False)])
def test_a_late_file_is_taken_from_the_same_host_alone(
    later: str, taken: bool, dumps: DumpLibrary, tmp_path: Path
) -> None:
    """A watcher that comes back, as another container, must be known again."""
    dump, store = tmp_path / "dump", tmp_path / "run.zarr"
    shutil.copytree(dumps["cann-bin-synthetic"] / "tf", dump)
    assert not ingest(dump, store, "node-1").failures
    assert {step.commit.record.source.host for step in open_store(store).select()} == {"node-1"}

    file = next(path for path in sorted(dump.rglob("*")) if path.is_file())
    shutil.copyfile(file, file.with_name("late.txt"))
    report = ingest(dump, store, later)
    assert bool(report.commits) is taken
    assert bool(report.failures) is not taken


def test_the_root_counts_always_and_the_host_where_ids_repeat(made: MadeDump, store: Path) -> None:
    made.add(b"x", "file.txt")
    ingest_directly(made.root, store)
    key = StepKey(0, 0)
    committed = commit.read(open_objects(resolve(str(store))), key)
    assert committed is not None
    known_by_rank = [Origin("mindspore", "another", str(made.root), source) for source in ("path", "user")]
    assert [comes_from_other_dump(key, origin, committed) for origin in known_by_rank] == [None, None]
    for origin, message in {
        Origin("mindspore", "another", str(made.root), "device id"): "known by its rank but by its device id",
        Origin("mindspore", "another", str(made.root), "process id"): "from host test-host",
        Origin("mindspore", "test-host", "/other", "path"): f"is in the store already, from {made.root}",
    }.items():
        error = comes_from_other_dump(key, origin, committed)
        assert error is not None
        assert message in error.message


# The table of all steps: it follows the dump, and forgets everything of what is gone.


def test_other_threads_may_read_while_steps_come_and_go() -> None:
    """The page of steps is made in a thread of the web server."""
    table, stop, failures = StepTable(), threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            try:
                assert all(state.key.rank == 0 for state in table)
            except RuntimeError as exc:
                failures.append(exc)

    reader = threading.Thread(target=read)
    reader.start()
    for first in range(300):
        table.follow({StepKey(0, step) for step in range(first, first + 200)})
    stop.set()
    reader.join()
    assert failures == []
