"""Two worker processes against one, into a store in memory: ingesting as a whole, and converting only.

The process that inspects, plans and commits runs on the same two cores. With one worker, it has a core for
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from distributed import Client

from bench.load import build
from bench.measure import Measure, in_turns, seconds
from bench.setting import PROFILE, Setting, ingest, workers
from bench.stages import Stages, plans
from workers.tasks.run import pack_convert, run_convert

#: Steps of the longer dump: enough that the first scan and the last commit do not matter.
_STEPS = 3


def measure(setting: Setting) -> Iterator[Measure]:
    """Yield times for the tasks of one step, for one step, and for several."""
    dump = setting.load.directory
    yield _measure(setting, "the tasks of one step", lambda client, target: _convert(client, dump, target))
    yield _measure(setting, "one step", lambda client, target: _ingest(client, dump, target))
    if not setting.quick:
        with setting.target() as longer:
            build(PROFILE, longer, steps=_STEPS)
            yield _measure(setting, f"{_STEPS} steps", lambda client, target: _ingest(client, longer, target))


def _measure(setting: Setting, what: str, timed: Callable[[Client, Path], float]) -> Measure:
    def run(client: Client) -> float:
        with setting.target(setting.fast) as target:
            return timed(client, target)

    with workers(1) as single, workers(2) as pair:
        run(single), run(pair)  # warm-up, not measured
        times = in_turns(setting.rounds, {"one": lambda: run(single), "two": lambda: run(pair)})
    return Measure(f"ingest, 2 workers, {what}", "1 worker", "s", times["two"], times["one"], floor=1.7)


def _ingest(client: Client, dump: Path, target: Path) -> float:
    return seconds(lambda: ingest(client, dump, target))


def _convert(client: Client, dump: Path, target: Path) -> float:
    """Return how long the workers take to convert a step that is already planned; it is not committed."""
    packed = [pack_convert(job) for plan in plans(dump, target, Stages()) for job in plan.jobs]
    return seconds(lambda: client.gather([client.submit(run_convert, job, pure=False) for job in packed]))
