"""One step of A against one of B: which pairs digests decide, how far the others are apart, and the verdicts.

A step is that of one rank, or of all ranks, whose pieces `placing` puts together. Digests come first; then
statistics, where elements were not dumped or are not to be read; then elements. One judge gives the verdicts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ingest.questions.compare.dataflow import Dataflow, gradient_name
from ingest.questions.compare.differences import AWAITED, Judgement, Measured
from ingest.questions.compare.first_difference import first_difference
from ingest.questions.compare.judge import Judge
from ingest.questions.compare.mapping import NameMapping
from ingest.questions.compare.matching import (
    Form,
    MatchedBy,
    TensorPair,
    chosen,
    counterparts,
    guessed_names,
    ignoring_updates,
    match_tensors,
    modules_of,
    unmatched,
    with_last_gradients,
    with_same_calls,
    without_effect,
)
from ingest.questions.compare.placing import AssembledTensor, Placing, SeenPlacements
from ingest.questions.compare.programs import (
    AlignedPrograms,
    align_programs,
    operator_name,
    with_uneven_functions,
)
from ingest.questions.compare.result import ComparedTensor, FirstDifference, Limits, Verdict
from ingest.questions.compare.runner import PairRunner, batched
from ingest.questions.compare.sources import StepTensors
from ingest.questions.compare.thresholds import ThresholdLimits, Thresholds, is_ignored
from ingest.reader.choice import named_ranges
from ingest.reader.operator_kinds import StepPart, is_input
from ingest.reader.tensor_filter import FilterFields
from ingest.reader.text import shape_text
from workers.arrays.digest import DIGEST_BYTES
from workers.errors import DamagedStore
from workers.model import StepKey
from workers.store.consolidated.blocks import OperatorKey
from workers.tasks.compare import Pair, PairComparison, compare_pairs
from workers.tasks.operands import read_whole


@dataclass(frozen=True, slots=True)
class Choices:
    """What the user asked for."""

    mapping: NameMapping
    thresholds: Thresholds
    keep_equal: bool
    include_partial: bool
    fixed_limits: bool = False
    """Whether the fixed limits of types decide, and not derived ones."""
    elements: bool = True
    """Whether elements are read where digests differ; else, statistics decide."""
    chosen: FilterFields = field(default_factory=FilterFields)
    """Which tensors are compared; all without conditions."""

    @property
    def limits(self) -> Limits:
        """Which limits decide, where some can be derived."""
        if not self.thresholds.are_empty:
            return Limits.GIVEN
        return Limits.FIXED if self.fixed_limits else Limits.DERIVED


@dataclass(frozen=True, slots=True)
class LastStep:
    """What the first difference of the next step may come of."""

    scaled: ComparedTensor | None = None
    """Its first gradient, if all of them were B's times one factor."""
    parts: Mapping[str, ComparedTensor] = field(default_factory=dict)
    """The gradients of parameters of which each rank held its part of a sum."""
    lacking: Mapping[str, ComparedTensor] = field(default_factory=dict)
    """What one side alone had, and both had had before; and gradients of parameters that both had."""


@dataclass(slots=True)
class SeenSteps:
    """What the steps of a rank, or of ranks that read one batch, have shown so far."""

    placements: SeenPlacements
    judge: Judge = field(default_factory=Judge)
    last: LastStep = field(default_factory=LastStep)
    shared: set[str] = field(default_factory=set)
    """The tensors of A that both sides have had."""
    modules: tuple[set[str], set[str]] = field(default_factory=lambda: (set(), set()))
    """Those of A, and those of B."""


class _MeasuredPair(NamedTuple):
    pair: TensorPair
    outcome: PairComparison
    placed: AssembledTensor | None = None
    """How ranks hold it, if it was put together."""


_SPARSE_PART = re.compile(r"\.(?:indices|values)\.\d+$")


def _know_names(a: StepTensors, b: StepTensors) -> bool:
    names_a, names_b = ({key.name for key in side.keys} for side in (a, b))
    return 2 * len(names_a & names_b) >= min(len(names_a), len(names_b))


class StepComparison:
    """Compares one step of A with one of B."""

    def __init__(
        self,
        a: StepTensors,
        b: StepTensors,
        choices: Choices,
        seen: SeenSteps,
        runner: PairRunner,
        *,
        placing: Placing | None = None,
        is_last: bool = False,
        has_other_calls: bool = False,
        has_other_ranks: bool = False,
    ) -> None:
        """Match the tensors of both.

        Args:
            a: the tensors of A: of one rank, or each as one of all ranks.
            b: those of B.
            choices: what the user wants.
            seen: what earlier steps have shown.
            runner: where tensors are read.
            placing: puts pieces of ranks together, if each tensor is one of all ranks.
            is_last: no step is compared after this one.
            has_other_calls: calls hold other samples on both sides; see `are_cut_into_other_calls`.
            has_other_ranks: other ranks ran beside this one.

        Raises:
            DumpIngestError: a store or a dump could not be read.
        """
        self.a, self.b, self._choices, self._seen, self._runner = a, b, choices, seen, runner
        self._placing, self._is_last, self._has_other_calls = placing, is_last, has_other_calls
        self._has_other_ranks = has_other_ranks
        self._is_first = not seen.shared
        self.before = seen.last
        self.placed: Mapping[int, AssembledTensor] = {}
        """By number how ranks hold tensors, if they were put together."""
        self.rows: list[ComparedTensor] = []
        """In order of execution; of equal tensors maybe none."""
        pairs = with_last_gradients(a, b, with_same_calls(a, b, match_tensors(a, b, choices.mapping)))
        if placing is None:
            pairs = with_uneven_functions(a, b, pairs, runner)
        only_a, only_b = unmatched(a, b, pairs)
        self.aligned = AlignedPrograms(pairs)
        """The pairs, and the operators that only one side has, if the two ran different ones."""
        if placing is not None:
            self.aligned = AlignedPrograms(placing.paired(pairs, only_a))
        elif only_a and only_b:
            names_tell = _know_names(a, b) or bool(choices.mapping.rules)
            self.aligned = align_programs(a, b, pairs, runner, names_tell=names_tell)
        pairs = self.aligned.pairs
        self.guesses = {} if placing else guessed_names(a, b, pairs)
        """What was guessed of two versions, by pattern over the names of A."""
        only_a, only_b = unmatched(a, b, pairs)
        of_a, of_b = (chosen(side, choices.chosen) for side in (a, b))
        self._pairs = [pair for pair in pairs if of_a[pair.a]]
        self._only_a, self._only_b = [n for n in only_a if of_a[n]], [n for n in only_b if of_b[n]]
        self.matched = len(self._pairs)
        ways = Counter(pair.matched_by for pair in self._pairs)
        self.guessed = Counter({how.value: count for how, count in ways.items() if how.is_guess})
        of_versions = sum(ways[how] for how in ways if how.is_of_versions)
        self._are_of_versions = placing is None and 2 * of_versions > self.matched
        self.counts: Counter[Verdict] = Counter()
        """Filled by `compare`, like `layout`."""
        self.layout: Counter[tuple[str, str]] = Counter()

    @property
    def underived(self) -> str:
        """Why limits cannot be derived along the order of execution; "" if they can."""
        if self._are_of_versions:
            return "the two sides ran different operators"
        if self._choices.chosen:
            return "what was executed before the chosen tensors is not compared"
        return ""

    @property
    def unreduced(self) -> list[str]:
        """The gradients of parameters of which each rank of A holds a part, if those of others are whole."""
        return self._placing.unreduced(self.flow.parts) if self._placing else []

    @cached_property
    def flow(self) -> Dataflow:
        """What the operators of A read."""
        a, b = ([b"" if each == _UNKNOWN else each for each in side.contents] for side in (self.a, self.b))
        is_same_rank = self._placing is not None or self.a.key.rank == self.b.key.rank
        dtypes = self.a.dtypes, self.b.dtypes
        in_b = {pair.a: pair.b for pair in self._pairs}
        return Dataflow(self.a.keys, (a, b), in_b, dtypes, is_same_rank, self._has_other_ranks)

    @cached_property
    def known(self) -> dict[int, ComparedTensor]:
        """The rows of what both sides have, by number."""
        return {row.number: row for row in self.rows if row.name_a and row.name_b}

    @property
    def blames_scale(self) -> bool:
        """Whether gradients of the step before, which all had one factor, have moved parameters apart."""
        return self._seen.judge.blames_scale

    @cached_property
    def _partners(self) -> dict[tuple[str, OperatorKey], OperatorKey]:
        return counterparts(self.a, self.b, self.aligned.pairs)

    def compare(self) -> None:
        """Compare all tensors.

        Raises:
            DumpIngestError: a store or a dump could not be read.
        """
        same = self._have_same_digests()
        equal = [self._pairs[number] for number in np.flatnonzero(same).tolist()]
        rows: list[ComparedTensor] = []
        if self._placing is not None:
            measured = [_MeasuredPair(*known) for known in self._placing.measure(self.flow.parts)]
        else:
            rows, measured = self._measure([self._pairs[number] for number in np.flatnonzero(~same).tolist()])
        judgements = self._judgements(rows, measured, equal)
        judged = {known.pair.a: self._judge(known, judgements.get(known.pair.a)) for known in measured}
        self.placed = {known.pair.a: known.placed for known in measured if known.placed}
        rows += judged.values()
        if self.aligned.gaps:
            rows = ignoring_updates(rows, self._pairs, self.a.keys, self.aligned.contents)
        alone = [*self._unmatched_rows()]
        rows += alone
        self._remember(judged, alone)
        if self._choices.thresholds.are_empty and not (self._choices.mapping.rules or self._are_of_versions):
            keys = self.a.keys, self.b.keys
            for known, of_side in zip(self._seen.modules, keys, strict=True):
                known.update(modules_of(of_side))
            rows = without_effect(
                rows, self.matched, keys, self._seen.modules, is_only_step=self._is_first and self._is_last
            )
        self.counts.update(row.verdict for row in rows)
        self.counts[Verdict.EQUAL] += len(equal)
        self.layout.update((row.held.placement, row.held.certainty) for row in rows if row.held)
        if self._choices.keep_equal:
            rows += [self._row(pair, Verdict.EQUAL, basis="digest") for pair in equal]
        self.rows = sorted(rows, key=lambda row: (not row.name_a, row.number))

    def first(self) -> FirstDifference | None:
        """Return the first tensor that differs, and what is known of the inputs of its operator.

        Raises:
            DumpIngestError: a store or a dump could not be read.
        """
        found = first_difference(self)
        if found is None or self._placing is None or not (ranks := self._placing.ranks_apart(found.tensor)):
            return found
        why = f"{found.reason}; only what {named_ranges('rank', ranks)} has differs"
        inputs = (
            replace(each, reason=why, value_a="") if each.name == found.tensor.name_a else each
            for each in found.inputs
        )
        return replace(found, tensor=replace(found.tensor, reason=why), inputs=tuple(inputs), ranks=ranks)

    def contents_around(self, first: ComparedTensor) -> tuple[bytes, frozenset[bytes]]:
        """Return the digest of the first difference if it is an input, and those of outputs that differ."""
        if self._placing is not None or not first.name_a:
            return b"", frozenset()
        differing = (row.number for row in self.rows if row.name_a and row.verdict is Verdict.DIFFERENT)
        outputs = frozenset(self.flow.digest(n) for n in differing if self.flow.is_output(n))
        content = self.flow.digest(first.number) if is_input(first.io) else b""
        return content, outputs - {b""}

    def _is_sure(self, pair: TensorPair) -> bool:
        is_numbered = self.aligned.gaps and self.flow.is_numbered(pair.a)
        return self._placing is not None or not (pair.matched_by.is_of_versions or is_numbered)

    def _have_same_digests(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        a, b, pairs = self.a, self.b, self._pairs
        if not pairs or self._placing is not None:
            return np.zeros(len(pairs), bool)
        numbers_a = np.array([pair.a for pair in pairs], int)
        numbers_b = np.array([pair.b for pair in pairs], int)
        digests = a.digests[numbers_a]
        same = (digests == b.digests[numbers_b]).all(axis=1) & digests.any(axis=1)
        same &= a.dumped[numbers_a] & b.dumped[numbers_b]
        for number in np.flatnonzero(same).tolist():
            pair = pairs[number]
            is_turned = pair.form is Form.TRANSPOSED
            same[number] = not is_turned and a.meanings[pair.a] == b.meanings[pair.b]
        return np.asarray(same)

    def _measure(self, pairs: Sequence[TensorPair]) -> tuple[list[ComparedTensor], list[_MeasuredPair]]:
        """Compare pairs without elements by statistics; return these, and the pairs that have elements."""
        rows: list[ComparedTensor] = []
        by_content: dict[object, list[TensorPair]] = {}
        by_limits: dict[int, tuple[ThresholdLimits, list[TensorPair]]] = {}
        for pair in pairs:
            limits = self._limits(pair)
            if row := self._undecidable(pair, limits):
                rows.append(row)
            elif self._have_elements(pair):
                by_content.setdefault(self._content(pair), []).append(pair)
            else:
                by_limits.setdefault(id(limits), (limits, []))[1].append(pair)
        for limits, members in by_limits.values():
            rows += self._judge_statistics(members, limits)
        # In the order in which A is stored, so that its chunks are read once.
        dtypes, places = self.a.dtypes, self.a.places
        groups = sorted(by_content.values(), key=lambda group: (dtypes[at := group[0].a], int(places[at])))
        firsts = [group[0] for group in groups]
        nbytes = self.a.nbytes[[pair.a for pair in firsts]] + self.b.nbytes[[pair.b for pair in firsts]]
        batches = batched(map(self._operands, firsts), self._runner.parts, int(nbytes.sum()))
        outcomes = chain.from_iterable(self._runner.map(compare_pairs, batches))
        measured = [
            _MeasuredPair(pair, outcome)
            for group, outcome in zip(groups, outcomes, strict=True)
            for pair in group
        ]
        return rows, measured

    def _judgements(
        self, rows: Sequence[ComparedTensor], measured: Sequence[_MeasuredPair], equal: Sequence[TensorPair]
    ) -> Mapping[int, Judgement]:
        if not self._choices.thresholds.are_empty or self.underived:
            return {}
        known = [self._measured(_MeasuredPair(pair, PairComparison(None))) for pair in equal]
        known += [self._measured(each) for each in measured if self._is_sure(each.pair)]
        tensors = sorted((each for each in known if each is not None), key=lambda each: each.number)
        return self._seen.judge.judge(
            tensors,
            self.flow,
            self._elements,
            is_last=self._is_last,
            has_other_calls=self._has_other_calls,
            is_put_together=self._placing is not None,
            has_other_shapes=any(
                row.verdict is Verdict.SHAPE and self.flow.parts[row.number] is StepPart.ACTIVATION
                for row in rows
            ),
        )

    def _measured(self, known: _MeasuredPair) -> Measured | None:
        (n, of_b, *_), outcome, placed = known
        a, b = self.a, self.b
        dtypes = a.dtypes[n], b.dtypes[of_b]
        measured = Measured(n, dtypes, a.shapes[n], outcome.metrics, zeros=a.zeros[n], rms=a.sizes[n])
        if placed is not None:
            return placed.measured(measured, outcome.problem)
        return None if outcome.problem else measured

    def _remember(self, judged: Mapping[int, ComparedTensor], alone: Iterable[ComparedTensor]) -> None:
        seen, scaled = self._seen, self._seen.judge.scaled
        parts = {
            judged[number].name_a: judged[number]
            for number, placed in self.placed.items()
            if self.flow.parts[number] is StepPart.PARAMETER_GRADIENT and placed.is_certain_sum
        }
        seen.last = LastStep(None if scaled is None else judged.get(scaled), parts, self._lacking(alone))
        seen.shared.update(self.a.names[pair.a] for pair in self._pairs)

    def _lacking(self, alone: Iterable[ComparedTensor]) -> dict[str, ComparedTensor]:
        """Return by name what one side alone has, of what both had before, or is a gradient of theirs."""
        names, parts = self.a.names, self.flow.parts
        paired = [pair.a for pair in self._pairs]
        wanted = set(self._seen.shared)
        if any(parts[n] is StepPart.PARAMETER_GRADIENT for n in paired):
            wanted.update(gradient_name(names[n]) for n in paired if parts[n] is StepPart.PARAMETER)
        # Of gradients that are added up over calls, one side may have the last ones alone.
        wanted.difference_update(map(self.flow.repeated_name, paired))
        # A sparse one is dumped in two parts, of which the first stands for it.
        named = ((_SPARSE_PART.sub("", row.name), row) for row in reversed(list(alone)))
        return {name: row for name, row in named if name in wanted}

    def _elements(self, number: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]] | None:
        """Return the elements of a tensor of A and of its counterpart; None if one cannot be read."""
        if self._placing is not None:
            return self._placing.elements(number)
        pair = next((pair for pair in self._pairs if pair.a == number), None)
        if pair is None or not self._have_elements(pair):
            return None
        operands = self._operands(pair)
        payloads = read_whole([operands.a, operands.b])
        try:
            a, b = (
                operand.values(payload)
                for operand, payload in zip((operands.a, operands.b), payloads, strict=True)
                if not isinstance(payload, DamagedStore)
            )
        except ValueError:  # damaged, or in a layout that cannot be read
            return None
        return a, b

    def _operands(self, pair: TensorPair) -> Pair:
        a, b = self.a.operand(pair.a), self.b.operand(pair.b)
        if pair.form is Form.RESHAPED:
            b = replace(b, shape=a.shape)
        elif pair.form is Form.TRANSPOSED:
            b = replace(b, shape=b.shape[::-1], fortran_order=not b.fortran_order)
        return Pair(a, b)

    def _limits(self, pair: TensorPair) -> ThresholdLimits:
        a, b, thresholds = self.a, self.b, self._choices.thresholds
        names = (a.names[pair.a], b.names[pair.b]) if thresholds.rules else ("", "")
        return thresholds.limits(names, (a.dtypes[pair.a], b.dtypes[pair.b]))

    def _undecidable(self, pair: TensorPair, limits: ThresholdLimits) -> ComparedTensor | None:
        if is_ignored(limits):
            return self._row(pair, Verdict.IGNORED)
        shape_a, shape_b = self.a.shapes[pair.a], self.b.shapes[pair.b]
        if shape_a != shape_b and pair.form is Form.AS_IS:
            return self._row(pair, Verdict.SHAPE, f"{shape_text(shape_a)} and {shape_text(shape_b)}")
        return None

    def _have_elements(self, pair: TensorPair) -> bool:
        are_dumped = bool(self._choices.elements and self.a.dumped[pair.a] and self.b.dumped[pair.b])
        return are_dumped and not self._are_removed(pair)

    def _are_removed(self, pair: TensorPair) -> bool:
        return pair.a in self.a.removed or pair.b in self.b.removed

    def _content(self, pair: TensorPair) -> object:
        """Return the key by which metrics of a pair are shared: equal contents are compared once."""
        a, b = self.a, self.b
        contents = a.contents[pair.a], b.contents[pair.b]
        if _UNKNOWN in contents:
            return pair
        return *contents, a.meanings[pair.a], b.meanings[pair.b], pair.form

    def _judge(self, known: _MeasuredPair, judgement: Judgement | None) -> ComparedTensor:
        pair, outcome, placed = known
        limits, metrics = self._limits(pair), outcome.metrics
        if is_ignored(limits):
            return self._row(pair, Verdict.IGNORED, placed=placed)
        bound = judgement.bound if judgement else None
        derived = None if self._choices.fixed_limits else judgement
        basis = outcome.basis if metrics else ""
        row = self._row(
            pair,
            Verdict.EQUAL,
            basis=basis,
            metrics=metrics,
            bound=bound,
            placed=placed,
            damaged=outcome.damaged,
        )
        if derived and (metrics or derived.verdict is Verdict.NOT_READ):
            row = replace(row, verdict=derived.verdict, reason=derived.reason, level=derived.level)
        elif metrics is None:
            row = replace(row, verdict=Verdict.UNKNOWN, reason=outcome.problem)
        elif not metrics.bit_equal:
            reason = limits.broken(metrics)
            row = replace(row, verdict=Verdict.DIFFERENT if reason else Verdict.CLOSE, reason=reason)
        return row if placed is None or row.verdict is Verdict.NOT_READ else placed.explained(row)

    def _judge_statistics(
        self, pairs: Sequence[TensorPair], limits: ThresholdLimits
    ) -> Iterator[ComparedTensor]:
        a = self.a.statistics[[pair.a for pair in pairs]]
        b = self.b.statistics[[pair.b for pair in pairs]]
        # The first is the number of elements, which follows from the shape.
        known_a, known_b = ~np.isnan(a[:, 1:]), ~np.isnan(b[:, 1:])
        are_known = np.any(known_a & known_b, axis=1).tolist()
        are_told = np.any(known_a | known_b, axis=1).tolist()
        reasons = limits.broken_by_statistics(a, b)
        unread = "were not dumped" if self._choices.elements else "were not read"
        for pair, is_known, is_told, reason in zip(pairs, are_known, are_told, reasons, strict=True):
            is_removed = self._are_removed(pair)
            why = "were removed from the store" if is_removed else unread
            if not is_told and (told := self._told_alike(pair)):
                yield self._row(pair, Verdict.CLOSE, told, basis="statistics")
            elif not is_known:
                yield self._row(pair, Verdict.UNKNOWN, f"elements {why}, and no statistic of both is known")
            elif reason and self.flow.is_awaited(pair.a):
                yield self._row(pair, Verdict.NOT_READ, AWAITED, basis="statistics")
            elif reason:
                differ = f"{reason}; elements {why}" if is_removed else reason
                yield self._row(pair, Verdict.DIFFERENT, differ, basis="statistics")
            else:
                agree = f"statistics agree; elements {why}"
                yield self._row(pair, Verdict.CLOSE, agree, basis="statistics")

    def _told_alike(self, pair: TensorPair) -> str:
        """Return what both dumps say of a tensor without a finite statistic; "" if they disagree."""
        if self.a.dumped[pair.a] or self.b.dumped[pair.b]:
            return ""  # the elements, which are not read, may differ
        told_a, told_b = _told(self.a, pair.a), _told(self.b, pair.b)
        return f"both dumps say {told_a or 'nothing of it'}" if told_a == told_b else ""

    def _unmatched_rows(self) -> Iterator[ComparedTensor]:
        for side, numbers in (("A", self._only_a), ("B", self._only_b)):
            why = {gap.name: str(gap) for gap in self.aligned.gaps if gap.side == side}
            for number in numbers:
                yield self._unmatched_row(number, why, is_a=side == "A")

    def _unmatched_row(self, number: int, why: Mapping[str, str], *, is_a: bool) -> ComparedTensor:
        side, verdict = (self.a, Verdict.ONLY_A) if is_a else (self.b, Verdict.ONLY_B)
        name, dtype, key = side.names[number], side.dtypes[number], side.keys[number]
        known: tuple[str, str, tuple[int, ...] | None] = name, dtype, side.shapes[number]
        of_a, of_b = (known, _NOT_THERE) if is_a else (_NOT_THERE, known)
        limits = self._choices.thresholds.limits((name, name), (dtype, dtype))
        key_a, key_b = self.a.key, self.b.key
        if self._placing is not None:
            rank = self._placing.holders(number, is_a=is_a)[0]
            key_a, key_b = StepKey(rank, key_a.step), StepKey(rank, key_b.step)
        return ComparedTensor(
            key_a=key_a,
            key_b=key_b,
            number=number,
            name_a=of_a[0],
            name_b=of_b[0],
            graph=key.graph,
            op_type=key.op_type,
            io=key.io,
            dtype_a=of_a[1],
            dtype_b=of_b[1],
            shape_a=of_a[2],
            shape_b=of_b[2],
            verdict=Verdict.IGNORED if is_ignored(limits) else verdict,
            reason=why.get(operator_name(key.operator)) or self._not_in_partner(key.operator, is_a=is_a),
        )

    def _not_in_partner(self, operator: OperatorKey, *, is_a: bool) -> str:
        """Return that the operator's counterpart does not have such a tensor; "" if it has no counterpart."""
        side, other = ("A", "B") if is_a else ("B", "A")
        if (partner := self._partners.get((side, operator))) is None:
            return ""
        return f"{operator_name(partner)} of {other}, its counterpart, does not have it"

    def _row(
        self,
        pair: TensorPair,
        verdict: Verdict,
        reason: str = "",
        *,
        placed: AssembledTensor | None = None,
        **known: Any,
    ) -> ComparedTensor:
        a, b = self.a, self.b
        key, name, held = a.keys[pair.a], a.names[pair.a], placed.held if placed else None
        return ComparedTensor(
            key_a=StepKey(held.ranks_a[0], a.key.step) if held else a.key,
            key_b=StepKey(held.ranks_b[0], b.key.step) if held else b.key,
            number=pair.a,
            name_a=name,
            name_b=name if pair.matched_by is MatchedBy.EXACT else b.names[pair.b],
            graph=key.graph,
            op_type=key.op_type,
            io=key.io,
            dtype_a=a.dtypes[pair.a],
            dtype_b=b.dtypes[pair.b],
            shape_a=placed.shapes[0] if placed else a.shapes[pair.a],
            shape_b=placed.shapes[1] if placed else b.shapes[pair.b],
            verdict=verdict,
            reason=reason,
            matched=pair.matched_by.value,
            guessed=pair.matched_by.is_guess,
            ambiguous=pair.ambiguous,
            form=pair.form.value,
            held=held,
            **known,
        )


#: The name, type and shape of a tensor on the side that does not have it.
_NOT_THERE: tuple[str, str, tuple[int, ...] | None] = ("", "", None)
#: The digest of a payload that is not known.
_UNKNOWN = bytes(DIGEST_BYTES)


def _told(side: StepTensors, number: int) -> str:
    """Return the numbers that a dump gives for a tensor and that are not finite, such as `l1_norm inf`."""
    attributes = side.operands.attributes(number).get("tensor", {})
    numbers = dict(attributes.get("not_finite", {}))
    if "value" in attributes:  # of a row that is a single number
        numbers[side.keys[number].io.rpartition(".")[2]] = attributes["value"]
    return ", ".join(f"{name} {value}" for name, value in numbers.items())
