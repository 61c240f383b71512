"""Parameters of a side as fibres: vectors along the last axis (rows) and along the one before (columns).

However a parameter is fused, split, stacked, sharded, transposed or permuted by rows, the fibres along one of
its axes stay whole. Each has a number of 64 bits: the sum, modulo 2**64, of its bit patterns times random odd
coefficients (multilinear hashing; Lemire and Kaser, "Strongly universal string hashing is fast", 2014). It
does not depend on the tensor that a fibre lies in, and columns are summed up block by block.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import chain, groupby, pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.questions.compare.selection import parse_selection
from ingest.questions.compare.sources import StepTensors, open_source
from ingest.reader.text import Plain
from workers.arrays.dtypes import from_name
from workers.arrays.sharded.assembly import Elements
from workers.errors import UsageError
from workers.store.roles import Hint, hint_of
from workers.tasks.operands import Operand, elements_of

Array: TypeAlias = npt.NDArray[Any]
Numbers: TypeAlias = npt.NDArray[np.uint64]

ROWS, COLUMNS = 0, 1
#: Elements of a vector that make a fibre: fused biases are cut at multiples of it.
_OF_VECTOR = 8
#: Shorter fibres do not tell tensors apart.
SHORTEST = 4
#: Elements that are read at once.
_BLOCK = 1 << 20
#: Elements whose numbers are formed at once, in the caches of a processor.
_CACHED = 1 << 15
#: A tensor with fewer different values among its first ones does not tell how it was rounded.
_VARIED, _FIRST = 32, 4096
_NARROW = ("bfloat16", "float16")


def as_blocks(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return how a tensor is looked at: matrices, rows of each, and columns."""
    match shape:
        case (int(length),):
            return (1, length // _OF_VECTOR, _OF_VECTOR) if length % _OF_VECTOR == 0 else (1, 1, length)
        case (blocks, rows, columns):
            return blocks, rows, columns
        case _:
            return 1, shape[0] if shape else 1, math.prod(shape[1:])


def fibres_of(values: Array, axis: int) -> Array:
    """Return the fibres of a tensor along an axis, (fibre, element)."""
    blocks, rows, columns = as_blocks(values.shape)
    cut = values.reshape(blocks, rows, columns)
    return cut.reshape(-1, columns) if axis == ROWS else cut.swapaxes(1, 2).reshape(-1, rows)


def fibre_length(shape: tuple[int, ...], axis: int) -> int:
    """Return how many elements a fibre has."""
    _, rows, columns = as_blocks(shape)
    return columns if axis == ROWS else rows


def fibre_count(shape: tuple[int, ...], axis: int) -> int:
    """Return how many fibres a tensor has."""
    return math.prod(shape) // max(fibre_length(shape, axis), 1)


@lru_cache(maxsize=1)
def _coefficients(count: int) -> Numbers:
    return np.random.default_rng(43).integers(0, 2**64, count, np.uint64) | np.uint64(1)


def _coefficient(count: int) -> Numbers:
    return _coefficients(1 << max(count.bit_length(), 16))[:count]


def zero_number(length: int) -> int:
    """Return the number of a fibre of zeros."""
    return (length * 0x9E3779B97F4A7C15) % 2**64


def rounded(values: Array, dtype: str) -> Array:
    """Return values rounded to a type: to nearest, ties to even."""
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(from_name(dtype).values.newbyteorder("="), copy=False)


@dataclass(frozen=True, slots=True, eq=False)
class Fibres:
    """The numbers of the fibres of one tensor, rounded to one type."""

    dtype: str
    rows: Numbers
    columns: Numbers
    """Of a vector: none."""
    exact: bool

    def along(self, axis: int) -> Numbers:
        """Return the numbers of rows or of columns."""
        return self.rows if axis == ROWS else self.columns


def held_types(elements: Elements, dtype: str, size: int) -> tuple[str, bool]:
    """Return the narrowest type that holds all elements of a float32 tensor; and whether they tell that."""
    if dtype != "float32":
        return dtype, True
    first = elements.read(0, min(size, _FIRST))
    varied = len(np.unique(first)) > _VARIED
    for narrow in _NARROW:
        every = (elements.read(*ends) for ends in pairwise([*range(0, size, _BLOCK), size]))
        if all(_is_kept(rounded(values, narrow), values) for values in chain([first], every)):
            return narrow, varied
    return dtype, varied


def numbers_of(elements: Elements, shape: tuple[int, ...], dtypes: set[str]) -> dict[str, Fibres]:
    """Return the fibres of a tensor rounded to each of some types. Reads every element once, in order."""
    blocks, rows, columns = as_blocks(shape)
    of_rows = {dtype: np.zeros((blocks, rows), np.uint64) for dtype in dtypes}
    of_columns = {dtype: np.zeros((blocks, columns), np.uint64) for dtype in dtypes}
    exact = dict.fromkeys(dtypes, True)
    at_once = max(_CACHED // max(columns, 1), 1)
    along, across = _coefficient(columns), _coefficient(rows)
    for block in range(blocks):
        for begin in range(0, rows, at_once):
            end = min(begin + at_once, rows)
            values = elements.read((block * rows + begin) * columns, (block * rows + end) * columns)
            for dtype in dtypes:
                cast = rounded(values, dtype)
                exact[dtype] &= _is_kept(cast, values)
                bits = cast.view(f"u{cast.dtype.itemsize}").astype(np.uint64).reshape(end - begin, columns)
                # Products of whole numbers are sums that numpy forms one by one; this takes a fifth.
                of_rows[dtype][block, begin:end] = np.einsum("ij,j->i", bits, along)
                of_columns[dtype][block] += np.einsum("ij,i->j", bits, across[begin:end])
    for dtype in dtypes:
        of_rows[dtype] += np.uint64(zero_number(columns))
        of_columns[dtype] += np.uint64(zero_number(rows))
    has_columns = len(shape) > 1 and rows >= SHORTEST
    return {
        dtype: Fibres(
            dtype,
            of_rows[dtype].reshape(-1),
            of_columns[dtype].reshape(-1) if has_columns else np.zeros(0, np.uint64),
            exact[dtype],
        )
        for dtype in dtypes
    }


def _is_kept(cast: Array, values: Array) -> bool:
    return cast.dtype == values.dtype or bool((cast.astype(values.dtype) == values).all())


class FibreIndex:
    """Finds fibres by their numbers among those of many tensors, rounded to one type."""

    def __init__(self, tensors: list[Fibres]) -> None:
        """Sort the numbers of all rows and columns."""
        sets = [
            (place, axis, each.along(axis)) for place, each in enumerate(tensors) for axis in (ROWS, COLUMNS)
        ]
        numbers = np.concatenate([np.zeros(0, np.uint64), *(of_axis for _, _, of_axis in sets)])
        order = np.argsort(numbers, kind="stable")
        self._numbers = numbers[order]
        self.tensor, self.axis, self.fibre = (
            np.concatenate([np.zeros(0, np.int64), *parts])[order]
            for parts in (
                [np.full(len(of_axis), place) for place, _, of_axis in sets],
                [np.full(len(of_axis), axis) for _, axis, of_axis in sets],
                [np.arange(len(of_axis)) for _, _, of_axis in sets],
            )
        )

    def places(self, numbers: Numbers) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Return for each number where its entries begin and end."""
        return np.searchsorted(self._numbers, numbers), np.searchsorted(self._numbers, numbers, "right")


STALE, DIFFERENT, MISPLACED, OPEN, EQUAL = "stale", "different", "misplaced", "open", "equal"
PADDING = "padding"
#: The worst first: the verdict of a tensor is the worst of its stretches.
VERDICTS = (MISPLACED, DIFFERENT, STALE, OPEN, EQUAL, PADDING)
#: Stretches that a text names one by one.
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class FibreStretch(Plain):
    """Fibres of a tensor next to one another: rows (axis 0) or columns (axis 1) of its matrices."""

    axis: int
    begin: int
    end: int
    """Behind the last one. Rows of a vector are 8 elements."""
    verdict: str
    of: str = ""
    """The trainer's parameter; "" if none is alike."""
    of_rank: int = 0
    of_axis: int = 0
    first: int = 0
    of_length: int = 0
    of_number: int = 0
    """Sorts in the order in which the trainer has its parameters."""
    step: int | None = None
    is_certain: bool = True
    """False if other parts of the trainer hold the same values."""
    unequal: int = 0
    """Elements that differ; 0 if not measured."""
    relative: float = 0.0
    """The norm of the difference by that of the trainer's."""
    largest: float = 0.0
    how: str = ""
    """What kind of difference it is, in words; or why it is misplaced."""
    plus: tuple[str, ...] = ()
    """The two matrices of the trainer, such as those of an adapter, whose product is added."""

    @property
    def length(self) -> int:
        """How many rows or columns it has."""
        return self.end - self.begin

    @property
    def source(self) -> str:
        """What of the trainer it is, such as `q_proj.weight[32:64]`."""
        if not self.of:
            return "zeros" if self.verdict == PADDING else "?"
        if (self.first, self.length) == (0, self.of_length):
            return self.of
        return f"{self.of}[{':, ' * self.of_axis}{self.first}:{self.first + self.length}]"

    @property
    def is_bad(self) -> bool:
        """Whether it is not known to be right."""
        return self.verdict in (OPEN, DIFFERENT, MISPLACED)

    @property
    def difference(self) -> str:
        """What is not right about it, in words."""
        if self.verdict != DIFFERENT or not self.of:
            return self.how or "nothing alike"
        numbers = f"{self.unequal} elements differ, relative {self.relative:.3g}, at most {self.largest:.3g}"
        return f"{numbers}: {self.how}" if self.how else numbers

    def within(self, begin: int, end: int) -> FibreStretch:
        """Return the part of it that lies between these."""
        start = max(begin, self.begin)
        return replace(self, begin=start, end=min(end, self.end), first=self.first + start - self.begin)


@dataclass(frozen=True, slots=True)
class Arrived(Plain):
    """A parameter of the rollout, and where it comes from."""

    also = ("verdict", "text")

    rank: int
    name: str
    dtype: str
    shape: tuple[int, ...]
    cast: str
    """The type to which the trainer's values are rounded; "" if they are not."""
    stretches: tuple[FibreStretch, ...]
    """In order, along one axis."""
    note: str = ""
    """What values do not tell about its order."""

    @property
    def verdict(self) -> str:
        """The worst of its stretches; `open` if values do not tell whether its order is right."""
        worst = min((each.verdict for each in self.stretches), key=VERDICTS.index, default=OPEN)
        return OPEN if self.note and worst in (EQUAL, PADDING) else EQUAL if worst == PADDING else worst

    def of_verdict(self, verdict: str) -> list[FibreStretch]:
        """Return the stretches with a verdict."""
        return [each for each in self.stretches if each.verdict == verdict]

    @property
    def is_transposed(self) -> bool:
        """Whether any rows became columns."""
        return len(self.shape) > 1 and any(each.of and each.axis != each.of_axis for each in self.stretches)

    @property
    def text(self) -> str:
        """What it consists of, and what is not right, in words."""
        of_stale = sorted({each.step for each in self.of_verdict(STALE) if each.step is not None})
        steps = f"step {', '.join(map(str, of_stale))} of " if of_stale else ""
        parts = sources_text(self.stretches)
        how = "transposed" * self.is_transposed, f"rounded to {self.cast}" if self.cast else ""
        told = ", ".join(filter(None, (steps + parts, *how))) if parts else ""
        return "; ".join(filter(None, (told, *self._problems(), self.note)))

    def _problems(self) -> list[str]:
        alike = groupby(self.stretches, lambda each: (each.is_bad, each.difference))
        bad = [(text, [*parts]) for (is_bad, text), parts in alike if is_bad]
        told = [
            f"{'columns' if parts[0].axis else 'rows'} {parts[0].begin}:{parts[-1].end}: {text}"
            for text, parts in bad
        ]
        same = [each.how for each in self.stretches if each.verdict == EQUAL and each.how]
        more = [f"and {len(told) - _SHOWN} more"] if len(told) > _SHOWN else []
        return [*dict.fromkeys(same), *told[:_SHOWN], *more]


def sources_text(stretches: Sequence[FibreStretch]) -> str:
    """Return what stretches come from, in a few words."""
    known = [each for each in stretches if each.of]
    if len(known) <= _SHOWN:
        return " + ".join(each.source for each in known)
    named = dict.fromkeys(each.of for each in known)
    some = named if len(named) <= _SHOWN else [*[*named][: _SHOWN - 1], "...", [*named][-1]]
    names = " + ".join(some)
    return f"{names}, in {len(known)} stretches"


@dataclass(frozen=True, slots=True)
class HeldParameter:
    """A parameter, or the piece of it that a rank holds."""

    rank: int
    name: str
    dtype: str
    shape: tuple[int, ...]
    operand: Operand

    def read(self) -> Array:
        """Return its elements in its shape.

        Raises:
            DamagedStore: they are damaged.
        """
        return self.elements().read(0, self.operand.size).reshape(self.shape)

    def elements(self) -> Elements:
        """Return its elements by range."""
        return elements_of([self.operand], in_order=True)[0]

    def fibres(self, dtypes: set[str]) -> dict[str, Fibres]:
        """Return the numbers of its fibres, rounded to each of these types."""
        return numbers_of(self.elements(), self.shape, dtypes)


class Program:
    """One side: its steps, each loaded once and held, because several parts of an answer ask for it."""

    def __init__(self, name: str) -> None:
        """Open the store or dump that a selection names.

        Raises:
            UsageError: it has no complete step.
        """
        self.source = open_source(parse_selection(name))
        self.steps = sorted({key.step for key in self.source.keys if key.step is not None})
        self.load = cache(self.source.load)
        self.parameters = cache(self._parameters)
        if not self.steps:
            raise UsageError(f"{self.label}: no complete step", hint="`dump-ingest ls` lists the steps.")

    @property
    def label(self) -> str:
        """How it was named."""
        return self.source.label

    def _parameters(self, step: int) -> list[HeldParameter]:
        """Return the parameters of a step of all ranks, each once, in order of execution.

        Of a dump in which nothing is called a parameter, those are all tensors of floating-point numbers.

        Raises:
            UsageError: it has none with elements.
            DamagedStore: an index is damaged.
        """
        keys = [key for key in self.source.keys if key.step == step]
        return _held_by(map(self.load, keys), f"{self.label}: step {step}")


def _held_by(steps: Iterable[StepTensors], where: str) -> list[HeldParameter]:
    known: dict[tuple[int, str], HeldParameter] = {}
    others: dict[tuple[int, str], HeldParameter] = {}
    for tensors in steps:
        rank = tensors.key.rank
        held = {*np.flatnonzero(tensors.dumped).tolist()} - tensors.removed
        for number in sorted(held):
            if not _is_float(tensors.dtypes[number]):
                continue
            each = tensors.keys[number]
            hint = hint_of(each.op_type, each.op_name, each.io, each.slot)
            chosen = known if hint is Hint.WEIGHT else others
            name = each.op_name if each.op_type == "Parameter" else each._replace(occurrence=0, copy=0).name
            chosen[rank, name] = HeldParameter(
                rank, name, tensors.dtypes[number], tensors.shapes[number], tensors.operand(number)
            )
    found = [each for each in (known or others).values() if each.operand.size]
    if not found:
        raise UsageError(
            f"{where} has no parameters with elements",
            hint='Record them with what="tensors" and of=("parameters",), or name a checkpoint.',
        )
    return found


@cache
def _is_float(dtype: str) -> bool:
    try:
        element = from_name(dtype)
    except ValueError:
        return False
    is_number = element.values.kind in "fV" and not element.is_packed and not element.is_opaque
    return is_number and not element.values.names and np.dtype(element.values).itemsize <= 8


def wire_fibres(parameters: Iterable[HeldParameter]) -> list[Fibres]:
    """Return the fibres of parameters, rounded to the type that their elements had on their way.

    What is kept in float32 may have been sent in a narrower type. Tensors with few different values, such as
    the weight of a norm that is 1 everywhere, went as most of the others did.
    """
    votes = Counter[str]()
    found: list[tuple[HeldParameter, Fibres, bool]] = []
    for each in parameters:
        elements = each.elements()
        dtype, varied = held_types(elements, each.dtype, each.operand.size)
        found.append((each, numbers_of(elements, each.shape, {dtype})[dtype], varied))
        if varied and each.dtype == "float32":
            votes[dtype] += each.operand.size
    usual = max(votes, key=votes.__getitem__, default="float32")
    return [
        fibres if varied or fibres.dtype in (each.dtype, usual) else each.fibres({usual})[usual]
        for each, fibres, varied in found
    ]
