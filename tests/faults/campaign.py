"""Run one campaign: the job dumps while faults are injected and healed; then compare store and dump."""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.commits import CommitMonitor, CommitReader, Unavailable, wait_for
from tests.faults.inject import heal, inject
from tests.faults.judge import Verdict, judge
from tests.faults.plan import Fault
from tests.faults.proxy import NORMAL
from tests.faults.recovery import Commits, Recovery, measure
from tests.faults.story import Action, Job
from tests.faults.system import System
from tests.faults.writer import RECORDED, Writer
from tests.stores import unpack

#: Within this time after all faults are healed, everything in the dump is in the store. A refused step is
#: retried after 60 s only; a file that was rewritten in place is seen after a minute or more.
DRAIN_S = 600.0
#: The backlog counts as drained if nothing is pending for this time, which exceeds the watchers' `quiet`.
_CALM_S = 5.0


@dataclass
class Result:
    """The result of a campaign."""

    seed: int
    seconds: float
    within_s: float = DRAIN_S
    """How long after the last fault the store must have everything, at most."""
    faults: list[Fault] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    restarts: dict[str, int] = field(default_factory=dict)
    drained_s: float | None = None
    """The time in which the backlog drained after all faults were healed; None: longer than `within_s`."""
    commits_seen: int = 0
    tensors_seen: int = 0
    half_visible: list[str] = field(default_factory=list)
    verdict: Verdict = field(default_factory=Verdict)

    @property
    def is_good(self) -> bool:
        """Whether nothing was lost, wrong, half visible, or still pending at the end."""
        return (
            self.drained_s is not None
            and not self.half_visible
            and self.verdict.is_good
            and self.verdict.steps > 0
        )


def run(
    seed: int,
    seconds: float,
    *,
    plan: Callable[[Sequence[str]], list[Fault]],
    actions: Sequence[Action],
    job: Job,
    workers: int = 2,
    deletes: bool = False,
    within_s: float = DRAIN_S,
    keep: Path | None = None,
) -> Result:
    """Run a campaign.

    Args:
        seed: determines the faults of the proxy and the contents of files.
        seconds: how long the job dumps.
        plan: returns the faults for a machine, given what it offers of those things that faults may need.
        actions: what the job does.
        job: how the job is built.
        workers: the number of Dask workers.
        deletes: the watcher deletes committed files from the dump.
        within_s: how long after the last fault the store must have everything, at most, in seconds.
        keep: a directory into which logs, dump and store are copied at the end.
    """
    with tempfile.TemporaryDirectory(prefix="campaign-") as scratch:
        root = Path(scratch)
        dump = root / "dump"
        dump.mkdir()
        writer = Writer(unpack(RECORDED, root) / "dump", dump, seed, job)
        with System(dump, seed=seed, workers=workers, deletes=deletes) as system:
            result = Result(seed, seconds, within_s, plan(system.has))
            try:
                _run_job(system, writer, result, actions, job)
                result.verdict = _judge_in_time(system, writer, root, deletes=deletes, within_s=within_s)
            finally:
                result.restarts = dict(system.restarts)
                if keep is not None:
                    _keep(system, keep)
    return result


def _run_job(system: System, writer: Writer, result: Result, actions: Sequence[Action], job: Job) -> None:
    """Run the job with faults, and wait until the backlog has drained."""
    commits, monitor = Commits(system), CommitMonitor(system.bucket, writer.written)
    stop_measuring, stop_writing = threading.Event(), threading.Event()
    with _in_thread(commits.run, commits.stop), _in_thread(monitor.run, monitor.stop):
        writer.prepare(job.ranks)
        wait_for(lambda: commits.total, 120)  # the store does not exist before the first commit
        system.want("consolidator")
        began = time.monotonic()
        with (
            ThreadPoolExecutor(job.ranks) as writing,
            ThreadPoolExecutor(len(result.faults) + 1) as measuring,
        ):
            try:
                for rank in range(job.ranks):
                    of_rank = [action for action in actions if action.rank == rank]
                    writing.submit(writer.play, of_rank, began, stop_writing)
                recoveries = [
                    measuring.submit(measure, system, healed, commits, stop_measuring)
                    for healed in _inject_and_heal(system, result.faults, began)
                ]
                time.sleep(max(0.0, began + result.seconds - time.monotonic()))
                stop_writing.set()
                writing.shutdown()
                if writer.error is not None:
                    raise writer.error
                say("all faults are healed and the job has ended; waiting until the backlog has drained ...")
                system.proxy.set(NORMAL)
                result.drained_s = _drain(system, result.within_s)
            finally:
                stop_writing.set()
                stop_measuring.set()
            result.recoveries = [recovery.result() for recovery in recoveries]
        if monitor.stop.is_set():
            raise RuntimeError("the thread that reads commits has ended too early")
    result.commits_seen, result.tensors_seen = monitor.commits, monitor.tensors
    result.half_visible = monitor.bad


def _judge_in_time(
    system: System, writer: Writer, scratch: Path, *, deletes: bool, within_s: float
) -> Verdict:
    """Compare store and dump, until nothing is late or the time for it is over."""
    until = time.monotonic() + within_s
    reader = CommitReader(system.bucket)
    while True:
        say("comparing store and dump ...")
        waiting = where_steps_are(system.steps("watcher-0"))
        verdict = judge(reader, writer, scratch, waiting=waiting, deletes=deletes)
        if not verdict.late or time.monotonic() > until:
            return verdict
        say(f"{len(verdict.late)} files are not stored yet, such as {verdict.late[0]}")
        time.sleep(_CALM_S)


def where_steps_are(rows: Sequence[Mapping[str, Any]] | None) -> dict[tuple[int, int | None], str]:
    """Return for each rank and step where it is, in words; `rows` are those of a watcher, if it answers."""
    return {
        (
            row["rank"],
            row["step"],
        ): f"rank {row['rank']} step {row['step']} is {row['phase']}: {row['reason']}"
        for row in rows or ()
    }


def _inject_and_heal(system: System, faults: Sequence[Fault], began: float) -> Iterator[Fault]:
    """Inject and heal each fault at its time, and yield it when it is healed."""
    for at_s, action, fault in _timeline(faults):
        time.sleep(max(0.0, began + at_s - time.monotonic()))
        if action == "inject":
            say(f"{at_s:7.1f} s  {fault.name}")
            inject(system, fault)
        else:
            heal(system, fault)
            yield fault


def _timeline(faults: Sequence[Fault]) -> list[tuple[float, str, Fault]]:
    """Return the times at which faults are injected and healed, in order.

    At the same time, faults are healed before others are injected; but a fault without duration is injected
    before it is healed.
    """
    ends = [(fault.until_s, "heal", fault) for fault in faults]
    begins = [(fault.at_s, "inject", fault) for fault in faults]
    return sorted(
        [*begins, *ends], key=lambda entry: (entry[0], entry[1] == "heal" and entry[2].at_s == entry[0])
    )


def _drain(system: System, within_s: float) -> float | None:
    """Wait until watcher and consolidator have nothing left to do.

    Return how long that took in seconds, or None if it takes longer than `within_s`.
    """
    began, calm_since, calm_at = time.monotonic(), None, 0.0
    while time.monotonic() - began < within_s:
        pending = [
            system.metric("watcher-0", "dump_ingest_watcher_pending_steps"),
            system.metric("consolidator", "dump_ingest_consolidator_steps_behind"),
        ]
        # The second figure is current only if the consolidator has finished a round since.
        last_round_at = system.metric("consolidator", "dump_ingest_consolidator_last_round_timestamp_seconds")
        now = time.monotonic()
        if any(count is None or count > 0 for count in pending):
            calm_since = None
        elif calm_since is None:
            calm_since, calm_at = now, time.time()
        elif now - calm_since > _CALM_S and (last_round_at or 0.0) > calm_at:
            return calm_since - began
        time.sleep(0.3)
    return None


def _keep(system: System, keep: Path) -> None:
    """Copy logs, dump and store into a directory."""
    keep.mkdir(parents=True, exist_ok=True)
    for log in system.group.logs():
        shutil.copy(log, keep)
    shutil.copytree(system.dump, keep / "dump", dirs_exist_ok=True)
    try:
        CommitReader(system.bucket).download(system.bucket.url.removeprefix("s3://"), keep / "store")
    except Unavailable as exc:
        say(f"cannot copy the store into {keep}: {exc}")


@contextmanager
def _in_thread(target: Callable[[], None], stop: threading.Event) -> Iterator[None]:
    """Run a function in a thread, and set `stop` at the end of the `with` block. Raise what it raises."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(target)
        try:
            yield
        finally:
            stop.set()
        running.result()


def say(text: str) -> None:
    """Report progress on stderr."""
    print(text, file=sys.stderr, flush=True)
