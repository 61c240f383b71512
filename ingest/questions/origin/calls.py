"""The calls of one step of one rank that have a bad tensor: one with NaN, Inf, or what is searched for."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.reader.calls import CallKey, Content, content_of, is_in_order, key_of, keys_of, tensor_rows
from ingest.reader.operator_kinds import gives_all_the_same, is_collective, is_input, is_output, is_parameter
from ingest.reader.step import Step
from workers.store.model import RowKind, tensor_name
from workers.store.tables import Tables

#: Which rows of a step are bad, (row,); see `bad_numbers`.
Mask: TypeAlias = npt.NDArray[np.bool_]
IsBad: TypeAlias = Callable[[Step], Mask]
_Rows: TypeAlias = npt.NDArray[np.int64]

_FLOAT = re.compile(r"(?i)float|half|double|complex|bf16|fp\d")


@dataclass(frozen=True, slots=True)
class CallOperand:
    """A bad input or output of a call."""

    row: int
    io: str
    slot: int
    shape: tuple[int, ...]
    content: Content
    holds: str
    """`NaN`, `+Inf`, `-Inf`, `Inf` for both infinities; "" if none of them is known to be in it."""
    is_plain: bool = False
    """Whether all elements are NaN, or the same infinity: unrelated tensors may then have equal content."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call of an operator with at least one bad tensor."""

    rank: int
    step: int
    key: CallKey
    row: int
    """Its place in the order of execution of its rank: the row of its first output."""
    inputs: int
    """The number of its inputs that were dumped."""
    missing_slots: tuple[int, ...]
    """Inputs that the dump does not have although it has later ones."""
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
        return tensor_name(self.op_type, self.op_name, operand.io, operand.slot, self.key.occurrence)


#: The types of rows of what is learned.
_LEARNED: Final = ("Gradient", "Parameter")


class CollectiveCall(NamedTuple):
    """A call of a collective, with or without a bad tensor."""

    row: int
    """The row of its first tensor."""
    outputs: tuple[Content, ...] = ()
    """Its outputs, if they are the same on all ranks of its group; empty if they were not dumped."""


@dataclass(frozen=True, slots=True, eq=False)
class RankTrace:
    """What an answer needs of one step of one rank: the calls with bad tensors, and the collectives."""

    rank: int
    step: int
    calls: tuple[Call, ...]
    """In order of execution."""
    collectives: dict[CallKey, CollectiveCall] = field(repr=False, default_factory=dict)
    """All calls of collectives, in order of execution."""
    is_ordered: bool = True
    """Whether the dump has the order in which its operators ran."""
    has_inputs: bool = True
    """Whether any input was dumped."""
    has_outputs: bool = True
    """Whether any output was dumped, parameters aside."""
    unknown: int = 0
    """The number of floating-point tensors that may or may not hold NaN or Inf."""
    ends_clean: bool = False
    """Whether what was computed last is clean: the last output, parameters, and their gradients, which were
    dumped. What is bad before is memory that nothing read, or not yet."""


def bad_numbers(step: Step, *, nan: bool = True, inf: bool = True) -> Mask:
    """Return a mask of the rows that hold NaN or Inf, or both.

    Some statistics become NaN if any element is, and do not count such elements (msProbe). If a tensor has no
    statistics, and the same table has those of other tensors, the tensor counts as one with NaN or Inf.
    """
    tables = step.tables
    bad = np.zeros(len(tables.labels), bool)
    if nan:
        bad |= tables.statistic("nan_count") > 0
    if inf:
        bad |= (tables.statistic("pos_inf_count") > 0) | (tables.statistic("neg_inf_count") > 0)
    return bad | _lost_statistics(tables)


def _lost_statistics(tables: Tables) -> Mask:
    """Return a mask of the rows whose statistics were lost to a NaN or Inf."""
    lost = np.asarray(tables.label("kind") == RowKind.STATISTICS.value)
    if not lost.any():
        return lost
    is_known = ~np.isnan([tables.statistic(name) for name in ("min", "max", "mean")]).all(axis=0)
    sources = tables.label("statistics_from")
    lost &= ~is_known & np.isnan(tables.statistic("nan_count")) & (tables.statistic("count") > 0)
    sources_with_statistics = set(sources[is_known])
    for row in np.flatnonzero(lost):
        dtype = str(tables.label("dtype")[row] or tables.label("declared_dtype")[row])
        lost[row] = sources[row] in sources_with_statistics and _FLOAT.search(dtype) is not None
    return lost


def trace_rank(step: Step, is_bad: IsBad) -> RankTrace:
    """Return the calls with bad tensors of one step of one rank, and drop its index.

    Memory: the index while it is read; then only the calls with bad tensors, and the collectives.

    Raises:
        DamagedStore: the index is missing or damaged.
    """
    tables, bad = step.tables, is_bad(step)
    rows = tensor_rows(tables)
    op_types = tables.label("op_type")[rows].tolist()
    io = tables.label("io")[rows].tolist()
    unknown = rows[np.isnan(tables.statistic("nan_count")[rows]) & ~bad[rows]]
    trace = RankTrace(
        step.key.rank,
        int(step.key.step or 0),
        tuple(sorted(_calls(step, rows, bad), key=lambda call: call.row)),
        _collectives(step, rows),
        is_ordered=is_in_order(tables, rows),
        has_inputs=any(map(is_input, set(io))),
        has_outputs=any(
            is_output(label) and not is_parameter(op_type)
            for label, op_type in set(zip(io, op_types, strict=True))
        ),
        unknown=sum(_FLOAT.search(str(dtype)) is not None for dtype in tables.label("dtype")[unknown]),
    )
    names = tables.label("op_name")[rows].tolist()
    kinds = list(zip(op_types, io, names, strict=True))
    learned = [n for n, (kind, _, name) in enumerate(kinds) if kind in _LEARNED and ".output" not in name]
    # The loss may be NaN although gradients are finite: that of a logarithm of a negative number is.
    outputs = [n for n, (kind, label, _) in enumerate(kinds) if is_output(label) and kind not in _LEARNED]
    step.forget_tables()
    is_known = trace.is_ordered and any(op_types[n] == "Gradient" for n in learned)
    return replace(trace, ends_clean=is_known and not bad[rows[learned + outputs[-1:]]].any())


def _collectives(step: Step, rows: _Rows) -> dict[CallKey, CollectiveCall]:
    tables = step.tables
    op_types = tables.label("op_type")[rows].tolist()
    collective_types = set(filter(is_collective, set(op_types)))
    collectives: dict[CallKey, CollectiveCall] = {}
    if not collective_types:
        return collectives
    io = tables.label("io")
    chosen = rows[[op_type in collective_types for op_type in op_types]]
    for row, key in zip(chosen.tolist(), keys_of(tables, chosen), strict=True):
        call = collectives.setdefault(key, CollectiveCall(row))
        if is_output(io[row]) and gives_all_the_same(key.op_type):
            collectives[key] = call._replace(outputs=(*call.outputs, content_of(step, row)))
    return collectives


def _calls(step: Step, rows: _Rows, bad: Mask) -> Iterable[Call]:
    """Return the calls with a bad tensor."""
    tables = step.tables
    members: dict[CallKey, list[int]] = {key: [] for key in keys_of(tables, rows[bad[rows]])}
    names = {key.op_name for key in members}
    alike = rows[[name in names for name in tables.label("op_name")[rows].tolist()]]
    for row, key in zip(alike.tolist(), keys_of(tables, alike), strict=True):
        if key in members:
            members[key].append(row)
    return (_call(step, key, call_rows, bad) for key, call_rows in members.items())


def rows_of(step: Step, key: CallKey) -> list[int]:
    """Return the rows of all tensors of a call, in order."""
    tables = step.tables
    rows = tensor_rows(tables)
    rows = rows[tables.label("op_name")[rows] == key.op_name]
    return [row for row, of_row in zip(rows.tolist(), keys_of(tables, rows), strict=True) if of_row == key]


def operator_before(step: Step, call: Call) -> str | None:
    """Return type and name of the operator whose tensors were dumped before those of a call."""
    tables = step.tables
    own = set(rows_of(step, call.key))
    earlier = [row for row in tensor_rows(tables).tolist() if row < min(own) and row not in own]
    if not earlier:
        return None
    key = key_of(tables, earlier[-1])
    return f"{key.op_type} ({key.op_name})"


def _call(step: Step, key: CallKey, rows: list[int], bad: Mask) -> Call:
    io, slot = step.tables.label("io"), step.tables.number("slot")
    inputs = [row for row in rows if is_input(io[row])]
    outputs = [row for row in rows if is_output(io[row])]
    return Call(
        rank=step.key.rank,
        step=int(step.key.step or 0),
        key=key,
        row=min(outputs or rows),
        inputs=len(inputs),
        missing_slots=_missing({int(slot[row]) for row in inputs if io[row] == "input"}),
        bad_inputs=_operands(step, inputs, bad),
        bad_outputs=_operands(step, outputs, bad),
    )


def _missing(slots: set[int]) -> tuple[int, ...]:
    return tuple(number for number in range(max(slots, default=0)) if number not in slots)


def _operands(step: Step, rows: list[int], chosen: Mask) -> tuple[CallOperand, ...]:
    return tuple(_operand(step, row) for row in rows if chosen[row])


def _operand(step: Step, row: int) -> CallOperand:
    tables = step.tables
    counted = ("nan_count", "pos_inf_count", "neg_inf_count", "count")
    nan, positive, negative, count = (tables.statistic(name)[row] for name in counted)
    infinity = "Inf" if positive > 0 and negative > 0 else "+Inf" if positive > 0 else "-Inf"
    return CallOperand(
        row,
        sys.intern(str(tables.label("io")[row])),
        int(tables.number("slot")[row]),
        step.shape(row),
        content_of(step, row),
        "NaN" if nan > 0 else infinity if positive > 0 or negative > 0 else "",
        bool(max(nan, positive, negative) == count),
    )
