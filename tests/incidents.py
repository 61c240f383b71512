"""Train transformers with a black box while things go wrong, and compare the store with what was promised.

    python -m tests.incidents nan --ranks 4 --steps 300 --seed 1
    python -m tests.incidents nan --steps 30 --width 768 --layers 8 --before 3 --keep 2560
    python -m tests.incidents kills --count 40
    python -m tests.incidents hang --seconds 300
    python -m tests.incidents full

`nan` plants a NaN in a random step of a random rank of gloo. `kills` ends processes with SIGKILL at random
moments, also while they save. `hang` freezes the file system of the dump under a training, and `full` fills
it (Linux, root). Prints what was expected beside what was found, and exits with 1 if anything differs. Needs
PyTorch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec

import ingest
from ingest.layouts.recorder import RecordedStep
from ingest.recording.snapshots import import_torch
from workers.arrays.dtypes import from_name
from workers.host.resources import status_nbytes
from workers.model import MIB

AFTER = 2
_RANK = "import sys; from tests.incidents import train; train(*sys.argv[1:])"


class Check(NamedTuple):
    """One thing that was promised."""

    what: str
    expected: object
    found: object
    holds: bool | None = None
    """Whether it was kept; None if both are to be equal."""


def transformer(width: int, layers: int, tokens: int) -> tuple[Any, Any, Callable[[Any], None]]:
    """Return a model, the layer into which a NaN may be planted, and what trains a model for one step."""
    torch = import_torch()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    nn = torch.nn
    layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, batch_first=True, dropout=0)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(called: Any) -> None:
        optimizer.zero_grad()
        called(torch.randn(tokens // 128, 128, width)).square().mean().backward()
        optimizer.step()

    return model, model.layers[layers // 2].norm1, step


def train(*arguments: str) -> None:
    """Train one rank; print when each step ended, and at last what became of it, as JSON.

    Args:
        arguments: a directory for all ranks, and the dump; rank, ranks and steps; `rank:step` of a NaN, or
            nothing; where the ring is, or nothing for memory; its MiB; how many steps up to an incident are
            saved; width and layers of the model.
    """
    directory, dump, rank, ranks, steps, planted, ring, keep, before, width, layers = arguments
    torch = import_torch()
    distributed, at = torch.distributed, tuple(map(int, planted.split(":"))) if planted else None
    model, place, step = transformer(int(width), int(layers), 256)
    called = model
    if int(ranks) > 1:
        distributed.init_process_group(
            "gloo", init_method=f"file://{directory}/init", rank=int(rank), world_size=int(ranks)
        )
        called = torch.nn.parallel.DistributedDataParallel(model)
    now = -1

    def plant(_module: Any, _inputs: Any, output: Any) -> Any:
        return output * torch.nan if (int(rank), now) == at else output

    place.register_forward_hook(plant)
    step(called)  # what the training itself takes is there
    before_nbytes = status_nbytes("VmRSS")
    box = ingest.record(
        called, dump, black_box=int(before), after=AFTER, keep=int(keep) * MIB, ring=ring or None, incidents=2
    )
    with box:
        for now in range(int(steps)):  # noqa: B007  (the hook reads it)
            step(called)
            print(time.monotonic(), flush=True)
            if Path(directory, "end").exists():
                break
    grown = status_nbytes("VmHWM") - before_nbytes
    told = {"left_out": box.left_out, "problems": box.problems, "grown": grown}
    print(json.dumps(told), flush=True)


def _start(directory: Path, dump: Path, rank: int, *rest: object) -> subprocess.Popen[str]:
    program = [sys.executable, "-c", _RANK, *map(str, (directory, dump, rank, *rest))]
    return subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env={**os.environ, "RANK": str(rank)})


def _told(process: subprocess.Popen[str]) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(process.communicate()[0].splitlines()[-1])
    return told


def _take(dump: Path, store: Path) -> None:
    """Ingest a dump as a user does."""
    command = [sys.executable, "-m", "ingest.cli", "ingest", str(dump), "--store", str(store)]
    subprocess.run([*command, "--workers", "1"], check=True, stdout=subprocess.DEVNULL)


def _marks(dump: Path) -> dict[tuple[int, int], RecordedStep]:
    """Return what each step says of itself, by rank and number."""
    marks = {}
    for path in dump.glob("recorded/rank_*/step_*/recorded-step.json"):
        rank, step = (int(name.split(".")[0].rpartition("_")[2]) for name in path.parts[-3:-1])
        marks[rank, step] = msgspec.json.decode(path.read_bytes(), type=RecordedStep)
    return marks


def nan(directory: Path, options: argparse.Namespace) -> Iterator[Check]:
    """Plant a NaN in a random step of a random rank."""
    chance, ranks, steps = random.Random(options.seed), options.ranks, options.steps
    at, rank = chance.randrange(options.before, steps - AFTER), chance.randrange(ranks)
    dump, store = directory / "dump", directory / "run.zarr"
    model = options.keep, options.before, options.width, options.layers
    processes = [
        _start(directory, dump, own, ranks, steps, f"{rank}:{at}", "", *model) for own in range(ranks)
    ]
    told = [_told(process) for process in processes]
    marks = _marks(dump)
    lines = [
        json.loads(line)
        for path in dump.glob("recorded/rank_*/*/recorded-statistics.jsonl")
        for line in path.read_text().splitlines()
    ]
    promised = sum(
        math.prod(line["shape"]) * from_name(line["dtype"]).itemsize for line in lines if line.get("file")
    )
    written = sum(path.stat().st_size for path in dump.rglob("recorded-tensor*"))
    _take(dump, store)
    opened = ingest.open_store(store)
    origin = ingest.origin(opened)
    around = range(at - options.before + 1, at + AFTER + 1)
    with_elements = {
        (own, step)
        for own in opened.ranks
        for step in opened.steps
        if all(tensor.is_dumped for tensor in opened.tensors(rank=own, step=step))
    }
    yield Check("steps of all ranks in the store", ranks * steps, len(marks))
    everywhere = {(own, step) for own in range(ranks) for step in range(steps)}
    with_statistics = {key for key in everywhere if opened.tensors("Gradient.*", rank=key[0], step=key[1])}
    yield Check("steps with statistics", len(everywhere), len(with_statistics))
    yield Check("tensors without a histogram", 0, ingest.quantiles(opened, percents=[50.0]).without)
    yield Check(
        f"steps {around[0]} to {around[-1]} with all elements, of {ranks} ranks, and no other",
        len(around) * ranks,
        len(with_elements),
        with_elements == {(own, step) for own in range(ranks) for step in around},
    )
    place = f"layers.{options.layers // 2}.norm1"
    yield Check("origin", (rank, at, place), (origin.rank, origin.step, origin.op_name))
    ratio = written / promised
    yield Check("bytes on disk / of elements", "0.98 to 1.02", f"{ratio:.4f}", 0.98 <= ratio <= 1.02)
    grown = max(one["grown"] for one in told)
    yield _within_memory(grown, options)
    yield Check("problems that recorders told", [], [text for one in told for text in one["problems"]])


def kills(directory: Path, options: argparse.Namespace) -> Iterator[Check]:
    """Kill processes at random moments: a quarter with the ring in memory; half near an incident."""
    chance = random.Random(options.seed)
    outcomes = []
    for number in range(options.count):
        below = directory / str(number)
        below.mkdir()
        ring = "" if number % 4 == 0 else str(below / "ring")
        planted = f"0:{chance.randrange(3, 9)}" if number % 2 else ""
        model = options.keep, options.before, options.width, options.layers
        process = _start(below, below / "dump", 0, 1, 10_000, planted, ring, *model)
        recorded = below / "dump" / "recorded" / "rank_0"
        first = chance.randrange(9)
        while not (recorded / f"step_{first}").exists() and process.poll() is None:
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 1))
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        _take(below / "dump", below / "run.zarr")
        outcomes.append(_after_kill(below, options.before, ring=bool(ring)))
        print(f"{number:3} {outcomes[-1]}", flush=True)
        shutil.rmtree(below)
    yield Check(
        "stores in which every step is complete and nothing is damaged",
        options.count,
        sum(one["whole"] for one in outcomes),
    )
    yield Check(
        "dumps whose last step says that the process died",
        options.count,
        sum(one["said"] for one in outcomes),
    )
    yield Check("steps that lack elements without saying so", 0, sum(one["silent"] for one in outcomes))
    in_files = [one for one in outcomes if one["ring"]]
    yield Check(
        "rings in files of which all finished steps were saved",
        len(in_files),
        sum(one["saved"] for one in in_files),
    )


def _after_kill(below: Path, before: int, *, ring: bool) -> dict[str, Any]:
    """Return what a process that was killed has left, and whether it says what it has not."""
    marks = {step: mark for (_, step), mark in _marks(below / "dump").items()}
    last = max(marks)
    store = ingest.open_store(below / "run.zarr")
    ended = marks[last].ended.endswith("died")
    silent = saved = 0
    window = [step for step in sorted(marks) if step > last - before]
    for step in window:
        rows = store.tensors(rank=0, step=step)
        is_whole = bool(rows) and all(tensor.is_dumped for tensor in rows)
        # The last step says what became of those before it.
        speaks = [marks[step].not_saved, marks[step].left_out, marks[step].ended, marks[last].not_saved]
        silent += not is_whole and not any(speaks)
        saved += is_whole or step == last
    return {
        "whole": {step.status for step in store.select()} == {"complete"} and not list(store.verify()),
        "said": ended,
        "silent": silent,
        "saved": saved == len(window),
        "ring": ring,
        "steps": last + 1,
        "told": marks[last].not_saved,
    }


class Disturbed(NamedTuple):
    """A training with a black box before, while and after something was wrong with the disk of its dump."""

    before: list[float]
    """How long each step took, in seconds."""
    during: list[float]
    steps: int
    """How many ended, that were seen."""
    told: dict[str, Any]
    marks: dict[tuple[int, int], RecordedStep]
    whole: bool
    """Whether the store has each of these steps, and nothing in it is damaged."""


def _disturbed(
    directory: Path,
    options: argparse.Namespace,
    seconds: float,
    nbytes: int,
    wrong: Callable[[Path, Callable[[], Any]], AbstractContextManager[Any]],
) -> Disturbed:
    """Train 30 s, then for a while in the context that `wrong` makes of a file system, then 30 s."""
    with _file_system(directory, nbytes) as (mounted, frozen):
        model = options.keep, options.before, options.width, options.layers
        process = _start(directory, mounted / "dump", 0, 1, 1_000_000, "", "", *model)
        phases = [_train_for(process, 30)]
        with wrong(mounted, frozen):
            phases.append(_train_for(process, seconds))
        phases.append(_train_for(process, 30))
        (directory / "end").touch()
        told = _told(process)
        _take(mounted / "dump", directory / "run.zarr")
        marks = _marks(mounted / "dump")
    store = ingest.open_store(directory / "run.zarr")
    whole = {(one.rank, one.step) for one in store.select() if one.status == "complete"} >= marks.keys()
    before, during = ([b - a for a, b in itertools.pairwise(phase)] for phase in phases[:2])
    steps = sum(map(len, phases))
    return Disturbed(before, during, steps, told, marks, whole and not list(store.verify()))


def hang(directory: Path, options: argparse.Namespace) -> Iterator[Check]:
    """Freeze the file system of the dump while a process trains."""
    seen = _disturbed(directory, options, options.seconds, 4096 * MIB, lambda _, frozen: frozen())
    yield from _unnoticed(seen, options)
    yield Check("steps in the dump", f"at least {seen.steps}", len(seen.marks), len(seen.marks) >= seen.steps)
    left_out = seen.told["left_out"]
    yield Check("tensors that were left out are counted", "some", left_out, left_out > 0)


def full(directory: Path, options: argparse.Namespace) -> Iterator[Check]:
    """Fill the disk of the dump while a process trains, and make room again."""

    @contextmanager
    def filled(mounted: Path, _: Any) -> Iterator[None]:
        filler = mounted / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(1024)):
                pass
        yield
        filler.unlink()

    seen = _disturbed(directory, options, 30, 512 * MIB, filled)
    yield from _unnoticed(seen, options)
    lost = seen.steps - len(seen.marks)
    yield Check("steps that were lost", "some", lost, lost > 0)
    said = [text for mark in seen.marks.values() for text in mark.problems]
    for who, texts in (("the recorder", seen.told["problems"]), ("a later step", said)):
        numbers = {int(text.split()[0]) for text in texts if "No space left" in text}
        yield Check(f"how many, by what {who} says", lost, max(numbers, default=0))


def _unnoticed(seen: Disturbed, options: argparse.Namespace) -> Iterator[Check]:
    slower = median(seen.during) / median(seen.before)
    yield Check("step meanwhile / before, median", "at most 1.05", f"{slower:.3f}", slower <= 1.05)
    yield Check("longest step, s", "at most 2", f"{max(seen.during):.2f}", max(seen.during) <= 2)
    yield _within_memory(seen.told["grown"], options)
    yield Check("the store has all finished steps, undamaged", "yes", "yes" if seen.whole else "no")
    print(f"{len(seen.during)} steps meanwhile; told: {seen.told}")


def _within_memory(grown: int, options: argparse.Namespace) -> Check:
    """Compare what a process grew by with the ring, the queue and its margin."""
    bound = options.keep + 1088
    return Check("MiB that a process grew by", f"at most {bound}", grown >> 20, grown <= bound * MIB)


def _train_for(process: subprocess.Popen[str], seconds: float) -> list[float]:
    """Read when steps end for a while."""
    ends: list[float] = []
    while (
        (not ends or ends[-1] - ends[0] < seconds) and process.stdout and (line := process.stdout.readline())
    ):
        ends.append(float(line))
    return ends


@contextmanager
def _file_system(directory: Path, nbytes: int) -> Iterator[tuple[Path, Callable[[], Any]]]:
    """Yield a file system of its own, and a context in which whatever writes to it hangs."""
    image, mounted = directory / "image", directory / "mounted"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(nbytes)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, mounted], check=True)

    @contextmanager
    def frozen() -> Iterator[None]:
        subprocess.run(["fsfreeze", "--freeze", mounted], check=True)
        try:
            yield
        finally:
            subprocess.run(["fsfreeze", "--unfreeze", mounted], check=True)

    try:
        yield mounted, frozen
    finally:
        subprocess.run(["umount", "--lazy", mounted], check=True)


CAMPAIGNS = {"nan": nan, "kills": kills, "hang": hang, "full": full}


def main() -> None:
    """Run the campaign that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.incidents", description=__doc__.splitlines()[0])
    parser.add_argument("campaign", choices=list(CAMPAIGNS))
    for name, default in {
        "ranks": 2,
        "steps": 300,
        "seed": 0,
        "count": 40,
        "seconds": 300,
        "keep": 1024,
        "before": 8,
        "width": 256,
        "layers": 2,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dump-ingest-incidents-") as directory:
        checks = list(CAMPAIGNS[options.campaign](Path(directory), options))
    wrong = 0
    for check in checks:
        holds = check.expected == check.found if check.holds is None else check.holds
        wrong += not holds
        print(f"{'ok   ' if holds else 'WRONG'} {check.what}: expected {check.expected}, found {check.found}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
