"""A black box beside a training: its cost, what it saves when a NaN comes, what kills leave. Needs PyTorch.

The cost is processor time of a process that trains a transformer on one core, with the box and without. Then
two ranks of gloo train one, and a NaN is planted in a random step, on a random rank; and processes are
killed at random moments.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import ingest
from bench.measure import Measure, Ratio, Table, in_turns
from bench.parts.recording import ms_each
from bench.setting import Setting
from ingest.layouts.recorder import RecordedStep
from ingest.recording.black_box import adopt
from ingest.recording.torch_module import import_torch
from tests.pipeline import ingest_directly
from workers.host.resources import status_nbytes

_WIDTH, _LAYERS, _TOKENS = 768, 3, 512
_BEFORE, _AFTER = 8, 2
#: Where the cost is measured: steps in the ring, its memory, and steps of one round.
_HELD, _KEEP, _STEPS = 3, "2GiB", 5
_CASES: dict[str, tuple[dict[str, Any], float | None]] = {
    "outputs": ({"of": "outputs"}, 1.05),
    "outputs and gradients": ({"of": ("outputs", "gradients")}, 1.15),
    "outputs, a ring in files": ({"of": "outputs", "ring": "ring"}, None),
    "all": ({}, None),
}


def measure(setting: Setting) -> Iterator[Measure | Table]:
    """Yield the cost of a step, what an incident left, and what kills left."""
    yield from _costs(setting)
    yield _incident(setting, steps=60 if setting.quick else 300)
    yield _kills(setting, number=5 if setting.quick else 40)


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


def _costs(setting: Setting) -> Iterator[Measure | Table]:
    model, _, step = transformer(_WIDTH, _LAYERS, _TOKENS)
    step(model)

    def boxed(options: dict[str, Any]) -> float:
        with setting.target() as directory:
            if "ring" in options:
                options = options | {"ring": (setting.memory or directory) / "ring"}
            box = ingest.record(model, directory, black_box=_HELD, keep=_KEEP, **options)
            # The ring goes round once before anything is measured.
            return ms_each(partial(step, model), box, time.process_time, before=_HELD + 4, steps=_STEPS)

    contenders: dict[str, Callable[[], float]] = {
        "without": lambda: _plain(partial(step, model)),
        **{name: partial(boxed, options) for name, (options, _) in _CASES.items()},
    }
    times = in_turns(setting.rounds, contenders)
    for name, (_, floor) in _CASES.items():
        what = f"a training step, the black box holds {name}: processor time"
        yield Measure(what, "without", "ms", times[name], times["without"], Ratio.SHARE, floor)


def _plain(step: Callable[[], None]) -> float:
    started = time.process_time()
    for _ in range(_STEPS):
        step()
    return 1e3 * (time.process_time() - started) / _STEPS


_RANK = "import sys; from bench.parts.blackbox import train; train(*sys.argv[1:])"


def train(*arguments: str) -> None:
    """Train one rank, and print what became of it as JSON.

    Args:
        arguments: the directory; rank, ranks and steps; `rank:step` of a NaN, or nothing; where the ring is,
            or nothing for memory.
    """
    directory, rank, ranks, steps, planted, ring = arguments
    torch = import_torch()
    distributed, at = torch.distributed, tuple(map(int, planted.split(":"))) if planted else None
    model, place, step = transformer(256, 2, 256)
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
    before_nbytes = status_nbytes("VmRSS")
    box = ingest.record(
        called, f"{directory}/dump", black_box=_BEFORE, after=_AFTER, keep="512MiB", ring=ring or None
    )
    with box:
        for now in range(int(steps)):  # noqa: B007  (the hook reads it)
            step(called)
    grown = status_nbytes("VmRSS") - before_nbytes
    print(json.dumps({"incidents": box.incidents, "problems": box.problems, "grown": grown}), flush=True)


def _start(directory: Path, *arguments: object) -> subprocess.Popen[str]:
    directory.mkdir(exist_ok=True)
    program = [sys.executable, "-c", _RANK, str(directory), *map(str, arguments)]
    return subprocess.Popen(
        program, stdout=subprocess.PIPE, text=True, env={**os.environ, "RANK": str(arguments[0])}
    )


def _incident(setting: Setting, steps: int) -> Table:
    chance = random.Random(steps)
    at, rank = chance.randrange(_BEFORE, steps - _AFTER), chance.randrange(2)
    with setting.target() as directory:
        processes = [_start(directory, own, 2, steps, f"{rank}:{at}", "") for own in range(2)]
        told = [json.loads(process.communicate()[0]) for process in processes]
        marks = _marks(directory / "dump")
        saved = {own: sorted(s for r, s in marks if r == own and marks[r, s].incident) for own in range(2)}
        lines = [
            json.loads(line)
            for path in (directory / "dump").glob("recorded/rank_*/*/recorded-statistics.jsonl")
            for line in path.read_text().splitlines()
        ]
        promised = sum(_nbytes(line) for line in lines if line.get("file"))
        written = sum(path.stat().st_size for path in directory.rglob("*.safetensors"))
        store = directory / "run.zarr"
        summaries = ingest_directly(directory / "dump", store)
        origin = ingest.origin(ingest.open_store(store))
    expected = list(range(at - _BEFORE + 1, at + _AFTER + 1))
    rows = (
        ("steps with statistics, of both ranks", f"{2 * steps}", f"{len(summaries)}"),
        ("steps with elements, of each rank", f"{expected[0]} to {expected[-1]}", _spans(saved)),
        (
            "origin",
            f"rank {rank}, step {at}, layers.1.norm1",
            f"rank {origin.rank}, step {origin.step}, {origin.op_name}",
        ),
        ("bytes of elements on disk / of the tensors", "0.98 to 1.02", f"{written / promised:.4f}"),
        (
            "memory that a process grew by, MiB",
            "at most 1536",
            " ".join(f"{one['grown'] / 2**20:.0f}" for one in told),
        ),
        ("problems told by the recorders", "none", str([one["problems"] for one in told])),
    )
    return Table(f"A NaN on one of two ranks, {steps} steps", ("what", "expected", "found"), rows)


def _spans(saved: dict[int, list[int]]) -> str:
    return "; ".join(
        f"{steps[0]} to {steps[-1]}, {len(steps)}" if steps else "none" for steps in saved.values()
    )


def _nbytes(line: dict[str, Any]) -> int:
    number = 1
    for length in line["shape"]:
        number *= length
    return number * {"float32": 4, "int64": 8, "bool": 1}[line["dtype"]]


def _marks(dump: Path) -> dict[tuple[int, int], RecordedStep]:
    marks = {}
    for path in dump.glob("recorded/rank_*/step_*/recorded-step.json"):
        told = json.loads(path.read_bytes())
        rank = int(path.parts[-3].split(".")[0].removeprefix("rank_"))
        step = int(path.parts[-2].removeprefix("step_"))
        marks[rank, step] = RecordedStep(**told)
    return marks


def _kills(setting: Setting, number: int) -> Table:
    chance = random.Random(number)
    complete = untold = saved = wrong = 0
    for kill in range(number):
        with setting.target() as directory:
            ring = "" if kill % 4 == 0 else str(directory / "ring")
            process = _start(directory, 0, 1, 10_000, "", ring)
            recorded = directory / "dump" / "recorded" / "rank_0"
            while not (recorded / f"step_{chance.randrange(3, 6)}").exists() and process.poll() is None:
                time.sleep(0.05)
            time.sleep(chance.uniform(0, 2))
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
            adopt(directory / "dump")
            marks = _marks(directory / "dump")
            steps = {int(path.name.removeprefix("step_")) for path in recorded.iterdir()}
            last = marks.get((0, max(steps)))
            untold += last is None or "died" not in last.ended or len(marks) != len(steps)
            # The step that ran may have had nothing on record yet; then it says so.
            incidents = sum(bool(mark.incident) for mark in marks.values())
            saved += bool(ring) and incidents >= min(len(steps) - 1, _BEFORE)
            store = directory / "run.zarr"
            summaries = ingest_directly(directory / "dump", store)
            complete += all(summary.status == "complete" for summary in summaries)
            wrong += bool(list(ingest.open_store(store).verify()))
    in_files = number - (number + 3) // 4
    rows = (
        ("stores in which every step is complete", f"{number}", f"{complete}"),
        ("stores that are damaged", "0", f"{wrong}"),
        ("dumps in which the last step does not say that the process died", "0", f"{untold}"),
        ("rings in files of which all of the last steps were saved", f"{in_files}", f"{saved}"),
    )
    title = f"{number} kills at random moments, {in_files} with a ring in files"
    return Table(title, ("what", "expected", "found"), rows)
