"""Find tensors that changed within a step although nobody wrote them.

A tensor that is dumped several times in one step holds the same bytes each time, unless its operator ran
again. The watch mode of ACL and TorchAir dumps outputs again after other operators have run, in order to show
which of them tramples memory. In other dumps, an output is dumped more often than the inputs of its operator
if its operator did not run again. What recomputation made again in the backward pass (SGLang's dumper) is
compared with what the forward pass made: if these differ, the operator is not repeatable.

AOTInductor saves the buffers of each kernel before and after it runs. What the kernel changed lies between
the two. What differs from the end of one kernel to the beginning of the next one that has the same buffer was
written by nobody, as far as kernels are saved. Inputs and constants of the model (`arg0_1`, `primals_2`,
`constant3`) that differ from before to after a kernel were changed in place.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ingest.dump_configs.model import WATCHER
from ingest.questions.question import Note, Part, Partial, Question, Ranks, Shown, Steps
from ingest.reader.anatomy import BitDifference, compare_bits
from ingest.reader.catalog import Catalog
from ingest.reader.context.files import configuration_of
from ingest.reader.operator_kinds import RECOMPUTED, is_input, is_output, is_parameter, keys_of
from ingest.reader.snapshot import LeftOut, Snapshot, ask_of_undamaged, take_snapshot
from ingest.reader.step import Step, TableList
from ingest.reader.tensor import Tensor
from ingest.reader.text import Plain
from workers.store.model import RowKind

#: Tensors of which elements are read.
_READ = 20
#: The most operators between two dumps that are named.
_BETWEEN = 10
TRAMPLED, RUN_AGAIN, NOT_REPEATABLE = "trampled", "trampled, or run again", "not repeatable"


@dataclass(frozen=True, slots=True)
class Trampled(Plain):
    """A tensor that holds other bytes at a later moment of the same step."""

    rank: int
    step: int
    name: str
    """The name of the tensor as it was dumped last with its own bytes."""
    later: str
    """The name of its next dump, which has other bytes."""
    kind: str
    """`trampled`: nobody wrote it in between. `trampled, or run again`: the same, unless its operator ran
    again, which no dumped input tells. `not repeatable`: computed again, with another result. Buffers of
    AOTInductor: `trampled, or written by a kernel that was not dumped`, and `an input that was changed in
    place`, by the kernel of `later`."""
    between: tuple[str, ...]
    """The operators that were dumped in between, in order: one of them may have written it. The first ten."""
    others: int
    difference: BitDifference | None
    """Which elements and bits differ; None if the store does not have the elements, or of many tensors."""


class TrampledTensors(TableList[Trampled], Shown):
    """The answer: a list, which is also a table with the columns of `trampled --json`."""

    columns = ("rank", "step", "name", "later", "kind", "between", "others", "difference")
    shown = ("rank", "step", "name", "kind", "between")
    noun = "trampled tensor"

    def __init__(self, tensors: Iterable[Trampled] = (), left_out: Iterable[LeftOut] = ()) -> None:
        """Make a list of tensors; `left_out` are the steps that the answer is not about."""
        super().__init__(tensors)
        self.left_out: tuple[LeftOut, ...] = tuple(left_out)
        """Steps that the answer is not about, and why."""

    @property
    def is_alarm(self) -> bool:
        """Whether any tensor changed."""
        return bool(self)

    def report(self) -> Iterator[Part]:
        """Yield what people read."""
        for tensor in self:
            what = f"{tensor.name} is {tensor.kind}: {tensor.later} differs"
            yield f"rank {tensor.rank}, step {tensor.step}: {what}"
            if tensor.difference is not None:
                yield f"  {tensor.difference}"
            if tensor.between:
                more = f" and {tensor.others} more" if tensor.others else ""
                yield f"  dumped in between: {', '.join(tensor.between)}{more}"
        if not self:
            yield Note("no tensor changed without being written", "")


class _Saved(NamedTuple):
    row: int
    digest: bytes
    occurrence: int = 0
    """Which dump of the tensor it is."""
    kernel: str = ""
    """That found it so, or left it so."""
    is_before: bool = False


def trampled(
    store: Catalog, rank: Ranks = None, step: Steps = None, *, include_partial: Partial = False
) -> TrampledTensors:
    """Find tensors that changed within a step although nobody wrote them: trampled memory.

    For dumps that have a tensor several times in a step: the watch mode of ACL and TorchAir, recomputation.
    Only tensors whose elements were dumped are compared, by their digests; the elements of up to 20 tensors
    are read. The command exits with 5 if it finds any.

    Raises:
        UsageError: a rank or step is not in the store, or no step is complete.
        DamagedStore: no step can be read.
    """
    return ask_of_undamaged(take_snapshot(store, rank, step, include_partial=include_partial), _trampled_in)


def _trampled_in(snapshot: Snapshot) -> TrampledTensors:
    found: list[Trampled] = []
    without: list[LeftOut] = []
    is_watched = configuration_of(snapshot.store, snapshot.ranks[0]).asked.only == WATCHER
    for opened in snapshot.chosen.values():
        kinds = set(opened.tables.label("kind").tolist())
        if RowKind.STATISTICS.value in kinds and RowKind.TENSOR.value not in kinds:
            without.append(LeftOut(opened.key, "only statistics were dumped"))
        for change in (*_of_step(opened, is_watched=is_watched), *changed_buffers(opened)):
            found.append(_with_bits(opened, *change, read=len(found) < _READ))
        opened.forget_tables()
    return TrampledTensors(found, sorted((*snapshot.left_out, *without), key=lambda left: left.key.order))


def _of_step(step: Step, *, is_watched: bool) -> Iterator[tuple[int, int, str]]:
    """Yield the rows of two dumps of a tensor that differ, and what that means."""
    outputs, runs = _dumps_of(step)
    for output, dumps in outputs.items():
        # An operator whose inputs were dumped as often ran as often: a loop.
        own_runs = runs[output[:4]]
        if len(dumps) > max(own_runs, 1):
            kind = TRAMPLED if own_runs or is_watched else RUN_AGAIN
            yield from ((first, second, kind) for first, second in _changes(pairwise(dumps)))
        again = outputs.get((output[0], RECOMPUTED, *output[2:])) if output[1] == "" else None
        if again and again[0].digest != dumps[0].digest:
            yield dumps[0].row, again[0].row, NOT_REPEATABLE


def _changes(pairs: Iterable[tuple[_Saved, _Saved]]) -> Iterator[tuple[int, int]]:
    return ((earlier.row, later.row) for earlier, later in pairs if earlier.digest != later.digest)


def _dumps_of(step: Step) -> tuple[dict[tuple[str, ...], list[_Saved]], Counter[tuple[str, ...]]]:
    """Return the dumps of each output, in order, and how often the inputs of each operator were dumped.

    An operator is network, graph, type and name; an output is these, its kind and its slot.
    """
    tables = step.tables
    dumped = np.flatnonzero(tables.label("kind").astype(str) == RowKind.TENSOR.value)
    ios, slots = (tables.label("io")[dumped].astype(str), tables.number("slot")[dumped].astype(str))
    outputs: dict[tuple[str, ...], list[_Saved]] = {}
    runs: Counter[tuple[str, ...]] = Counter()
    of_rows = zip(dumped.tolist(), keys_of(tables, dumped), ios.tolist(), slots.tolist(), strict=True)
    for row, call, io, slot in of_rows:
        if is_input(io):
            runs[call[:4]] = max(runs[call[:4]], call.occurrence + 1)
        elif is_output(io) and not is_parameter(call.op_type):
            saved = _Saved(row, bytes(tables.digest[row]), call.occurrence)
            outputs.setdefault((*call[:4], io, slot), []).append(saved)
    for dumps in outputs.values():
        dumps.sort(key=lambda dump: dump.occurrence)
    return outputs, runs


def _with_bits(step: Step, first: int, second: int, kind: str, *, read: bool) -> Trampled:
    earlier, later = Tensor(step, first), Tensor(step, second)
    between = _between(step, first, second) if kind not in (NOT_REPEATABLE, IN_PLACE) else []
    return Trampled(
        rank=step.key.rank,
        step=step.key.step or 0,
        name=earlier.name,
        later=later.name,
        kind=kind,
        between=tuple(between[:_BETWEEN]),
        others=len(between[_BETWEEN:]),
        difference=compare_bits(earlier, later) if read else None,
    )


def _between(step: Step, first: int, second: int) -> list[str]:
    tables = step.tables
    types, names = tables.label("op_type"), tables.label("op_name")
    pairs = dict.fromkeys((str(types[row]), str(names[row])) for row in range(first + 1, second))
    own = str(types[first]), str(names[first])
    return [f"{op_type} ({name})" for op_type, name in pairs if (op_type, name) != own]


LAYOUT = "aot_inductor"
UNSEEN_WRITER = "trampled, or written by a kernel that was not dumped"
IN_PLACE = "an input that was changed in place"
_BEFORE, _AFTER = "before.", "output."
_INPUT = re.compile(r"arg\d+_\d+|primals_\d+|constant\d+")


def changed_buffers(step: Step) -> Iterator[tuple[int, int, str]]:
    """Yield the rows of a buffer at two moments between which it changed, and what that means.

    Files that were copied without their times have lost the order of the kernels: then only what single
    kernels did to inputs is known.
    """
    if LAYOUT not in step.commit.record.source.layout.split("+"):
        return
    buffers = _buffers(step)
    is_ordered = all(map(_is_in_order, buffers.values()))
    for name, events in buffers.items():
        if _INPUT.fullmatch(name):
            yield from ((*rows, IN_PLACE) for rows in _changes(_around_kernels(events)))
        if is_ordered:
            between = (pair for pair in pairwise(events) if pair[1].is_before and not pair[0].is_before)
            yield from ((*rows, UNSEEN_WRITER) for rows in _changes(between))


def _is_in_order(events: list[_Saved]) -> bool:
    return all(before.row < after.row for before, after in _around_kernels(events))


def _around_kernels(events: list[_Saved]) -> Iterator[tuple[_Saved, _Saved]]:
    """Yield the saved contents of a buffer before and after each kernel, if both are there."""
    before = {saved.kernel: saved for saved in events if saved.is_before}
    for saved in events:
        if not saved.is_before and saved.kernel in before:
            yield before[saved.kernel], saved


def _buffers(step: Step) -> dict[str, list[_Saved]]:
    tables = step.tables
    buffers: dict[str, list[_Saved]] = {}
    for row in np.flatnonzero(tables.label("kind").astype(str) == RowKind.TENSOR.value).tolist():
        io = str(tables.label("io")[row])
        for prefix in (_BEFORE, _AFTER):
            if io.startswith(prefix):
                kernel, digest = str(tables.label("op_name")[row]), bytes(tables.digest[row])
                saved = _Saved(row, digest, kernel=kernel, is_before=prefix == _BEFORE)
                buffers.setdefault(io.removeprefix(prefix), []).append(saved)
    return buffers


QUESTION = Question(trampled, ("trampled run.zarr --step 8",))
