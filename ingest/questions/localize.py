"""`localize`: where tensors of two steps differ, by digests of blocks and marginals: no tensor is read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, ClassVar, Literal, TypeAlias, Unpack

import numpy as np
import numpy.typing as npt

from ingest.questions.choosing import empty_choice_error
from ingest.questions.compare.selection import parse_selection
from ingest.questions.compare.sources import forms_of
from ingest.questions.question import Note, Option, Part, Question, Shown, Table
from ingest.reader.catalog import open_catalog
from ingest.reader.step import COLUMNS, Step
from ingest.reader.step_tables import marginals_of, read_entries
from ingest.reader.tensor_filter import FilterFields, TensorFilter, with_pattern
from ingest.reader.text import Plain, counted, shape_text
from workers.arrays.digest import BLOCK_NBYTES, SMALL_NBYTES, blocks_of, differing_runs, runs_of
from workers.arrays.marginals import Marginal
from workers.errors import UsageError
from workers.store.consolidated.blocks import TensorKey, tensors_of
from workers.store.model import RowKind
from workers.store.sketches import BLOCK_TABLE, blocks_by_digest

#: Ranges of one tensor, and runs of positions, that people read.
_SHOWN = 3
#: Why it is not known where a tensor differs.
_NO_DIGESTS = "no digests of its blocks"
_OTHER_FORM = "another type, shape or memory order"
_IN_DEVICE_LAYOUT = "stored in device layout"


@dataclass(frozen=True, slots=True)
class DifferingRange(Plain):
    """Elements next to one another, in the order of the dump, among which some differ."""

    begin: int
    end: int
    first: tuple[int, ...]
    last: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DifferingPositions(Plain):
    """Positions along an axis at which elements differ, by their sums, norms or largest magnitudes.

    They certainly differ there. At other positions they may differ by less than float32 holds of these.
    """

    axis: int
    length: int
    runs: tuple[tuple[int, int], ...]
    """Begin and end of each run of positions next to one another."""


@dataclass(frozen=True, slots=True)
class LocalizedTensor(Plain):
    """A tensor that differs, and where."""

    also: ClassVar = ("exactness",)

    name: str
    net: str
    graph: str
    dtype: str
    shape: tuple[int, ...]
    blocks: int
    """How many blocks of 64 KiB its payload has."""
    differing: int
    """How many of them may differ; 0 if it is not known."""
    ranges: tuple[DifferingRange, ...]
    """Every element that differs is in one of them. A tensor of up to 1 MiB is one range."""
    positions: tuple[DifferingPositions, ...]
    """Of each axis of which both sides have marginals: its rows, its columns, its channels."""
    reason: str
    """Why it is not known which ranges differ; "" if it is."""

    @property
    def exactness(self) -> str:
        """`bounded`: `positions` certainly differ, and nothing outside `ranges` does. "" if it is not known.

        `exact` if the ranges are the elements that differ: of a tensor with one element.
        """
        if self.reason:
            return ""
        return "exact" if math.prod(self.shape) == 1 else "bounded"


@dataclass(frozen=True, slots=True)
class Localized(Shown, Plain):
    """Where the tensors of two steps differ."""

    a: str
    b: str
    equal: int
    """How many of the tensors that both have are bit for bit equal."""
    tensors: tuple[LocalizedTensor, ...]
    only_in_a: int
    """How many of the chosen tensors B does not have."""
    only_in_b: int

    left_out = ()

    @property
    def is_alarm(self) -> bool:
        """Whether any tensor differs."""
        return bool(self.tensors)

    def table(self) -> Table[LocalizedTensor]:
        """Return a row for each tensor that differs."""
        return Table(
            {
                "name": lambda tensor: tensor.name,
                "shape": lambda tensor: shape_text(tensor.shape),
                "blocks": lambda tensor: str(tensor.blocks),
                "differ": lambda tensor: "-" if tensor.reason else str(tensor.differing),
                "elements": lambda tensor: tensor.reason or _ranges_text(tensor.ranges),
                "positions": lambda tensor: "; ".join(map(_positions_text, tensor.positions)),
            },
            self.tensors,
            "tensor",
            right=("blocks", "differ"),
        )

    def report(self) -> Iterator[Part]:
        """Yield what people read."""
        if self.tensors:
            yield self.table()
        if any(tensor.exactness == "bounded" for tensor in self.tensors):
            has_positions = any(tensor.positions for tensor in self.tensors)
            positions = ", and the positions certainly differ" if has_positions else ""
            yield Note(f"all that differs is among the elements{positions}")
        verb = "is" if self.equal == 1 else "are"
        alone = f"{self.only_in_a} in A alone, {self.only_in_b} in B alone"
        yield Note(f"{counted(self.equal, 'tensor')} {verb} equal, {alone}")


def _ranges_text(ranges: tuple[DifferingRange, ...]) -> str:
    texts = [f"{list(part.first)} to {list(part.last)}" for part in ranges[:_SHOWN]]
    more = len(ranges) - len(texts)
    return "; ".join(texts) + (f"; and {more} more" if more else "")


def _positions_text(along: DifferingPositions) -> str:
    runs = [str(begin) if end == begin + 1 else f"{begin}-{end - 1}" for begin, end in along.runs[:_SHOWN]]
    more = len(along.runs) - len(runs)
    text = ", ".join(runs) or "no position by more than rounding"
    return f"axis {along.axis}: {text}" + (f", and {more} more" if more else "")


def localize(
    a: Annotated[str | Step, Option("A step of a rank: STORE@RANK,STEP.", "A", is_argument=True)],
    b: Annotated[str | Step, Option("The reference, in the same form.", "B", is_argument=True)],
    pattern: str | None = None,
    **conditions: Unpack[FilterFields],
) -> Localized:
    """Say where tensors of two steps differ, without reading them: also after gc.

    Tensors of the same name are compared bit for bit: by type, shape, memory order and digests. Elements:
    every one that differs is among these, which are blocks of 64 KiB. Positions: rows, columns or channels
    that certainly differ, by their sums; others may differ by less than rounding. Only what was dumped with
    its elements is compared. The command exits with 5 if any tensor differs.

    Raises:
        UsageError: a step is not in the store, no tensor of A was dumped with its elements, none fulfils the
            conditions, or B has none of those that do.
        DamagedStore: an index or the digests of blocks are damaged.
    """
    first, second = named_steps(a, b)
    condition = TensorFilter(with_pattern(pattern, conditions), COLUMNS)
    dumped, others = _dumped(first), _dumped(second)
    if not dumped:
        raise UsageError(
            f"{name_of(first)}: no tensor was dumped with its elements, so there is nothing to locate",
            hint="`dump-ingest compare` compares statistics.",
        )
    wanted = _chosen(first, condition, dumped)
    if not wanted:
        raise empty_choice_error(condition, list(dumped))
    shared = wanted.keys() & others.keys()
    if not shared:
        raise UsageError(
            f"{name_of(second)}: none of the tensors of {name_of(first)} was dumped with its elements",
            hint="`dump-ingest compare` also pairs tensors of different names.",
        )
    differing = {
        key: (row, others[key][0])
        for key, (row, content) in wanted.items()
        if key in shared and content != others[key][1]
    }
    return Localized(
        name_of(first),
        name_of(second),
        len(shared) - len(differing),
        tuple(_localized(first, second, differing)),
        len(wanted) - len(shared),
        len(_chosen(second, condition, others).keys() - dumped.keys()),
    )


def named_steps(*names: str | Step) -> list[Step]:
    """Return the steps that these name; one that is open already stands for itself. Opens each store once.

    Raises:
        UsageError: a name does not have a rank and a step, or these are not in the store, or it is not one.
        DamagedStore: the root of a store or a commit is damaged.
    """
    catalog_at = cache(open_catalog)

    def named(name: str | Step) -> Step:
        if isinstance(name, Step):
            return name
        selection = parse_selection(name)
        if selection.rank is None or selection.step is None:
            raise UsageError(
                f"{name} does not name a rank and a step", hint="Write STORE@RANK,STEP: run.zarr@0,3."
            )
        return catalog_at(selection.where).step(selection.rank, selection.step)

    return list(map(named, names))


def name_of(step: Step) -> str:
    """Return the name of a step: `run.zarr@RANK,STEP`."""
    return f"{step.address.url}@{step.key.rank},{step.key.step}"


#: Of a tensor whose elements were dumped, the row, and what is equal for tensors that are equal bit for bit:
#: its digest, and what its bytes mean.
_DumpedTensor: TypeAlias = tuple[int, tuple[object, ...]]


def _dumped(step: Step) -> dict[TensorKey, _DumpedTensor]:
    tables = step.tables
    rows, keys = tensors_of(tables)
    kinds, meanings = tables.label("kind"), forms_of(tables, rows)[1]
    return {
        key: (row, (tables.digest[row].tobytes(), *meaning))
        for row, key, meaning in zip(rows.tolist(), keys, meanings, strict=True)
        if kinds[row] == RowKind.TENSOR.value
    }


def _chosen(
    step: Step, condition: TensorFilter, dumped: dict[TensorKey, _DumpedTensor]
) -> dict[TensorKey, _DumpedTensor]:
    rows = set(step.rows(condition))
    return {key: tensor for key, tensor in dumped.items() if tensor[0] in rows}


def _localized(
    first: Step, second: Step, differing: dict[TensorKey, tuple[int, int]]
) -> Iterator[LocalizedTensor]:
    if not differing:
        return
    known = [blocks_by_digest(read_entries(step, BLOCK_TABLE), step.tables) for step in (first, second)]
    marginals = [marginals_of(step) for step in (first, second)]
    for key, (row, other) in differing.items():
        nbytes = int(first.tables.number("nbytes")[row])
        runs, reason = _runs(first, second, row, other, known)
        sides = (of_row.get(place, {}) for of_row, place in zip(marginals, (row, other), strict=True))
        yield LocalizedTensor(
            name=key.name,
            net=key.net,
            graph=key.graph,
            dtype=str(first.tables.label("dtype")[row]),
            shape=first.shape(row),
            blocks=blocks_of(nbytes),
            differing=sum(end - begin for begin, end in runs),
            ranges=tuple(_range(first, row, run) for run in runs),
            positions=() if reason == _OTHER_FORM else tuple(_positions(first.shape(row), *sides)),
            reason=reason,
        )


def _positions(
    shape: tuple[int, ...], own: Mapping[int, Marginal], others: Mapping[int, Marginal]
) -> Iterator[DifferingPositions]:
    """Yield at which positions two tensors of one shape differ, from their marginals by axis."""
    for axis in sorted(own.keys() & others.keys()):
        differs = own[axis].differs_from(others[axis], math.prod(shape) // shape[axis])
        yield DifferingPositions(axis, shape[axis], tuple(runs_of(differs)))


def _runs(
    first: Step, second: Step, row: int, other: int, known: list[dict[bytes, npt.NDArray[np.int64]]]
) -> tuple[list[tuple[int, int]], str]:
    """Return the runs of blocks that differ; or none, and why that is not known."""
    forms = [
        (step.element(place), step.shape(place), bool(step.tables.number("fortran_order")[place]))
        for step, place in ((first, row), (second, other))
    ]
    if forms[0] != forms[1]:
        return [], _OTHER_FORM
    if first.is_in_device_layout(row) or second.is_in_device_layout(other):
        return [], _IN_DEVICE_LAYOUT
    nbytes = int(first.tables.number("nbytes")[row])
    if nbytes <= SMALL_NBYTES:
        return [(0, blocks_of(nbytes))], ""
    digests = [
        of_step.get(step.tables.digest[place].tobytes())
        for of_step, step, place in zip(known, (first, second), (row, other), strict=True)
    ]
    if digests[0] is None or digests[1] is None:
        return [], _NO_DIGESTS
    return differing_runs(digests[0], digests[1]), ""


def _range(step: Step, row: int, run: tuple[int, int]) -> DifferingRange:
    """Return the elements of a run of blocks. One that lies in two blocks counts to both."""
    shape, bits = step.shape(row), step.element(row).bits
    size = math.prod(shape)
    begin = run[0] * BLOCK_NBYTES * 8 // bits
    end = min(-(-run[1] * BLOCK_NBYTES * 8 // bits), size)
    order: Literal["C", "F"] = "F" if step.tables.number("fortran_order")[row] else "C"
    first, last = (
        tuple(map(int, np.unravel_index(place, shape, order) if shape else ())) for place in (begin, end - 1)
    )
    return DifferingRange(begin, end, first, last)


QUESTION = Question(localize, ("localize run.zarr@0,40 run.zarr@1,40 --role weight",))
