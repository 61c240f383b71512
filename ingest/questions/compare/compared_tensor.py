"""What a comparison says of one pair of tensors."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from ingest.questions.compare.rounding import RoundingBound
from ingest.reader.plain import Plain
from workers.arrays.comparison import METRICS, Metrics
from workers.model import StepKey
from workers.store.strict_json import finite_or_none


@dataclass(frozen=True, slots=True)
class HeldBy(Plain):
    """How the ranks of both sides hold a tensor that was put together from their pieces."""

    ranks_a: tuple[int, ...]
    ranks_b: tuple[int, ...]
    placement: str
    """`replicated`, `shard 0`, `partial sum`, ...; with that of B behind ` | ` if B has several pieces."""
    certainty: str
    """`certain`, `by marginals`, `agreed`, `told`, `mapped`, `by shape`, `likely` or `open`; see
    `ingest.questions.placement.decide.Certainty`."""
    explanation: str
    """What shows that."""


class Verdict(StrEnum):
    """The verdict on one tensor."""

    EQUAL = "equal"
    """Type, shape and every bit are equal."""
    CLOSE = "close"
    """Within the limits."""
    NOISE = "noise"
    """Exact arithmetic leaves it open: rounding of what is zero, or what an optimizer made of that."""
    NOT_READ = "not read"
    """Nothing was computed from it as it was dumped: it was caught in flight."""
    DIFFERENT = "different"
    SHAPE = "shape differs"
    UNKNOWN = "not compared"
    """Elements or statistics are missing, damaged, or in a layout that cannot be read."""
    ONLY_A = "only in A"
    ONLY_B = "only in B"
    IGNORED = "ignored"
    """A rule of the thresholds says so, or its call holds other samples on both sides."""


#: Verdicts that do not count as a difference.
GOOD = frozenset({Verdict.EQUAL, Verdict.CLOSE, Verdict.NOISE, Verdict.NOT_READ, Verdict.IGNORED})
UNMATCHED = frozenset({Verdict.ONLY_A, Verdict.ONLY_B})
#: In order, the worst first.
_SEVERITY = (
    Verdict.SHAPE,
    Verdict.DIFFERENT,
    Verdict.UNKNOWN,
    Verdict.ONLY_A,
    Verdict.ONLY_B,
    Verdict.NOT_READ,
    Verdict.NOISE,
    Verdict.CLOSE,
    Verdict.IGNORED,
    Verdict.EQUAL,
)


@dataclass(frozen=True, slots=True)
class ComparedTensor:
    """One tensor of A and the one of B that it was matched with.

    If only one side has the tensor, the name and the type of the other are "", and its shape is None.
    """

    key_a: StepKey
    key_b: StepKey
    number: int
    """Place in the order of execution of its step in A; in B if only B has it."""
    name_a: str
    name_b: str
    graph: str
    op_type: str
    io: str
    dtype_a: str
    dtype_b: str
    shape_a: tuple[int, ...] | None
    shape_b: tuple[int, ...] | None
    verdict: Verdict
    reason: str = ""
    """The limit that is exceeded, or why nothing could be compared."""
    matched: str = ""
    """`exact`, `mapping`, `name`, `reference`, or how it was guessed: `order`, `spelling`, `scope`,
    `content`, `producers`, `sequence`; "" if it is not matched."""
    guessed: bool = False
    """Whether neither names nor a mapping file say that the two are the same tensor."""
    ambiguous: bool = False
    """Whether it might as well have been matched with another tensor."""
    form: str = ""
    """How the tensor of B was taken: `transposed`, `reshaped`; "" as it is."""
    basis: str = ""
    """What was compared: `digest`, `elements`, `device layout`, `statistics` or `marginals`."""
    metrics: Metrics | None = None
    damaged: bool = False
    level: str = ""
    """What a difference rests on that nothing before explains: `shown`: what its operator read is known and
    does not explain it; `likely`: what was executed before does not."""
    held: HeldBy | None = None
    """Set if layouts were compared: the tensor was put together from the pieces of several ranks."""
    bound: RoundingBound | None = None
    """What rounding explains, if ranks of the same program were compared; `held` has it for whole tensors."""

    @property
    def name(self) -> str:
        """The name in A, or in B if only B has the tensor."""
        return self.name_a or self.name_b

    @property
    def badness(self) -> tuple[int, float, int]:
        """A key that sorts the worst first: by verdict, NaN and Inf, relative Euclidean distance."""
        metrics = self.metrics
        if metrics is None:
            return _SEVERITY.index(self.verdict), 0.0, self.number
        distance = metrics.relative_euclidean
        odd = metrics.nan_mismatch + metrics.inf_mismatch
        return (
            _SEVERITY.index(self.verdict),
            -math.inf if odd or math.isnan(distance) else -distance,
            self.number,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a flat row of plain values; metrics are None if they are not known."""
        metrics = asdict(self.metrics) if self.metrics else dict.fromkeys(METRICS)
        return {
            "rank_a": self.key_a.rank,
            "step_a": self.key_a.step,
            "rank_b": self.key_b.rank,
            "step_b": self.key_b.step,
            "number": self.number,
            "name_a": self.name_a,
            "name_b": self.name_b,
            "graph": self.graph,
            "op_type": self.op_type,
            "io": self.io,
            "dtype_a": self.dtype_a,
            "dtype_b": self.dtype_b,
            "shape_a": None if self.shape_a is None else list(self.shape_a),
            "shape_b": None if self.shape_b is None else list(self.shape_b),
            "verdict": self.verdict.value,
            "reason": self.reason,
            "level": self.level,
            "matched": self.matched,
            "guessed": self.guessed,
            "ambiguous": self.ambiguous,
            "form": self.form,
            "basis": self.basis,
            **finite_or_none(metrics),
            **(self.bound.to_dict() if self.bound else {}),
            **(self.held.to_dict() if self.held else {}),
        }
