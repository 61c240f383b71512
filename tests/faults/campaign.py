"""One campaign: the system runs, the job dumps, faults come and go; then store and dump are compared."""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.dumps import unpack
from tests.faults.inject import heal, inject
from tests.faults.judge import Verdict, judge
from tests.faults.look import Eyes, Unavailable, Watchman, wait_for
from tests.faults.plan import Fault
from tests.faults.proxy import FINE
from tests.faults.recovery import Commits, Recovery, measure
from tests.faults.story import Action, Job
from tests.faults.system import System
from tests.faults.writer import RECORDED, Writer

#: How long the backlog may take when all is healed. A step that the store refused is left alone for 60 s.
DRAIN_S = 600.0
#: Nothing may be pending for so long before it counts as drained: longer than the silence watchers wait for.
_CALM_S = 5.0


@dataclass
class Result:
    """What a campaign came to."""

    seed: int
    seconds: float
    faults: list[Fault] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    restarts: dict[str, int] = field(default_factory=dict)
    drained_s: float | None = None
    """How long the backlog took after all was healed; None: it was not done in time."""
    commits_seen: int = 0
    tensors_seen: int = 0
    half_visible: list[str] = field(default_factory=list)
    verdict: Verdict = field(default_factory=Verdict)

    @property
    def is_good(self) -> bool:
        """Whether nothing was lost, wrong, seen by halves, or left over."""
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
    keep: Path | None = None,
) -> Result:
    """Run a campaign. `plan` gives the faults for what this machine has; `keep` takes logs, dump and store.

    If it `deletes`, the watcher deletes from the dump what is committed.
    """
    with tempfile.TemporaryDirectory(prefix="campaign-") as scratch:
        root = Path(scratch)
        dump = root / "dump"
        dump.mkdir()
        writer = Writer(unpack(RECORDED, root) / "dump", dump, seed, job.files)
        with System(dump, seed=seed, workers=workers, deletes=deletes) as system:
            result = Result(seed, seconds, plan(system.has))
            try:
                _go(system, writer, result, actions, job)
                say("comparing store and dump ...")
                result.verdict = judge(Eyes(system.bucket), writer, root, deletes=deletes)
            finally:
                result.restarts = dict(system.restarts)
                if keep is not None:
                    keep.mkdir(parents=True, exist_ok=True)
                    for log in system.group.logs():
                        shutil.copy(log, keep)
                    shutil.copytree(dump, keep / "dump", dirs_exist_ok=True)
                    _keep_store(system, keep)
    return result


def _go(system: System, writer: Writer, result: Result, actions: Sequence[Action], job: Job) -> None:
    commits, watchman = Commits(system), Watchman(system.bucket, writer.written)
    no_more_faults, stop_writing = threading.Event(), threading.Event()
    with _in_thread(commits.run, commits.stop), _in_thread(watchman.run, watchman.stop):
        writer.prepare(job.ranks)
        wait_for(lambda: commits.total, 120)  # there is no store before
        system.want("consolidator")
        began = time.monotonic()
        ranks = [[action for action in actions if action.rank == rank] for rank in range(job.ranks)]
        with (
            ThreadPoolExecutor(job.ranks) as writing,
            ThreadPoolExecutor(len(result.faults) + 1) as measuring,
        ):
            try:
                for one in ranks:
                    writing.submit(writer.play, one, began, stop_writing)
                measured = []
                for at_s, what, fault in _timeline(result.faults):
                    time.sleep(max(0.0, began + at_s - time.monotonic()))
                    if what == "inject":
                        say(f"{at_s:7.1f} s  {fault.name}")
                        inject(system, fault)
                    else:
                        heal(system, fault)
                        measured.append(measuring.submit(measure, system, fault, commits, no_more_faults))
                time.sleep(max(0.0, began + result.seconds - time.monotonic()))
                stop_writing.set()
                writing.shutdown()
                if writer.error is not None:
                    raise writer.error
                say("all is healed, and nothing is dumped any more; waiting for the backlog ...")
                system.proxy.set(FINE)
                result.drained_s = _drain(system)
            finally:
                stop_writing.set()
                no_more_faults.set()
            result.recoveries = [one.result() for one in measured]
        if watchman.stop.is_set():
            raise RuntimeError("the watchman has left")
    result.commits_seen, result.tensors_seen = watchman.commits, watchman.tensors
    result.half_visible = watchman.bad


def _timeline(faults: Sequence[Fault]) -> list[tuple[float, str, Fault]]:
    """Return when which fault begins and is healed; what is healed comes first."""
    ends = [(fault.until_s, "heal", fault) for fault in faults]
    begins = [(fault.at_s, "inject", fault) for fault in faults]
    # One that is healed at once must have begun before.
    return sorted([*begins, *ends], key=lambda one: (one[0], one[1] == "heal" and one[2].at_s == one[0]))


def _drain(system: System) -> float | None:
    """Wait until watcher and consolidator have nothing left; how long that took, or None."""
    began, calm_since, calm_at = time.monotonic(), None, 0.0
    while time.monotonic() - began < DRAIN_S:
        left = [
            system.metric("watcher-0", "dump_ingest_watcher_pending_steps"),
            system.metric("consolidator", "dump_ingest_consolidator_steps_behind"),
        ]
        # Nothing is behind as long as the consolidator has not looked, too.
        looked_at = system.metric("consolidator", "dump_ingest_consolidator_last_round_timestamp_seconds")
        now = time.monotonic()
        if any(one is None or one > 0 for one in left):
            calm_since = None
        elif calm_since is None:
            calm_since, calm_at = now, time.time()
        elif now - calm_since > _CALM_S and (looked_at or 0.0) > calm_at:
            return calm_since - began
        time.sleep(0.3)
    return None


def _keep_store(system: System, keep: Path) -> None:
    eyes = Eyes(system.bucket)
    try:
        eyes.download(system.bucket.url.removeprefix("s3://"), keep / "store")
    except Unavailable as exc:
        say(f"the store could not be kept: {exc}")


@contextmanager
def _in_thread(run_it: Callable[[], None], stop: threading.Event) -> Iterator[None]:
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_it)
        try:
            yield
        finally:
            stop.set()
        running.result()


def say(text: str) -> None:
    """Tell whoever waits."""
    print(text, file=sys.stderr, flush=True)
