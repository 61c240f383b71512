"""The histograms of the tensors that a question is about, one step of one rank at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from ingest.questions.choosing import empty_choice_error, keys_of
from ingest.reader.catalog import Catalog
from ingest.reader.choice import Choice
from ingest.reader.snapshot import Snapshot, ask_of_undamaged, take_snapshot
from ingest.reader.step import COLUMNS, Step
from ingest.reader.step_tables import histograms_of
from ingest.reader.tensor_filter import FilterFields, TensorFilter
from workers.arrays.histogram import Histogram
from workers.arrays.statistics import FIELDS
from workers.errors import UsageError
from workers.store.consolidated.blocks import TensorKey, tensors_of
from workers.store.prefetch import prefetch

_Answer = TypeVar("_Answer")

#: Steps that are read ahead of need.
_STEPS_AHEAD = 4
_COUNT = FIELDS.index("count")
#: How a store gets what is missing.
SKETCHES_HINT = (
    "Tensors of real numbers have them if their elements were dumped, and not only statistics, and if the "
    "setting `sketches` was on when their step was committed; "
    "`dump-ingest sketch STORE` adds them while the tensors are there."
)


@dataclass(frozen=True, slots=True, eq=False)
class SketchedTensor:
    """One tensor of one step and rank."""

    rank: int
    step: int
    row: int
    key: TensorKey
    dtype: str
    elements: int
    """All of its elements, those that are not finite included."""
    histogram: Histogram


@dataclass(slots=True)
class SketchedTensors:
    """The tensors that are chosen of a snapshot, and how many of them do not have a histogram."""

    snapshot: Snapshot
    chosen: FilterFields
    without: int = 0
    """Known when the iteration has ended."""

    def __iter__(self) -> Iterator[SketchedTensor]:
        """Yield the tensors by step, rank and order of execution.

        Steps that the consolidated view excludes are not read.

        Raises:
            UsageError: no tensor is chosen, or none of them has a histogram; raised at the end.
            DamagedStore: the index or the histograms of a step are damaged.
        """
        condition = TensorFilter(self.chosen, COLUMNS)
        self.without, total = 0, 0
        steps = list(self.snapshot.chosen.values())
        for tensors, without in prefetch(
            self.snapshot.store.possible_steps(steps, [self.chosen]),
            lambda step: _sketched(step, condition),
            ahead=_STEPS_AHEAD,
            threads=2,
            name="dump-ingest-sketches",
        ):
            self.without += without
            total += len(tensors)
            yield from tensors
        if not total and not self.without:
            raise empty_choice_error(condition, keys_of(steps))
        if not total:
            raise UsageError("none of the chosen tensors has a histogram", hint=SKETCHES_HINT)


def ask_of_sketches(
    store: Catalog,
    chosen: FilterFields,
    ask: Callable[[SketchedTensors], _Answer],
    *,
    rank: Choice,
    step: Choice,
    include_partial: bool,
) -> _Answer:
    """Ask a question about the chosen tensors of a snapshot, or of the part of it that can be read.

    Args:
        store: the store.
        chosen: what a tensor must fulfil in a step.
        ask: answers the question; called again without damaged steps if it comes upon one.
        rank: one rank, or several; all if None.
        step: one step, or several; all if None.
        include_partial: also use steps with quarantined or missing files.

    Raises:
        UsageError: no tensor is chosen, or none has a histogram; or `ask` raises it.
        DamagedStore: no step can be read.
    """
    snapshot = take_snapshot(store, rank, step, include_partial=include_partial)
    return ask_of_undamaged(
        snapshot, lambda readable: ask(SketchedTensors(readable, chosen)), read=histograms_of
    )


def _sketched(step: Step, condition: TensorFilter) -> tuple[list[SketchedTensor], int]:
    """Return the chosen tensors of a step that have a histogram, and how many have none."""
    was_read = step.has_read_tables
    rows, keys = tensors_of(step.tables)
    key_of = dict(zip(rows.tolist(), keys, strict=True))
    chosen = step.rows(condition)
    known = histograms_of(step, frozenset(chosen)) if chosen else {}
    dtypes = step.tables.label("dtype")
    tensors = [
        SketchedTensor(
            step.key.rank,
            step.key.step or 0,
            row,
            key_of[row],
            str(dtypes[row]),
            int(step.tables.statistics[row, _COUNT]),
            known[row],
        )
        for row in chosen
        if row in known
    ]
    if not was_read:  # somebody else uses it
        step.forget_tables()
    return tensors, len(chosen) - len(tensors)
