"""A training step of PyTorch with the recorder, against the same step without it. Needs PyTorch.

A transformer of four layers with 3.2 million parameters, on one core, in float32. Recorded are the inputs
and outputs of all modules, the gradients of outputs, the parameters and their gradients, in each step. The
figures are of processor time, which hardly depends on what else the machine does: that of the training
thread, and that of the process, in which a thread writes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import ingest
from bench.measure import Measure, Ratio, Table, in_turns
from bench.setting import Setting
from ingest.recording.snapshots import import_torch

_WIDTH, _LAYERS, _BATCH, _LENGTH = 256, 4, 8, 128
#: Steps of one round, after one that is not measured.
_STEPS = 4
#: What is recorded, by the name of a measure.
_CASES: dict[str, dict[str, Any]] = {
    "no step recorded": {"steps": []},
    "statistics of outputs": {"of": "outputs"},
    "statistics": {},
    "statistics, with functions": {"of": ("inputs", "outputs", "gradients", "parameters", "functions")},
    "tensors of outputs": {"of": "outputs", "what": "tensors"},
    "tensors": {"what": "tensors"},
}


def measure(setting: Setting) -> Iterator[Measure | Table]:
    """Yield the time of a step with each choice of what to record, against that without a recorder."""
    model, step = _training()
    step()
    for clock, of in ((time.thread_time, "the training thread"), (time.process_time, "the process")):
        contenders = {"without": partial(ms_each, step, nullcontext(), clock)}
        for name, options in _CASES.items():
            contenders[name] = partial(_recorded, setting, model, step, options, clock)
        times = in_turns(setting.rounds, contenders)
        for name in _CASES:
            what = f"a training step, {name}: time of {of}"
            yield Measure(what, "without a recorder", "ms", times[name], times["without"], Ratio.SHARE)
    yield _volume(setting, model, step)


def _training() -> tuple[Any, Callable[[], None]]:
    """Return a model, and what trains it for one step."""
    torch = import_torch()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(_WIDTH, 4, 4 * _WIDTH, batch_first=True, dropout=0)
    model = torch.nn.TransformerEncoder(layer, _LAYERS, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(_BATCH, _LENGTH, _WIDTH)).square().mean().backward()
        optimizer.step()

    return model, step


def _recorded(
    setting: Setting,
    model: Any,
    step: Callable[[], None],
    options: dict[str, Any],
    clock: Callable[[], float],
) -> float:
    with setting.target() as directory:
        return ms_each(step, ingest.record(model, directory, **options), clock)


def ms_each(
    step: Callable[[], None],
    context: AbstractContextManager[Any],
    clock: Callable[[], float],
    *,
    before: int = 1,
    steps: int = _STEPS,
) -> float:
    """Return milliseconds of one step, until all of what was recorded is on the disk.

    Args:
        step: makes one.
        context: what records.
        clock: in seconds.
        before: how many steps are not measured.
        steps: how many are.
    """
    with context:
        for _ in range(before):
            step()
        started = clock()
        for _ in range(steps):
            step()
    # The context has ended: all of it is written.
    return 1e3 * (clock() - started) / steps


def _volume(setting: Setting, model: Any, step: Callable[[], None]) -> Table:
    rows = []
    for name, options in _CASES.items():
        with setting.target() as directory:
            with ingest.record(model, directory, **options):
                step()
            sizes = [path.stat().st_size for path in directory.rglob("*") if path.is_file()]
        rows.append((name, str(len(sizes)), f"{sum(sizes) / 1e6:.2f}"))
    return Table("What a step takes on disk", ("recorded", "files", "MB"), tuple(rows))
