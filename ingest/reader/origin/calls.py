"""The calls of operators in one step of one rank that have to do with what went wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.reader.origin.kinds import is_collective, is_input, is_output
from ingest.reader.store import Step
from workers.blocks import TENSOR_KINDS
from workers.model import Kind
from workers.statistics import FIELDS, Statistics
from workers.store.tables import Tables

#: Which rows of a step are bad, (row,): `find_bad` makes one.
Mask: TypeAlias = npt.NDArray[np.bool_]
IsBad: TypeAlias = Callable[[Step], Mask]

_FLOAT = re.compile(r"(?i)float|half|double|complex|bf16|fp\d")


class CallKey(NamedTuple):
    """What makes a call of an operator the same one on another rank, or in another step."""

    net: str
    graph: str
    op_type: str
    op_name: str
    occurrence: int


@dataclass(frozen=True, slots=True)
class Operand:
    """One input or output of a call, as the index has it."""

    row: int
    name: str
    io: str
    slot: int
    dtype: str
    shape: tuple[int, ...]
    statistics: Statistics
    content: tuple[object, ...]
    """Equal for tensors of equal content: of the digest, or of the statistics where there is nothing else."""
    is_bad: bool
    is_dumped: bool

    @property
    def is_output(self) -> bool:
        """Whether the call wrote it."""
        return is_output(self.io)

    @property
    def holds(self) -> str:
        """What is wrong with it in a word: `NaN`, `+Inf`, `-Inf`, `Inf` for both, or "" if not known."""
        s = self.statistics
        if s.nan_count > 0:
            return "NaN"
        if s.pos_inf_count > 0 or s.neg_inf_count > 0:
            both = s.pos_inf_count > 0 and s.neg_inf_count > 0
            return "Inf" if both else "+Inf" if s.pos_inf_count > 0 else "-Inf"
        return ""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call of an operator: all of its tensors that were dumped."""

    rank: int
    step: int
    key: CallKey
    operands: tuple[Operand, ...]

    @property
    def op_type(self) -> str:
        """The type of the operator."""
        return self.key.op_type

    @property
    def op_name(self) -> str:
        """The name of the operator."""
        return self.key.op_name

    @property
    def row(self) -> int:
        """Where it stands in the order of execution of its rank: the row of its first output."""
        outputs = [one.row for one in self.operands if one.is_output]
        return min(outputs or [one.row for one in self.operands])

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """What it read."""
        return tuple(one for one in self.operands if is_input(one.io))

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """What it wrote."""
        return tuple(one for one in self.operands if one.is_output)

    @property
    def bad_inputs(self) -> tuple[Operand, ...]:
        """Inputs with something wrong."""
        return tuple(one for one in self.inputs if one.is_bad)

    @property
    def bad_outputs(self) -> tuple[Operand, ...]:
        """Outputs with something wrong."""
        return tuple(one for one in self.outputs if one.is_bad)

    @property
    def missing_slots(self) -> tuple[int, ...]:
        """Inputs that must have been there, for later ones are, and that the dump has not."""
        slots = {one.slot for one in self.inputs if one.io == "input" and one.slot >= 0}
        return tuple(slot for slot in range(max(slots, default=-1)) if slot not in slots)


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """What one step of one rank shows: no more than the calls with something bad, and the collectives."""

    rank: int
    step: int
    calls: tuple[Call, ...]
    """In order of execution."""
    collectives: dict[CallKey, int] = field(repr=False, default_factory=dict)
    """Every call of a collective, with the row of its first tensor; in order of execution."""
    is_ordered: bool = True
    """Whether the dump tells in which order its operators ran."""
    has_inputs: bool = True
    """Whether any input was dumped."""
    has_outputs: bool = True
    """Whether any output was dumped."""
    unknown: int = 0
    """Tensors of floating point of which it is not known whether they hold NaN or Inf."""
    parameters: frozenset[str] = frozenset()
    """Names of the parameters that were dumped in the step, whole or not."""
    previous: dict[CallKey, str] = field(repr=False, default_factory=dict)
    """For each call: the operator that was dumped before it, by type and name."""


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
    moments = np.stack([tables.statistic(name) for name in ("min", "max", "mean")])
    lost = np.isnan(moments).all(axis=0) & np.isnan(tables.statistic("nan_count"))
    lost &= (tables.label("kind") == Kind.STATISTICS.value) & (tables.statistic("count") > 0)
    if not lost.any():
        return lost
    sources = tables.label("statistics_from")
    telling = set(sources[~np.isnan(moments).all(axis=0)])
    for row in np.flatnonzero(lost):
        dtype = str(tables.label("dtype")[row] or tables.label("declared_dtype")[row])
        lost[row] = sources[row] in telling and _FLOAT.search(dtype) is not None
    return lost


def look(step: Step, is_bad: IsBad) -> Look:
    """Look at one step of one rank, and let go of its index.

    Memory: the index while it is read; then only the calls with something bad, and the collectives.

    Raises:
        DamagedStore: the index is missing or damaged.
    """
    found = _look(step, is_bad(step))
    step.forget_tables()
    return found


def _look(step: Step, bad: Mask) -> Look:
    tables = step.tables
    rows = np.flatnonzero(np.isin(tables.label("kind"), TENSOR_KINDS))
    keys = _keys(tables, rows)
    io = tables.label("io")
    touched = {key for key, row in zip(keys, rows, strict=True) if bad[row]}
    members: dict[CallKey, list[int]] = {}
    collectives: dict[CallKey, int] = {}
    previous: dict[CallKey, str] = {}
    last = ""
    for key, row in zip(keys, rows.tolist(), strict=True):
        if key in touched:
            members.setdefault(key, []).append(row)
            previous.setdefault(key, last)
        if is_collective(key.op_type):
            collectives.setdefault(key, row)
        name = f"{key.op_type}.{key.op_name}"
        # So that a call is not its own predecessor.
        last = name if name != last else last
    calls = [
        Call(step.key.rank, int(step.key.step or 0), key, tuple(_operands(step, of, bad)))
        for key, of in members.items()
    ]
    kinds = {str(one) for one in np.unique(io[rows].astype(str))}
    return Look(
        step.key.rank,
        int(step.key.step or 0),
        tuple(sorted(calls, key=lambda call: call.row)),
        collectives,
        is_ordered=bool(
            (tables.number("timestamp")[rows] >= 0).any() or (tables.number("sequence")[rows] >= 0).any()
        ),
        has_inputs=any(is_input(one) for one in kinds),
        has_outputs=any(
            is_output(one)
            for one in np.unique(io[rows][tables.label("op_type")[rows] != "Parameter"].astype(str))
        ),
        unknown=_unknown(tables, rows, bad),
        parameters=frozenset(
            str(name) for name in tables.label("op_name")[rows][tables.label("op_type")[rows] == "Parameter"]
        ),
        previous=previous,
    )


def _unknown(tables: Tables, rows: npt.NDArray[np.int64], bad: Mask) -> int:
    unknown = np.isnan(tables.statistic("nan_count")[rows]) & ~bad[rows]
    dtypes = tables.label("dtype")[rows][unknown]
    return sum(_FLOAT.search(str(dtype)) is not None for dtype in dtypes)


def call_of(step: Step, key: CallKey, is_bad: IsBad) -> Call | None:
    """Return one call of a step with all of its tensors; None where it has none."""
    tables = step.tables
    rows = np.flatnonzero(np.isin(tables.label("kind"), TENSOR_KINDS))
    members = [int(row) for row, one in zip(rows, _keys(tables, rows), strict=True) if one == key]
    if not members:
        return None
    return Call(step.key.rank, int(step.key.step or 0), key, tuple(_operands(step, members, is_bad(step))))


def _keys(tables: Tables, rows: npt.NDArray[np.int64]) -> list[CallKey]:
    labels = (tables.label(name)[rows] for name in ("net", "graph", "op_type", "op_name"))
    return [
        CallKey(str(net), str(graph), str(op_type), str(op_name), number)
        for net, graph, op_type, op_name, number in zip(
            *labels, tables.number("occurrence")[rows].tolist(), strict=True
        )
    ]


def _operands(step: Step, rows: list[int], bad: Mask) -> Iterator[Operand]:
    from ingest.reader.tensor import Tensor

    tables = step.tables
    for row in rows:
        tensor = Tensor(step, row)
        yield Operand(
            row,
            tensor.name,
            tensor.io,
            tensor.slot,
            tensor.dtype,
            tensor.shape,
            tensor.statistics,
            _content(tables, row, tensor.digest, tensor.dtype),
            bool(bad[row]),
            tensor.is_dumped,
        )


def _content(tables: Tables, row: int, digest: str, dtype: str) -> tuple[object, ...]:
    if digest:
        return dtype, digest
    known = tuple(None if np.isnan(value) else float(value) for value in tables.statistics[row])
    telling = sum(value is not None for value in known[FIELDS.index("nan_count") :])
    # Little that agrees proves nothing: then it is like no other.
    return (dtype.lower(), known) if telling > 1 else (dtype, "row", row)
