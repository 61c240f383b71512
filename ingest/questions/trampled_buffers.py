"""Buffers that changed although no kernel wrote them, in what AOTInductor saves around each kernel.

Each kernel has its buffers saved before and after it runs. What it changed lies between the two. What differs
from the end of one kernel to the beginning of the next one that has the same buffer was written by nobody, as
far as kernels are saved. Inputs and constants of the model (`arg0_1`, `primals_2`, `constant3`) that differ
from before to after a kernel were changed in place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ingest.reader.step import Step
from workers.store.model import RowKind

LAYOUT = "aot_inductor"
UNSEEN_WRITER = "trampled, or written by a kernel that was not dumped"
IN_PLACE = "an input that was changed in place"
_BEFORE, _AFTER = "before.", "output."
_INPUT = re.compile(r"arg\d+_\d+|primals_\d+|constant\d+")


@dataclass(frozen=True, slots=True)
class _Saved:
    """A buffer as one kernel found or left it."""

    row: int
    kernel: str
    is_before: bool
    digest: bytes


def changed_buffers(step: Step) -> Iterator[tuple[int, int, str]]:
    """Yield the rows of a buffer at two moments between which it changed, and what that means.

    Files that were copied without their times have lost the order of the kernels: then only what single
    kernels did to inputs is known.
    """
    if LAYOUT not in step.commit.record.source.layout.split("+"):
        return
    buffers = _buffers(step)
    is_ordered = all(
        before.row < after.row for events in buffers.values() for before, after in _around_kernels(events)
    )
    for name, events in buffers.items():
        if _INPUT.fullmatch(name):
            for before, after in _around_kernels(events):
                if before.digest != after.digest:
                    yield before.row, after.row, IN_PLACE
        if is_ordered:
            for earlier, later in pairwise(events):
                is_between = later.is_before and not earlier.is_before
                if is_between and earlier.digest != later.digest:
                    yield earlier.row, later.row, UNSEEN_WRITER


def _around_kernels(events: list[_Saved]) -> Iterator[tuple[_Saved, _Saved]]:
    """Yield the saved contents of a buffer before and after each kernel, if both are there."""
    before = {saved.kernel: saved for saved in events if saved.is_before}
    for saved in events:
        if not saved.is_before and saved.kernel in before:
            yield before[saved.kernel], saved


def _buffers(step: Step) -> dict[str, list[_Saved]]:
    """Return by buffer what was saved of it, in order of execution."""
    tables = step.tables
    buffers: dict[str, list[_Saved]] = {}
    for row in np.flatnonzero(tables.label("kind").astype(str) == RowKind.TENSOR.value).tolist():
        io = str(tables.label("io")[row])
        for prefix in (_BEFORE, _AFTER):
            if io.startswith(prefix):
                saved = _Saved(
                    row, str(tables.label("op_name")[row]), prefix == _BEFORE, bytes(tables.digest[row])
                )
                buffers.setdefault(io.removeprefix(prefix), []).append(saved)
    return buffers
