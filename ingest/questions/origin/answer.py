"""What `origin` answers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from ingest.reader.context import SourceLine
from ingest.reader.snapshot import LeftOut
from workers.arrays.statistics import COUNT_FIELDS, FIELDS, Statistics


@dataclass(frozen=True, slots=True)
class OriginTensor:
    """An input or output of the first operator."""

    name: str
    """As `Tensor.name`."""
    io: str
    slot: int
    dtype: str
    shape: tuple[int, ...]
    statistics: Statistics
    is_bad: bool
    """Whether it is what was looked for."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; statistics that are not known are None."""
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
    """An operator that it came to, or another one where it may have begun."""

    rank: int
    step: int
    graph: str
    op_type: str
    op_name: str
    occurrence: int
    reason: str = ""
    """Why it is named."""
    is_assumed: bool = False
    """Whether only the order of execution speaks for it."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class OriginCollective:
    """A collective through which it went to other ranks."""

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
    """A later step that has it, too."""

    step: int
    ranks: tuple[int, ...]
    through: tuple[str, ...] = ()
    """Parameters and other bad tensors of the step before that it came with; not all of many.

    Those of other beginnings in that step are among them.
    """
    born_again: tuple[str, ...] = ()
    """Operators that gave it anew, from clean inputs."""

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
    """How it went on."""

    next: tuple[OriginOperator, ...] = ()
    """The operators that it came to in the same step, on the same rank, nearest first; not all of many."""
    operators: int = 0
    """How many operators it came to in the same step, on all ranks, the first one not counted."""
    collectives: tuple[OriginCollective, ...] = ()
    """Through which collectives it went to which ranks, in the same step; not all of many."""
    ranks: tuple[int, ...] = ()
    """The ranks that it came to in the same step, its own among them."""
    ends: tuple[str, ...] = ()
    """Outputs and parameters that hold it at the end, as `rank R NAME`; not all of many."""
    steps: tuple[OriginLater, ...] = ()
    """Later steps that have it."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "next": [one.to_dict() for one in self.next],
            "operators": self.operators,
            "collectives": [one.to_dict() for one in self.collectives],
            "ranks": list(self.ranks),
            "ends": list(self.ends),
            "steps": [one.to_dict() for one in self.steps],
        }


@dataclass(frozen=True, slots=True)
class OriginAnswer:
    """The first operator that gave what was looked for, and how it spread; None where nothing is wrong."""

    cause: str | None
    """`nan`, `inf`, `overflow`, `where`; or None."""
    how: str | None = None
    """`born`, `came in`, `came through a collective`, or `recorded` by the hardware; None for nothing."""
    what: str | None = None
    """`NaN`, `+Inf`, `-Inf`, `Inf`, `overflow`, or the condition."""
    rank: int | None = None
    step: int | None = None
    graph: str | None = None
    op_type: str | None = None
    op_name: str | None = None
    occurrence: int | None = None
    came_in: str | None = None
    """The input that was bad already, by name, where it came in; with the parameter that it is, if known."""
    source: SourceLine | None = None
    """The line of the program that made the operator."""
    inputs: tuple[OriginTensor, ...] = ()
    outputs: tuple[OriginTensor, ...] = ()
    spread: OriginSpread = field(default_factory=OriginSpread)
    alternatives: tuple[OriginOperator, ...] = ()
    """Other operators where it may have begun, with the reason."""
    notes: tuple[str, ...] = ()
    """What is not certain, and what was found harmless."""
    left_out: tuple[LeftOut, ...] = ()
    """Steps that the answer is not about."""

    @property
    def found(self) -> bool:
        """Whether there is an operator to name."""
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
            "inputs": [one.to_dict() for one in self.inputs],
            "outputs": [one.to_dict() for one in self.outputs],
            "spread": self.spread.to_dict() if self.found else None,
            "alternatives": [one.to_dict() for one in self.alternatives],
            "notes": list(self.notes),
            "left_out": [
                {"rank": one.key.rank, "step": one.key.step, "reason": one.reason} for one in self.left_out
            ],
        }


def _plain(name: str, value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    return int(value) if name in COUNT_FIELDS else value
