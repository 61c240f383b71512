"""The calls of operators in one step of one rank that have to do with what went wrong."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.questions.origin.kinds import gives_alike, is_collective, is_input, is_output, is_parameter
from ingest.reader.step import Step
from workers.arrays.statistics import FIELDS
from workers.store.model import RowKind
from workers.store.tables import Tables

#: Which rows of a step are bad, (row,): `bad_numbers` makes one.
Mask: TypeAlias = npt.NDArray[np.bool_]
IsBad: TypeAlias = Callable[[Step], Mask]
#: Equal for tensors of equal content: of the digest, or of the statistics where there is nothing else.
Content: TypeAlias = tuple[object, ...]

_FLOAT = re.compile(r"(?i)float|half|double|complex|bf16|fp\d")


class CallKey(NamedTuple):
    """What makes a call of an operator the same one on another rank, or in another step."""

    net: str
    graph: str
    op_type: str
    op_name: str
    occurrence: int


@dataclass(frozen=True, slots=True)
class CallOperand:
    """A bad input or output of a call."""

    row: int
    io: str
    slot: int
    shape: tuple[int, ...]
    content: Content
    holds: str
    """`NaN`, `+Inf`, `-Inf`, `Inf` for both infinities; "" where neither is known to be there."""
    is_plain: bool = False
    """Whether it is NaN, or one infinity, all over: tensors that have nothing in common may look so."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call of an operator, of which at least one tensor is bad."""

    rank: int
    step: int
    key: CallKey
    row: int
    """Where it stands in the order of execution of its rank: the row of its first output."""
    inputs: int
    """How many inputs of it were dumped."""
    missing_slots: tuple[int, ...]
    """Inputs that must have been there, for later ones are, and that the dump has not."""
    bad_inputs: tuple[CallOperand, ...]
    bad_outputs: tuple[CallOperand, ...]

    @property
    def op_type(self) -> str:
        """The type of the operator."""
        return self.key.op_type

    @property
    def op_name(self) -> str:
        """The name of the operator."""
        return self.key.op_name

    def name_of(self, operand: CallOperand) -> str:
        """Return the name of one of its tensors, as `Tensor.name`."""
        repeated = f"#{self.key.occurrence}" if self.key.occurrence else ""
        return f"{self.op_type}.{self.op_name}.{operand.io}.{operand.slot}{repeated}"


class Begun(NamedTuple):
    """A call of a collective."""

    row: int
    """Of its first tensor."""
    gave: tuple[Content, ...] = ()
    """Its outputs, where it gives all ranks of its group the same; none where they were not dumped."""


@dataclass(frozen=True, slots=True, eq=False)
class RankTrace:
    """What one step of one rank shows: no more than the calls with something bad, and the collectives."""

    rank: int
    step: int
    calls: tuple[Call, ...]
    """In order of execution."""
    collectives: dict[CallKey, Begun] = field(repr=False, default_factory=dict)
    """Every call of a collective, in order of execution."""
    is_ordered: bool = True
    """Whether the dump tells in which order its operators ran."""
    has_inputs: bool = True
    """Whether any input was dumped."""
    has_outputs: bool = True
    """Whether any output was dumped, parameters aside."""
    unknown: int = 0
    """Tensors of floating point of which it is not known whether they hold NaN or Inf."""


def bad_numbers(step: Step, *, nan: bool = True, inf: bool = True) -> Mask:
    """Return which rows hold NaN or Inf, or both.

    Some statistics become NaN by one such element and do not say how many there are (msProbe). A tensor that
    has none, where the same table knows those of others, is taken for one with NaN or Inf.
    """
    tables = step.tables
    bad = np.zeros(len(tables.labels), bool)
    if nan:
        bad |= tables.statistic("nan_count") > 0
    if inf:
        bad |= (tables.statistic("pos_inf_count") > 0) | (tables.statistic("neg_inf_count") > 0)
    return bad | _suspects(tables)


def _suspects(tables: Tables) -> Mask:
    """Return which rows have lost their statistics to a NaN or Inf."""
    lost = np.asarray(tables.label("kind") == RowKind.STATISTICS.value)
    if not lost.any():
        return lost
    telling = ~np.isnan([tables.statistic(name) for name in ("min", "max", "mean")]).all(axis=0)
    sources = tables.label("statistics_from")
    lost &= ~telling & np.isnan(tables.statistic("nan_count")) & (tables.statistic("count") > 0)
    knowing = set(sources[telling])
    for row in np.flatnonzero(lost):
        dtype = str(tables.label("dtype")[row] or tables.label("declared_dtype")[row])
        lost[row] = sources[row] in knowing and _FLOAT.search(dtype) is not None
    return lost


def trace_rank(step: Step, is_bad: IsBad) -> RankTrace:
    """Look at one step of one rank, and let go of its index.

    Memory: the index while it is read; then only what is bad, and the collectives.

    Raises:
        DamagedStore: the index is missing or damaged.
    """
    tables, bad = step.tables, is_bad(step)
    rows = _tensor_rows(tables)
    op_types = tables.label("op_type")[rows]
    collective = {op_type for op_type in set(op_types.tolist()) if is_collective(op_type)}
    io = tables.label("io")
    collectives: dict[CallKey, Begun] = {}
    if collective:
        for row in rows[[op_type in collective for op_type in op_types]].tolist():
            begun = collectives.setdefault(key := _key(tables, row), Begun(row))
            if is_output(io[row]) and gives_alike(key.op_type):
                collectives[key] = begun._replace(gave=(*begun.gave, _content(step, row)))
    found = RankTrace(
        step.key.rank,
        int(step.key.step or 0),
        tuple(sorted(_calls(step, rows, bad), key=lambda call: call.row)),
        collectives,
        is_ordered=any((tables.number(name)[rows] >= 0).any() for name in ("timestamp", "sequence")),
        has_inputs=any(is_input(one) for one in set(io[rows].tolist())),
        has_outputs=any(
            is_output(one) and not is_parameter(op_type)
            for one, op_type in set(zip(io[rows].tolist(), op_types.tolist(), strict=True))
        ),
        unknown=_unknown(tables, rows, bad),
    )
    step.forget_tables()
    return found


def _tensor_rows(tables: Tables) -> npt.NDArray[np.int64]:
    kinds = tables.label("kind")
    return np.flatnonzero((kinds == RowKind.TENSOR.value) | (kinds == RowKind.STATISTICS.value))


def _calls(step: Step, rows: npt.NDArray[np.int64], bad: Mask) -> Iterable[Call]:
    tables = step.tables
    touched = {_key(tables, row) for row in rows[bad[rows]].tolist()}
    names = {key.op_name for key in touched}
    members: dict[CallKey, list[int]] = {key: [] for key in touched}
    for row, name in zip(rows.tolist(), tables.label("op_name")[rows].tolist(), strict=True):
        if name in names and (key := _key(tables, row)) in touched:
            members[key].append(row)
    return (_call(step, key, of, bad) for key, of in members.items())


def rows_of(step: Step, key: CallKey) -> list[int]:
    """Return the rows of all tensors of a call, in order."""
    tables = step.tables
    rows = _tensor_rows(tables)
    rows = rows[tables.label("op_name")[rows] == key.op_name]
    return [row for row in rows.tolist() if _key(tables, row) == key]


def operator_before(step: Step, call: Call) -> str | None:
    """Return type and name of the operator whose tensors were dumped before those of a call."""
    tables = step.tables
    own = set(rows_of(step, call.key))
    earlier = [row for row in _tensor_rows(tables).tolist() if row < min(own) and row not in own]
    if not earlier:
        return None
    key = _key(tables, earlier[-1])
    return f"{key.op_type} ({key.op_name})"


def _key(tables: Tables, row: int) -> CallKey:
    # Few names come again and again, in every step of every rank.
    net, graph, op_type, op_name = (
        sys.intern(str(tables.label(name)[row])) for name in ("net", "graph", "op_type", "op_name")
    )
    return CallKey(net, graph, op_type, op_name, int(tables.number("occurrence")[row]))


def key_of(step: Step, row: int) -> CallKey:
    """Return the call that a tensor is of."""
    return _key(step.tables, row)


def _call(step: Step, key: CallKey, rows: list[int], bad: Mask) -> Call:
    tables = step.tables
    io, slot = tables.label("io"), tables.number("slot")
    inputs = [row for row in rows if is_input(io[row])]
    outputs = [row for row in rows if is_output(io[row])]
    slots = {int(slot[row]) for row in inputs if io[row] == "input"}
    return Call(
        step.key.rank,
        int(step.key.step or 0),
        key,
        min(outputs or rows),
        len(inputs),
        tuple(number for number in range(max(slots, default=0)) if number not in slots),
        tuple(_operand(step, row) for row in inputs if bad[row]),
        tuple(_operand(step, row) for row in outputs if bad[row]),
    )


def _operand(step: Step, row: int) -> CallOperand:
    tables = step.tables
    io = sys.intern(str(tables.label("io")[row]))
    slot = int(tables.number("slot")[row])
    return CallOperand(
        row, io, slot, step.shape(row), _content(step, row), _holds(tables, row), _is_plain(tables, row)
    )


def _holds(tables: Tables, row: int) -> str:
    if tables.statistic("nan_count")[row] > 0:
        return "NaN"
    positive = tables.statistic("pos_inf_count")[row] > 0
    negative = tables.statistic("neg_inf_count")[row] > 0
    if positive or negative:
        return "Inf" if positive and negative else "+Inf" if positive else "-Inf"
    return ""


def _is_plain(tables: Tables, row: int) -> bool:
    counts = (tables.statistic(name)[row] for name in ("nan_count", "pos_inf_count", "neg_inf_count"))
    return bool(max(counts) == tables.statistic("count")[row])


def _content(step: Step, row: int) -> Content:
    tables = step.tables
    dtype = sys.intern(str(tables.label("dtype")[row]))
    if tables.label("kind")[row] == RowKind.TENSOR.value:
        return dtype, tables.digest[row].tobytes()
    known = tuple(None if np.isnan(value) else float(value) for value in tables.statistics[row])
    telling = sum(value is not None for value in known[FIELDS.index("nan_count") :])
    # Little that agrees proves nothing: then it is like no other.
    return (dtype.lower(), known) if telling > 1 else (dtype, step.key, row)


def _unknown(tables: Tables, rows: npt.NDArray[np.int64], bad: Mask) -> int:
    unknown = np.isnan(tables.statistic("nan_count")[rows]) & ~bad[rows]
    dtypes = tables.label("dtype")[rows][unknown]
    return sum(_FLOAT.search(str(dtype)) is not None for dtype in dtypes)
