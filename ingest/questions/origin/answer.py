"""The answer of `origin`, as values."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from ingest.questions.origin.graph import SpreadGraph
from ingest.reader.context import SourceLine
from ingest.reader.snapshot import LeftOut
from workers.arrays.statistics import COUNT_FIELDS, FIELDS, Statistics


@dataclass(frozen=True, slots=True)
class OriginTensor:
    """An input or output of the first operator."""

    name: str
    """Its `Tensor.name`."""
    io: str
    slot: int
    dtype: str
    shape: tuple[int, ...]
    statistics: Statistics
    is_bad: bool
    """Whether it holds what was searched for."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; unknown statistics are None."""
        numbers = {name: _plain(name, getattr(self.statistics, name)) for name in FIELDS}
        return {
            "name": self.name,
            "io": self.io,
            "slot": self.slot,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "is_bad": self.is_bad,
            **numbers,
        }


@dataclass(frozen=True, slots=True)
class OriginOperator:
    """An operator that it reached, or another one at which it may have begun."""

    rank: int
    step: int
    graph: str
    op_type: str
    op_name: str
    occurrence: int
    reason: str = ""
    """Why the answer names it."""
    is_assumed: bool = False
    """Whether only the order of execution suggests it."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class OriginCollective:
    """A collective through which it reached other ranks."""

    op_type: str
    op_name: str
    from_ranks: tuple[int, ...]
    to_ranks: tuple[int, ...]
    is_assumed: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "op_type": self.op_type,
            "op_name": self.op_name,
            "from_ranks": list(self.from_ranks),
            "to_ranks": list(self.to_ranks),
            "is_assumed": self.is_assumed,
        }


@dataclass(frozen=True, slots=True)
class OriginLater:
    """A later step in which it is present, too."""

    step: int
    ranks: tuple[int, ...]
    through: tuple[str, ...] = ()
    """The first of the parameters and other bad tensors of the step before that carried it over.

    Bad tensors of that step with other origins are included.
    """
    born_again: tuple[str, ...] = ()
    """Operators that produced it again, from clean inputs."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "step": self.step,
            "ranks": list(self.ranks),
            "through": list(self.through),
            "born_again": list(self.born_again),
        }


@dataclass(frozen=True, slots=True)
class OriginSpread:
    """How it spread from the first operator."""

    next: tuple[OriginOperator, ...] = ()
    """The first 20 of the operators that it reached in the same step and on the same rank, nearest first."""
    operators: int = 0
    """The number of operators that it reached in the same step, on all ranks, without the first one."""
    collectives: tuple[OriginCollective, ...] = ()
    """The first 20 of the collectives through which it reached other ranks, in the same step."""
    ranks: tuple[int, ...] = ()
    """The ranks that it reached in the same step, including its own."""
    ends: tuple[str, ...] = ()
    """The first 10 of the outputs and parameters that hold it at the end, as `rank R NAME`."""
    steps: tuple[OriginLater, ...] = ()
    """Later steps in which it is present."""
    graph: SpreadGraph = field(default_factory=SpreadGraph, repr=False)
    """The whole spread within its step. Not part of `to_dict`, because it may be large."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "next": [operator.to_dict() for operator in self.next],
            "operators": self.operators,
            "collectives": [collective.to_dict() for collective in self.collectives],
            "ranks": list(self.ranks),
            "ends": list(self.ends),
            "steps": [later.to_dict() for later in self.steps],
        }


@dataclass(frozen=True, slots=True)
class OriginAnswer:
    """The first operator that produced what was searched for, and how it spread.

    If there is none, all fields about the operator are None.
    """

    cause: str | None
    """`nan`, `inf`, `overflow`, `where`; or None."""
    how: str | None = None
    """`born`, `came in`, `came through a collective`, or `recorded` by the hardware."""
    what: str | None = None
    """`NaN`, `+Inf`, `-Inf`, `Inf`, `overflow`, or the condition."""
    rank: int | None = None
    step: int | None = None
    graph: str | None = None
    op_type: str | None = None
    op_name: str | None = None
    occurrence: int | None = None
    came_in: str | None = None
    """For `came in`: the name of the bad input, with the parameter that it is, if known."""
    source: SourceLine | None = None
    """The line of the program that made the operator; None if it is not known."""
    inputs: tuple[OriginTensor, ...] = ()
    outputs: tuple[OriginTensor, ...] = ()
    spread: OriginSpread = field(default_factory=OriginSpread)
    alternatives: tuple[OriginOperator, ...] = ()
    """Other operators at which it may have begun, with the reason."""
    notes: tuple[str, ...] = ()
    """What is not certain, and what is harmless, in words."""
    left_out: tuple[LeftOut, ...] = ()
    """Steps that the answer is not about, with the reason."""

    @property
    def found(self) -> bool:
        """Whether the answer names an operator."""
        return self.rank is not None

    def to_dict(self) -> dict[str, Any]:
        """Return one object of plain values."""
        line = self.source
        source = None
        if line is not None:
            names = ("file", "line", "code", "of", "matched", "op", "source")
            source = {name: getattr(line, name) for name in names}
        return {
            "rank": self.rank,
            "step": self.step,
            "graph": self.graph,
            "op_type": self.op_type,
            "op_name": self.op_name,
            "occurrence": self.occurrence,
            "cause": self.cause,
            "how": self.how,
            "what": self.what,
            "came_in": self.came_in,
            "source": source,
            "inputs": [tensor.to_dict() for tensor in self.inputs],
            "outputs": [tensor.to_dict() for tensor in self.outputs],
            "spread": self.spread.to_dict() if self.found else None,
            "alternatives": [operator.to_dict() for operator in self.alternatives],
            "notes": list(self.notes),
            "left_out": [
                {"rank": left.key.rank, "step": left.key.step, "reason": left.reason}
                for left in self.left_out
            ],
        }


def _plain(name: str, value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    return int(value) if name in COUNT_FIELDS else value
