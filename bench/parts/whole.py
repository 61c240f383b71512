"""Whole commands, from cold start to exit, against `cp -r`: in seconds, and in processor time."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.costs import Cost, command_cost, copy_cost
from bench.load import build_small
from bench.measure import Measure, Ratio, in_turns
from bench.setting import Setting

PROGRAM = Path(sys.executable).with_name("dump-ingest")
_SMALL_FILES = 100


def measure(setting: Setting) -> Iterator[Measure]:
    """Yield times of small commands, and of ingesting the large profile: one step of it, and six."""
    with setting.target(setting.fast) as dump, setting.target(setting.fast) as store:
        build_small(dump, files=_SMALL_FILES)
        ingest_cost(dump, store)  # warm-up, not measured; and the store that is asked
        questions = {"--help": ["--help"], "ls": ["ls", str(store)], "origin": ["origin", str(store)]}
        tensor = "Add.Default_net-Add-op0.output.0"
        questions["show"] = ["show", str(store), tensor, "--rank", "0", "--step", "0"]
        commands = {name: _command(words) for name, words in questions.items()}
        commands["ingest"] = lambda: _into(setting, setting.fast, lambda target: ingest_cost(dump, target))
        costs = in_turns(setting.rounds, commands)
    for name, most in (("ingest", 0.9), ("--help", 0.3), ("ls", 0.3), ("origin", 0.3), ("show", 0.3)):
        what = f"ingest {_SMALL_FILES} small files" if name == "ingest" else f"dump-ingest {name}"
        wall = tuple(cost.wall for cost in costs[name])
        yield Measure(f"{what}, cold", f"{most:g} s", "s", wall, (most,) * len(wall), Ratio.SHARE, floor=1.0)
    yield from _large(setting, "722 MB", setting.load.directory)
    if not setting.quick:
        with setting.target() as dump:
            link_steps(setting.load.directory, dump)
            yield from _large(setting, "4.3 GB", dump)


def link_steps(step: Path, dump: Path) -> None:
    """Make a dump of two ranks with three steps each, all of them links to the files of one."""
    (files,) = step.glob("rank_0/*/*/0")
    for rank in range(2):
        for number in range(3):
            target = dump / f"rank_{rank}" / files.parent.relative_to(step / "rank_0") / str(number)
            target.mkdir(parents=True)
            for file in os.scandir(files):
                os.link(file.path, target / file.name)


def _large(setting: Setting, size: str, dump: Path) -> Iterator[Measure]:
    places = [("disk", setting.disk, 2.0)]
    if setting.memory:
        places.append(("tmpfs", setting.memory, 1.0))
    for place, parent, floor in places:
        costs = in_turns(
            setting.rounds,
            {
                "copy": lambda parent=parent: _into(setting, parent, lambda target: copy_cost(dump, target)),  # type: ignore[misc]
                "ingest": lambda parent=parent: _into(setting, parent, lambda path: ingest_cost(dump, path)),  # type: ignore[misc]
            },
        )
        for what, field, ratio, least in (
            ("seconds", 0, Ratio.TIMES_AS_FAST, floor),
            ("processor time", 1, Ratio.SHARE, 1.4),
        ):
            ours, other = (tuple(cost[field] for cost in costs[name]) for name in ("ingest", "copy"))
            against = f"cp -r to {place}"
            name = f"whole ingest of {size} to {place}, {what}"
            yield Measure(name, against, "s", ours, other, ratio, floor=least)


def _into(setting: Setting, parent: Path, run: Callable[[Path], Cost]) -> Cost:
    with setting.target(parent) as target:
        return run(target)


def _command(words: list[str]) -> Callable[[], Cost]:
    return lambda: command_cost([str(PROGRAM), *words])


def ingest_cost(dump: Path, store: Path) -> Cost:
    """Ingest a dump by the command; return what it took."""
    return command_cost([str(PROGRAM), "ingest", str(dump), "--store", str(store), "--quiet", "0"])
