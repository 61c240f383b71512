"""Collects the comparisons of single steps into one answer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ingest.questions.compare.matching import COLUMNS, MatchedBy
from ingest.questions.compare.result import (
    ComparedStep,
    ComparedTensor,
    Comparison,
    FirstDifference,
    GuessedName,
    Limits,
    NameCounts,
    OperatorGap,
    Programs,
    Verdict,
)
from ingest.questions.compare.selection import StepPairing
from ingest.questions.compare.sources import Source, steps_run
from ingest.questions.compare.step_comparison import Choices, StepComparison
from ingest.questions.compare.step_tensors import StepTensors
from ingest.questions.placement.decide import Certainty
from ingest.reader.snapshot import LeftOut
from ingest.reader.tensor_filter import TensorFilter
from ingest.reader.text import counted
from workers.errors import DamagedStore, UsageError

#: The most tensors that a comparison lists; if more differ, the worst of them.
MAX_LISTED = 50_000
#: What FSDP1 calls the parameters of a unit, joined and cut, without `use_orig_params`.
_FLAT = re.compile(r"(?:^|[._/])_?flat_param(?:[._/]|$)")


@dataclass(slots=True)
class ComparisonBuilder:
    """What is known so far, step by step."""

    choices: Choices
    steps: list[ComparedStep] = field(default_factory=list)
    first: FirstDifference | None = None
    left_out: list[tuple[str, LeftOut]] = field(default_factory=list)
    """Steps that turned out to be incomplete: `A` or `B`, and which."""
    matched: int = 0
    """Tensors that have a counterpart."""
    incomplete: int = 0
    """Pairs of steps of which one turned out to be incomplete."""
    guessed: Counter[str] = field(default_factory=Counter)
    """The numbers of pairs that were guessed, by how."""
    guesses: dict[str, GuessedName] = field(default_factory=dict)
    """By pattern over the names of A."""
    layout: Counter[tuple[str, str]] = field(default_factory=Counter)
    """If tensors were put together: how many by placement and certainty."""
    damaged: int = 0
    """Tensors that could not be read because a store is damaged, listed or not."""
    other_calls: set[int | None] = field(default_factory=set)
    """Steps whose calls hold other samples on both sides."""
    notes_on_ranks: Sequence[str] = ()
    """How ranks number their layers, if that had to be found."""
    _operators: tuple[int, int, int] = (0, 0, 0)
    """Of A, of B and of both, in the step that has most; zeros if all tensors were matched by name."""
    _gaps: dict[tuple[str, str], OperatorGap] = field(default_factory=dict)
    """What became of the operators that only one side has."""
    _names: tuple[set[str], set[str]] = field(default_factory=lambda: (set(), set()))
    """Those of all tensors of A and of B."""
    _underived: dict[str, int] = field(default_factory=dict)
    """Why limits could not be derived, and in how many steps."""
    _examples: tuple[str, str] = ("", "")
    """A name of A and one of B, for a message."""
    _unused_rules: set[int] | None = None
    """Rules of the mapping that have fit no tensor of A so far; None before the first step."""
    _unexplained: ComparedTensor | None = None
    _close_beyond: int = 0
    """How many tensors are within the fixed limits, though rounding does not explain their difference."""
    _unreduced: Sequence[str] = ()
    """Gradients of which ranks of A hold parts in the first such step."""
    _sent: list[tuple[FirstDifference, bytes, frozenset[bytes]]] = field(default_factory=list)
    """The first difference of each rank; its digest, if it is an input; those of outputs that differ."""
    _listed: list[ComparedTensor] = field(default_factory=list)
    _dropped: int = 0
    """Tensors that are counted and not listed."""

    def add(
        self, comparison: StepComparison, a: StepTensors, b: StepTensors, rows: Sequence[ComparedTensor]
    ) -> None:
        """Count the tensors of a step that was compared, and keep what is worth telling.

        Raises:
            DumpIngestError: a store or a dump could not be read.
        """
        self.guesses = comparison.guesses | self.guesses
        self._operators = max(self._operators, comparison.operators)
        self._gaps = {(gap.side, gap.name): gap for gap in comparison.gaps} | self._gaps
        if comparison.underived:
            self._underived[comparison.underived] = self._underived.get(comparison.underived, 0) + 1
        self._note_first(comparison, rows)
        self._note_unexplained(rows)
        self._unreduced = self._unreduced or comparison.unreduced
        self.matched += comparison.matched
        self.guessed.update(comparison.guessed)
        self.layout.update(comparison.layout)
        self.steps.append(ComparedStep(a.key, b.key, dict(comparison.counts)))
        self._list(rows)
        for known, own in zip(self._names, (a.names, a.names if a.keys == b.keys else b.names), strict=True):
            known.update(own)
        self._note_rules(a, b)

    def _list(self, rows: Sequence[ComparedTensor]) -> None:
        self.damaged += sum(row.damaged for row in rows)
        self._listed += [row for row in rows if self.choices.keep_equal or row.verdict is not Verdict.EQUAL]
        if len(self._listed) > 2 * MAX_LISTED:
            self._drop()

    def leave_out(self, a: object, b: object) -> None:
        """Record steps that cannot be compared, because those of one side, or both, are left out."""
        problems = [(side, left) for side, left in (("A", a), ("B", b)) if isinstance(left, list)]
        self.left_out += [(side, step) for side, left in problems for step in left]
        self.incomplete += len(problems) == 1

    def finish(
        self,
        a: Source,
        b: Source,
        pairing: StepPairing,
        *,
        unmatched_matter: bool = True,
    ) -> Comparison:
        """Return the answer.

        Args:
            a: what was compared.
            b: its reference.
            pairing: which steps only one of them has.
            unmatched_matter: steps and tensors that only one side has count as a difference.

        Raises:
            UsageError: no step was compared, or no tensor has a counterpart.
            DamagedStore: no step was compared, because some are damaged.
        """
        if self.first is not None:
            self.first = self._sender(self.first)
        left_out = [(side, left) for side, of in (("A", a), ("B", b)) for left in of.left_out]
        left_out += self.left_out
        self._check(a.label, b.label, left_out)
        if len(self._listed) > MAX_LISTED:
            self._drop()
        tensors = tuple(self._listed)
        about_ranks = self._notes_on_ranks() if pairing.together else self._notes(tensors)
        notes = (*pairing.notes, *about_ranks, *_sample_notes(a, b))
        return Comparison(
            a=a.label,
            b=b.label,
            steps=tuple(self.steps),
            tensors=tensors,
            first=self.first,
            left_out=tuple(left_out),
            only_a=steps_run(a, pairing.only_a),
            only_b=steps_run(b, pairing.only_b),
            incomplete=len(pairing.half_complete) + self.incomplete,
            notes=(*notes, *_flat_parameters(tensors), *self._notes_on_list()),
            unmatched_matter=unmatched_matter,
            damaged=self.damaged,
            names=NameCounts.of(*self._names),
            guessed=dict(self.guessed),
            guesses=tuple(self.guesses.values()),
            unexplained=self._unexplained,
            limits=self._limits,
            programs=self._programs,
            layout=dict(self.layout),
        )

    @property
    def _programs(self) -> Programs | None:
        """The alignment of the operators; None if all tensors were matched by name."""
        return Programs(*self._operators, tuple(self._gaps.values())) if any(self._operators) else None

    def _drop(self) -> None:
        """Drop all but the worst tensors; the others keep their order."""
        order = sorted(range(len(self._listed)), key=lambda number: self._listed[number].badness)
        self._dropped += len(order[MAX_LISTED:])
        self._listed = [self._listed[number] for number in sorted(order[:MAX_LISTED])]

    def _notes_on_list(self) -> Iterator[str]:
        if self._dropped:
            yield f"only the {MAX_LISTED} worst tensors are listed, {self._dropped} others are only counted"

    def _note_first(self, comparison: StepComparison, rows: Sequence[ComparedTensor]) -> None:
        """Record the first difference of this step, if none of an earlier step is known."""
        if self.first and rows and (rows[0].key_a.step or 0) > (self.first.tensor.key_a.step or 0):
            return  # it would read elements for nothing
        if first := comparison.first(rows):
            self._take_first(first)
            self._sent.append((first, *comparison.contents_around(first.tensor, rows)))

    def _take_first(self, first: FirstDifference) -> None:
        """Keep the earlier one of two first differences; of those at one place, all ranks."""
        if self.first is None or _order(first.tensor) < _order(self.first.tensor):
            self.first = first
        elif _order(first.tensor)[:2] == _order(self.first.tensor)[:2] and not first.tensor.held:
            ranks = {self.first.tensor.key_a.rank, *self.first.ranks, first.tensor.key_a.rank}
            self.first = replace(self.first, ranks=tuple(sorted(ranks)))

    def _sender(self, first: FirstDifference) -> FirstDifference:
        """Return the first difference of the rank that sent what is different, if that is known."""
        known = [each for each in self._sent if each[0].tensor.key_a.step == first.tensor.key_a.step]
        for _ in known:
            content = next((content for own, content, _ in known if own.tensor == first.tensor), b"")
            senders = (own for own, _, given in known if own.tensor != first.tensor and content in given)
            first = next(senders, first) if content else first
        return first

    def _note_unexplained(self, tensors: Sequence[ComparedTensor]) -> None:
        """Record the first tensor that rounding does not explain, and how many of these are within limits."""
        beyond = [row for row in tensors if row.bound is not None and not row.bound.explained]
        self._close_beyond += sum(row.verdict is Verdict.CLOSE for row in beyond)
        if beyond and (self._unexplained is None or _order(beyond[0]) < _order(self._unexplained)):
            self._unexplained = beyond[0]

    def _note_rules(self, a: StepTensors, b: StepTensors) -> None:
        """Record which rules of the mapping are still unused, and an example of a name on either side."""
        if a.keys and b.keys and not self._examples[0]:
            self._examples = a.keys[0].name, b.keys[0].name
        mapping = self.choices.mapping
        if self._unused_rules != set() and mapping.rules:
            unused = set(mapping.unused(a.names))
            self._unused_rules = unused if self._unused_rules is None else self._unused_rules & unused

    def _notes(self, tensors: Sequence[ComparedTensor]) -> Iterator[str]:
        """Yield the notes that a reader of the figures needs."""
        yield from self._notes_on_names(tensors)
        yield from self._notes_on_limits()
        yield from self._notes_on_calls()
        if self._programs:
            yield str(self._programs)
        if reshaped := sum(step.counts.get(Verdict.SHAPE, 0) for step in self.steps):
            yield (
                f"the shapes of {counted(reshaped, 'tensor')} differ: if ranks hold shards of them, compare "
                "all ranks (without @RANK), and --across-layouts puts tensors together"
            )

    def _notes_on_ranks(self) -> Iterator[str]:
        """Yield what there is to say of how tensors were put together."""
        if undecided := sum(n for (_, certainty), n in self.layout.items() if certainty == Certainty.OPEN):
            yield (
                f"how ranks hold {counted(undecided, 'tensor')} is open (`certainty`); "
                "--layout-map FILE settles it"
            )
        yield from self._notes_on_calls()
        if unreduced := self._unreduced:
            yield (
                f"each rank of A holds its part of {', '.join(unreduced[:3])}"
                f"{' and others' * (len(unreduced) > 3)}; the gradients of other parameters are whole. "
                "Whether they were reduced before the update, the parameters of the next step show"
            )
        if self.guessed:
            yield f"paired by values, because names differ: {counted(self.guessed.total(), 'tensor')}"
        yield from self.notes_on_ranks

    def _notes_on_calls(self) -> Iterator[str]:
        """Yield in how many steps only parameters were compared."""
        if self.other_calls:
            yield (
                f"in {counted(len(self.other_calls), 'step')}, calls of A and B hold other samples of one "
                "batch: of these steps, only parameters are compared"
            )

    def _notes_on_names(self, tensors: Sequence[ComparedTensor]) -> Iterator[str]:
        """Yield what there is to say of how tensors were matched."""
        for number in sorted(self._unused_rules or ()):
            yield f"pair {number + 1} of the mapping file fits no tensor of A"
        if of_versions := sum(n for how, n in self.guessed.items() if MatchedBy(how).is_of_versions):
            ways = ", ".join(f"{n} by {how}" for how, n in self.guessed.items())
            yield f"{NameCounts.of(*self._names)}: they seem to be of two versions or programs"
            yield (
                f"{of_versions} pairs of tensors are guesses ({ways}); --suggest-map FILE writes them as a "
                "mapping file"
            )
        if ambiguous := sum(tensor.ambiguous for tensor in tensors):
            some = counted(ambiguous, "tensor")
            yield f"{some} might as well be matched with others (column `ambiguous`)"

    def _notes_on_limits(self) -> Iterator[str]:
        """Yield what there is to say of the limits by which differences were judged."""
        if self._limits is Limits.FIXED and not self.choices.fixed_limits:
            for why, count in self._underived.items():
                some = counted(count, "step")
                yield f"the limits of {some} are the fixed ones of types, not derived: {why}"
        if self._close_beyond and self._unexplained:
            yield _beyond_rounding(self._close_beyond, self._unexplained)

    @property
    def _limits(self) -> Limits:
        """Which limits decided; the fixed ones if they did so in one step at least."""
        limits = self.choices.limits
        return Limits.FIXED if limits is Limits.DERIVED and self._underived else limits

    def _check(self, a: str, b: str, left_out: Sequence[tuple[str, LeftOut]]) -> None:
        damaged = [step for _, step in left_out if step.is_damaged]
        if not self.steps and damaged:
            raise DamagedStore(f"no step of {a} and {b} can be compared ({damaged[0]})")
        if not self.steps:
            raise UsageError(
                f"{a} and {b} have no complete step to compare ({left_out[0][1]})",
                hint="--include-partial compares steps that are not complete, too.",
            )
        chosen = TensorFilter(self.choices.chosen, COLUMNS)
        if not self.matched and chosen.names:
            raise UsageError(
                f"no tensor of {a} that has a counterpart in {b} fulfils {chosen}",
                hint="`dump-ingest find STORE` with the same options lists the tensors of a store.",
            )
        if not self.matched:
            name_a, name_b = self._examples
            examples = f" ({name_a!r} and {name_b!r}, for instance)" if name_a else ""
            raise UsageError(
                f"no tensor of {a} has a counterpart in {b}{examples}",
                hint="If names differ, --map FILE says which is which.",
            )


def _order(tensor: ComparedTensor) -> tuple[int, int, int]:
    """Return a sort key: by step, order of execution, rank."""
    return tensor.key_a.step or 0, tensor.number, tensor.key_a.rank


def _beyond_rounding(close: int, first: ComparedTensor) -> str:
    """Return how many tensors are within their limits though rounding does not explain it, and the first."""
    bound = first.bound
    figures = f"{bound.times:.2g} times the limit {bound.limit:.2g}" if bound else ""
    where = f"{first.name} in step {first.key_a.step} of rank {first.key_a.rank}"
    return (
        f"{counted(close, 'tensor')} within the limits of their types, but different by more than rounding "
        "explains; "
        f"the first that differs so is {where}: {figures}"
    )


def _flat_parameters(tensors: Sequence[ComparedTensor]) -> Iterator[str]:
    """Yield why flat parameters are not compared, for each side that has some."""
    for side, verdict in (("A", Verdict.ONLY_A), ("B", Verdict.ONLY_B)):
        own = {row.name for row in tensors if row.verdict is verdict and _FLAT.search(row.name)}
        if own:
            yield (
                f"{counted(len(own), 'tensor')} of {side} not compared: flat parameters of FSDP1 and their "
                "gradients join all parameters of a unit; with use_orig_params=True, the parameters "
                "themselves are dumped"
            )


def _sample_notes(a: Source, b: Source) -> list[str]:
    """Return a note for each side that has only a sample of each tensor."""
    return [
        f"{side} is a sample: of each tensor, its dump has the first and the last {source.sample} elements. "
        "Statistics and differences are about these alone"
        for side, source in (("A", a), ("B", b))
        if source.sample
    ]
