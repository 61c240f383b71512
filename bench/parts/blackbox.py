"""What a black box costs a training: processor time of a process on one core. Needs PyTorch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import ingest
from bench.measure import Measure, Ratio, Table, in_turns
from bench.parts.recording import ms_each
from bench.setting import Setting
from tests.incidents import transformer

_WIDTH, _LAYERS, _TOKENS = 768, 3, 512
#: Steps in the ring, its memory, and steps of one round.
_HELD, _KEEP, _STEPS = 3, "2GiB", 5
_CASES: dict[str, tuple[dict[str, Any], float | None]] = {
    "outputs": ({"of": "outputs"}, 1.05),
    "outputs and gradients": ({"of": ("outputs", "gradients")}, 1.15),
    "outputs, a ring in files": ({"of": "outputs", "ring": "ring"}, None),
    "all": ({}, None),
    "all, with overhead=0.03": ({"overhead": 0.03}, None),
}


def measure(setting: Setting) -> Iterator[Measure | Table]:
    """Yield the processor time of a step with each choice of what is held, against that without."""
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
