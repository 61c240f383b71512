"""Stretches of a parameter of the rollout, and the words for where each comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from ingest.reader.text import Plain

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
    """Its first row or column."""
    of_length: int = 0
    """How many it has."""
    of_number: int = 0
    """Sorts in the order in which the trainer has its parameters."""
    step: int | None = None
    """The trainer's step."""
    is_certain: bool = True
    """False if other parts of the trainer hold the same values."""
    unequal: int = 0
    """Elements that differ; 0 if not measured."""
    relative: float = 0.0
    """The norm of the difference by that of the trainer's."""
    largest: float = 0.0
    """The largest difference."""
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
        how = [
            *(["transposed"] if self.is_transposed else []),
            *([f"rounded to {self.cast}"] if self.cast else []),
        ]
        parts = sources_text(self.stretches)
        told = [", ".join([steps + parts, *how])] if parts else []
        return "; ".join([*told, *self._problems(), *([self.note] if self.note else [])])

    def _problems(self) -> list[str]:
        told = []
        for (is_bad, text), of_text in groupby(self.stretches, lambda each: (each.is_bad, each.difference)):
            if is_bad:
                parts = list(of_text)
                lines = "columns" if parts[0].axis else "rows"
                told.append(f"{lines} {parts[0].begin}:{parts[-1].end}: {text}")
        same = [each.how for each in self.stretches if each.verdict == EQUAL and each.how]
        more = [f"and {len(told) - _SHOWN} more"] if len(told) > _SHOWN else []
        return [*dict.fromkeys(same), *told[:_SHOWN], *more]


def sources_text(stretches: Sequence[FibreStretch]) -> str:
    """Return what stretches come from, in a few words."""
    known = [each for each in stretches if each.of]
    if len(known) <= _SHOWN:
        return " + ".join(each.source for each in known)
    named = dict.fromkeys(each.of for each in known)
    some = [*named][: _SHOWN - 1]
    last = [*named][-1]
    names = " + ".join(named if len(named) <= _SHOWN else [*some, "...", last])
    return f"{names}, in {len(known)} stretches"
