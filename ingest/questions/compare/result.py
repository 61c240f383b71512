"""The answer of a comparison: what differs first, each step, and everything."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ingest.questions.compare.thresholds import RoundingBound
from ingest.reader.snapshot import LeftOut
from ingest.reader.text import MAX_ROWS, Plain, counted, html_table, number_text
from workers.arrays.comparison import METRICS, Metrics
from workers.model import StepKey
from workers.store.strict_json import finite_or_none

if TYPE_CHECKING:
    import pandas as pd


class Why(StrEnum):
    """What became of a call that only one side has."""

    RECOMPUTED = "recomputed"
    """Another call of its side has the same result from the same inputs."""
    FUSED = "fused"
    """The other side does it in another call, or in one before that which is not in the dump."""
    MOVES = "moves"
    """It passes elements on as they are."""
    CONTAINS = "contains"
    """It is a module or cell, and operators in it are compared."""
    UNUSED = "unused"
    """Its side reads nothing of what it writes."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class OperatorGap:
    """An operator that only one side has, and what became of it."""

    side: str
    """`A` or `B`."""
    name: str
    """`type.name`."""
    why: Why
    of: str = ""
    """The operator that it was fused into, on the other side; or of which it has the result, on its own."""

    def __str__(self) -> str:
        """Describe what became of it, as a sentence without its subject."""
        if self.why is Why.FUSED:
            return f"{'B' if self.side == 'A' else 'A'} does it in {self.of}, or right before"
        if self.why is Why.RECOMPUTED:
            return f"computes {self.of} again"
        texts = {
            Why.MOVES: "passes elements on as they are",
            Why.CONTAINS: "a module: what runs in it is compared",
            Why.UNUSED: "nothing reads its output",
        }
        return texts.get(self.why, "")


@dataclass(frozen=True, slots=True)
class Programs:
    """The operators of A and B, in the step in which they have most."""

    operators_a: int
    operators_b: int
    common: int
    """How many of A are the same as one of B."""
    gaps: tuple[OperatorGap, ...] = ()
    """The others, over all steps."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "operators_a": self.operators_a,
            "operators_b": self.operators_b,
            "common": self.common,
            "gaps": [asdict(gap) | {"says": str(gap)} for gap in self.gaps],
        }

    def __str__(self) -> str:
        """Return a sentence, such as `A ran 36 operators, B 16, and 15 are the same; ...`."""
        ran = counted(self.operators_a, "operator")
        texts = [f"A ran {ran}, B {self.operators_b}, and {self.common} are the same"]
        for side in ("A", "B"):
            whys = Counter(gap.why for gap in self.gaps if gap.side == side)
            counts = ", ".join(
                f"{whys[why]} {_WORD.get(why, _WORDS[why]) if whys[why] == 1 else _WORDS[why]}"
                for why in Why
                if whys[why]
            )
            texts += [f"only in {side}: {counts}"] * bool(counts)
        return "; ".join(texts)


_WORDS = {
    Why.FUSED: "fused",
    Why.RECOMPUTED: "that repeat others",
    Why.MOVES: "that only move elements",
    Why.CONTAINS: "modules",
    Why.UNUSED: "that nothing reads",
    Why.UNKNOWN: "others",
}
#: The same of one.
_WORD = {Why.MOVES: "that only moves elements", Why.CONTAINS: "module", Why.UNKNOWN: "other"}


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


class Limits(StrEnum):
    """Which limits decided whether tensors are close."""

    DERIVED = "derived"
    """From types, lengths of sums and what was executed before; see `judge`."""
    FIXED = "fixed"
    """One for each type, because the user wanted that, or nothing could be derived."""
    GIVEN = "given"
    """Those of the user."""


@dataclass(frozen=True, slots=True)
class GuessedName:
    """An operator or tensor of A, and what it was guessed to be in B."""

    name_a: str
    """A name, or a glob for the tensors of an operator."""
    name_b: str
    how: str
    """`spelling`, `scope`, `content` or `sequence`."""


@dataclass(frozen=True, slots=True)
class NameCounts:
    """How many names the two sides have, and how many of these they have in common."""

    a: int = 0
    b: int = 0
    common: int = 0

    @classmethod
    def of(cls, a: AbstractSet[str], b: AbstractSet[str]) -> NameCounts:
        """Count names."""
        return cls(len(a), len(b), len(a & b))

    def __str__(self) -> str:
        """Return a sentence, such as `B knows 4 of 210 names of A, A knows 4 of 140 names of B`."""
        return f"B knows {self.common} of {self.a} names of A, A knows {self.common} of {self.b} names of B"


@dataclass(frozen=True, slots=True)
class ComparedInput(Plain):
    """An input of the operator in which two sides first differ."""

    name: str
    """The name in A."""
    verdict: Verdict
    reason: str = ""
    """The limit that is exceeded."""
    written_in_place: bool = False
    """Whether the operator writes into it: what was dumped may be the result, and not what it read."""
    value_a: str = ""
    """The only element, if there is one and it differs, with all digits of its type; else ""."""
    value_b: str = ""

    @property
    def differs(self) -> bool:
        """Whether it exceeds its limits, or could not be compared."""
        return self.verdict not in GOOD

    @property
    def says(self) -> str:
        """How it differs: `0.055 instead of 0.05`, or the limit that is exceeded, or the verdict."""
        how = (
            f"{self.value_a} instead of {self.value_b}" if self.value_a else self.reason or str(self.verdict)
        )
        return f"{how} (written in place)" if self.written_in_place else how


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first tensor, by step and order of execution, that exceeds its limits.

    If the inputs of an operator differ, it is the first of these that the operator does not write in place.
    """

    tensor: ComparedTensor
    inputs: tuple[ComparedInput, ...]
    """The inputs of its operator: those that differ first, and of these the ones written in place last."""
    ranks: tuple[int, ...] = ()
    """The ranks of A on which it differs: several that were compared each by itself, or some of those that
    hold parts or replicas of it; none if that is the rank of the tensor, or all that hold it."""

    @property
    def reason(self) -> str:
        """How the tensor differs: `0.055 instead of 0.05`, or the limit that is exceeded."""
        return next(
            (known.says for known in self.inputs if known.name == self.tensor.name_a), self.tensor.reason
        )

    @property
    def others(self) -> tuple[ComparedInput, ...]:
        """The other inputs of the operator that differ."""
        return tuple(known for known in self.inputs if known.differs and known.name != self.tensor.name_a)

    @property
    def says(self) -> str:
        """What the inputs of the operator show, as a sentence; "" if the tensor is the only one."""
        rest = [known for known in self.inputs if known.name != self.tensor.name_a]
        if not rest:
            return ""
        its = "its inputs" if len(rest) == len(self.inputs) else "the other inputs of its operator"
        if self.others:
            of_which = "its" if len(rest) == len(self.inputs) else "the other"
            inputs, verb = counted(len(rest), "input"), "differ" + "s" * (len(self.others) == 1)
            return f"{len(self.others)} of {of_which} {inputs} {verb} or could not be compared"
        exact = all(known.verdict == Verdict.EQUAL for known in rest)
        return f"{its} are equal" if exact else f"{its} are within the limits"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        inputs = [known.to_dict() for known in self.inputs]
        return {
            **self.tensor.to_dict(),
            "reason": self.reason,
            "inputs": inputs,
            "says": self.says,
            "ranks": list(self.ranks),
        }


@dataclass(frozen=True, slots=True)
class ComparedStep:
    """The outcome of comparing one step of one rank with one of B."""

    key_a: StepKey
    key_b: StepKey
    counts: Mapping[Verdict, int]

    def to_dict(self) -> dict[str, Any]:
        """Return a flat row of plain values."""
        return {
            "rank_a": self.key_a.rank,
            "step_a": self.key_a.step,
            "rank_b": self.key_b.rank,
            "step_b": self.key_b.step,
            **{_field(verdict): self.counts.get(verdict, 0) for verdict in Verdict},
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcome of comparing A with its reference B."""

    a: str
    b: str
    steps: tuple[ComparedStep, ...]
    tensors: tuple[ComparedTensor, ...] = field(repr=False)
    """In order of step, rank and execution. Equal ones are listed only on request."""
    first: FirstDifference | None
    left_out: tuple[tuple[str, LeftOut], ...] = ()
    """Steps that were not compared because they are not complete: `A` or `B`, and the step."""
    only_a: tuple[StepKey, ...] = ()
    """Steps of A that B does not have."""
    only_b: tuple[StepKey, ...] = ()
    incomplete: int = 0
    """How many steps are complete on one side alone; they are among `left_out`."""
    notes: tuple[str, ...] = ()
    unmatched_matter: bool = True
    """Whether steps and tensors that only one side has count as a difference."""
    damaged: int = 0
    """How many tensors could not be read because a store is damaged."""
    names: NameCounts = NameCounts()
    guessed: Mapping[str, int] = field(default_factory=dict)
    """How many pairs of tensors were guessed, by how; see `ComparedTensor.matched`."""
    guesses: tuple[GuessedName, ...] = field(default=(), repr=False)
    """Guesses where two versions of a framework give other names; `suggested_map` writes them as a file."""
    unexplained: ComparedTensor | None = None
    """The first tensor, by step and order of execution, that differs by more than rounding and what was
    executed before explain, though it may be within fixed limits; see `ComparedTensor.bound`."""
    limits: Limits = Limits.DERIVED
    """Which limits decided."""
    programs: Programs | None = field(default=None, repr=False)
    """The operators of both sides, if they ran different ones; see `Programs`."""
    layout: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """If layouts were compared: the number of tensors by placement and certainty; see `HeldBy`."""

    @property
    def counts(self) -> Counter[Verdict]:
        """The number of tensors by verdict, over all steps."""
        counts: Counter[Verdict] = Counter()
        for step in self.steps:
            counts.update(step.counts)
        return +counts  # without zeros

    @property
    def is_within(self) -> bool:
        """Whether no difference was found: all tensors are within their limits, and none is missing."""
        return not self._bad and not self._is_missing

    @property
    def is_undecided(self) -> bool:
        """Whether nothing differs or is missing, but some tensors could not be compared.

        What was read, and agrees in no way in which ranks may hold it, has a bound, and is different.
        """
        is_read = any(row.verdict is Verdict.UNKNOWN and row.bound is not None for row in self.tensors)
        return self._bad == {Verdict.UNKNOWN} and not self._is_missing and not is_read

    @property
    def _bad(self) -> set[Verdict]:
        return self.counts.keys() - (GOOD if self.unmatched_matter else GOOD | UNMATCHED)

    @property
    def _is_missing(self) -> bool:
        return self.unmatched_matter and bool(self._are_steps_missing or self.incomplete)

    @property
    def _are_steps_missing(self) -> bool:
        """Whether one side ended before the other. What it left out before that, the steps after it show."""
        for only, keys in (
            (self.only_a, [step.key_a for step in self.steps]),
            (self.only_b, [step.key_b for step in self.steps]),
        ):
            compared = sorted({key.step or 0 for key in keys})
            every = max((after - before for before, after in pairwise(compared)), default=1)
            if any((key.step or 0) >= compared[-1] + every for key in only):
                return True
        return False

    @property
    def verdict(self) -> str:
        """The verdict on everything: `equal`, `close`, `different` or `not decided`."""
        if not self.is_within:
            return "not decided" if self.is_undecided else Verdict.DIFFERENT.value
        is_equal = self.counts.keys() <= {Verdict.EQUAL, Verdict.IGNORED, *UNMATCHED}
        return Verdict.EQUAL.value if is_equal else Verdict.CLOSE.value

    def worst(self, count: int | None = None) -> list[ComparedTensor]:
        """Return the tensors, the worst first; at most `count`."""
        return sorted(self.tensors, key=lambda tensor: tensor.badness)[:count]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, NaN and infinities as None."""
        return {
            "a": self.a,
            "b": self.b,
            "verdict": self.verdict,
            **{_field(verdict): self.counts[verdict] for verdict in Verdict},
            "first": self.first.to_dict() if self.first else None,
            "limits": self.limits.value,
            "unexplained": self.unexplained.to_dict() if self.unexplained else None,
            "steps": [step.to_dict() for step in self.steps],
            "only_steps_a": [_step(key) for key in self.only_a],
            "only_steps_b": [_step(key) for key in self.only_b],
            "left_out": [{"side": side, **left.to_dict()} for side, left in self.left_out],
            "notes": list(self.notes),
            "names": {"a": self.names.a, "b": self.names.b, "common": self.names.common},
            "guessed": dict(self.guessed),
            "guesses": [asdict(guess) for guess in self.guesses],
            "programs": self.programs.to_dict() if self.programs else None,
            "layout": [
                {"placement": placement, "certainty": certainty, "tensors": count}
                for (placement, certainty), count in self.layout.items()
            ],
            "tensors": [tensor.to_dict() for tensor in self.tensors],
        }

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {verdict.value}" for verdict, count in self.counts.items())
        return f"<Comparison {self.a} against {self.b}: {self.verdict} ({counts})>"

    def _repr_html_(self) -> str:
        """Return the worst tensors: `compare --html` has a page of them all."""
        counts = ", ".join(f"{count} {verdict.value}" for verdict, count in self.counts.items())
        shown = [tensor for tensor in self.worst(MAX_ROWS) if tensor.verdict is not Verdict.EQUAL]
        rows = (
            (
                tensor.key_a.step,
                tensor.key_a.rank,
                tensor.name,
                tensor.verdict.value,
                tensor.reason,
                number_text(tensor.metrics.max_abs) if tensor.metrics else "-",
            )
            for tensor in shown
        )
        title = f"{self.verdict}: {self.a} against {self.b}"
        columns = ("step", "rank", "tensor", "verdict", "reason", "max_abs")
        unequal = sum(tensor.verdict is not Verdict.EQUAL for tensor in self.tensors)
        return html_table(title, columns, rows, total=unequal, remark=counts)

    def to_pandas(self) -> pd.DataFrame:
        """Return the tensors as a table, with the columns of `ComparedTensor.to_dict`."""
        import pandas as pd  # deferred: pandas takes 0.4 s to import

        return pd.DataFrame([tensor.to_dict() for tensor in self.tensors])


def _field(verdict: Verdict) -> str:
    return verdict.value.replace(" ", "_").lower()


def _step(key: StepKey) -> dict[str, Any]:
    return {"rank": key.rank, "step": key.step}
