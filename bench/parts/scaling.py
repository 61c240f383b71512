"""Two worker processes against one, into a store in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from distributed import Client

from bench.load import build
from bench.measure import Measure, in_turns, seconds
from bench.setting import PROFILE, Setting, ingest, workers

#: Steps of the longer dump: enough that the first look and the last commit do not matter.
_STEPS = 3


def measure(setting: Setting) -> Iterator[Measure]:
    """Yield times for one step, and for several."""
    yield _measure(setting, "one step", setting.load.directory)
    if not setting.quick:
        with setting.target() as dump:
            build(PROFILE, dump, steps=_STEPS)
            yield _measure(setting, f"{_STEPS} steps", dump)


def _measure(setting: Setting, what: str, dump: Path) -> Measure:
    def run(client: Client) -> float:
        with setting.target(setting.fast) as target:
            return seconds(lambda: ingest(client, dump, target))

    with workers(1) as one, workers(2) as two:
        run(one), run(two)  # unmeasured: what is lazy is loaded by it
        times = in_turns(setting.rounds, {"one": lambda: run(one), "two": lambda: run(two)})
    return Measure(f"ingest, 2 workers, {what}", "1 worker", "s", times["two"], times["one"], floor=1.7)
