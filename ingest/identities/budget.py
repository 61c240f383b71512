"""How much error each operator of a step adds, and how much it passes on: in float64, from what is stored.

What an operator makes in float64 of what it read tells the error that was born in it. What it makes of what
its inputs would be, had all operators before it been exact, tells the error that it inherited: as far back as
the store tells from what its inputs were computed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import numpy as np

from ingest.identities.audit import StepAudit
from ingest.identities.definition import Array, CallOperands, wide
from ingest.identities.limits import unit_roundoff
from ingest.identities.operators import DEFINITIONS
from ingest.reader.operator_kinds import is_parameter
from ingest.reader.step_flow import FlowCall, FlowOperand

#: Unit roundoff of the arithmetic that is taken for exact.
_EXACT = 2.0**-53


class BornError(NamedTuple):
    """The error of one output, in the root mean square, as shares of that of the output."""

    row: int
    born: float
    units: float
    """`born` in units of roundoff of the type: a result that is only rounded has up to 0.58."""
    inherited: float
    total: float
    """How far the output is from that of a program that is exact up to here."""
    depth: int
    """How many operators before it, one after another, `inherited` takes into account."""


_Ideal: TypeAlias = tuple[Array, int]
"""What a tensor would be if all before it were exact, and how many operators that takes into account."""


class StepBudget(StepAudit):
    """One step of one rank, whose operators are computed twice in float64."""

    def errors(self) -> Iterator[BornError]:
        """Yield the error of each output that has a definition, in order of execution.

        Memory: what is still to be read of what outputs would be, in float64.
        """
        self._ideals: dict[int, _Ideal] = {}
        self._unread = Counter(passing.source for passing in self._flow.passings())
        calls = [
            call for call in self._flow.calls.values() if call.outputs and not is_parameter(call.op_type)
        ]
        for call in sorted(calls, key=lambda call: max(output.row for output in call.outputs)):
            for slot, output in enumerate(call.outputs):
                copied = self._ideal(output)
                if copied is not None:
                    self._ideals[output.row] = copied
                elif not self._reason(call, output):
                    yield from self._error(call, slot)
            self._forget(call)

    def _error(self, call: FlowCall, slot: int) -> Iterator[BornError]:
        output = call.outputs[slot]
        known = [each for each in map(self._ideal, call.inputs) if each is not None]
        depth = max((before for _, before in known), default=0)
        kind = self._kind(call)
        stored = _nearest(kind, slot, self._operands_by(call, lambda _: None))
        ideal = stored if not depth else _nearest(kind, slot, self._operands_by(call, self._ideal))
        if stored is None or ideal is None:
            return
        self._ideals[output.row] = ideal, depth + 1
        unit, actual = unit_roundoff(self._read(output).dtype), wide(self._read(output))
        size = _size(stored)
        if unit and size:
            born, inherited, total = (
                _size(one - other) / size
                for one, other in ((actual, stored), (stored, ideal), (actual, ideal))
            )
            yield BornError(output.row, born, born / unit, inherited, total, depth)

    def _operands_by(self, call: FlowCall, ideal: Callable[[FlowOperand], _Ideal | None]) -> CallOperands:
        """Return what a call read and wrote in float64, with what is ideal of its inputs."""

        def read(operand: FlowOperand) -> Array:
            known = ideal(operand) if operand in call.inputs else None
            return _widened(self._read(operand)) if known is None else known[0].reshape(operand.shape)

        return self._operands(call, read)

    def _ideal(self, operand: FlowOperand) -> _Ideal | None:
        passing = self._flow.producer(operand.row)
        return None if passing is None else self._ideals.get(passing.source)

    def _forget(self, call: FlowCall) -> None:
        for operand in (*call.inputs, *call.outputs):
            passing = self._flow.producer(operand.row)
            if passing is not None:
                self._unread[passing.source] -= 1
                if not self._unread[passing.source]:
                    self._ideals.pop(passing.source, None)
        for output in call.outputs:
            if not self._unread[output.row]:
                self._ideals.pop(output.row, None)


def _widened(array: Array) -> Array:
    return wide(array) if unit_roundoff(array.dtype) else array


def _nearest(kind: str, slot: int, operands: CallOperands) -> Array | None:
    """Return what the definition allows that is nearest to the output; None if it allows nothing."""
    out = operands.outputs[slot]
    with np.errstate(all="ignore"):
        try:
            allowed = [
                each.value
                for each in DEFINITIONS[kind](operands, slot, _EXACT)
                if each.value.shape == out.shape
            ]
        except (ValueError, IndexError):  # of a shard, or of another operator of the name
            return None
        return min(allowed, key=lambda value: _size(wide(value) - wide(out)), default=None)


def _size(array: Array) -> float:
    """Return the root mean square of what is finite; infinite if nothing is."""
    known = array[np.isfinite(array)]
    return math.sqrt(float(np.mean(known.astype(np.float64) ** 2))) if known.size else math.inf
