"""One step of all ranks of A against one of B, whatever the layouts: pieces are put together first."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ingest.questions.compare.by_marginals import confirmed, propose, same_content
from ingest.questions.compare.compared_tensor import ComparedTensor, HeldBy, Verdict
from ingest.questions.compare.dataflow import Dataflow
from ingest.questions.compare.held_tensors import HeldTensors
from ingest.questions.compare.layout_judge import JudgedTensor, LayoutJudge
from ingest.questions.compare.matching import MatchedBy, TensorPair, match_tensors
from ingest.questions.compare.one_sided import one_sided_row, with_last_gradients, without_effect
from ingest.questions.compare.result import FirstDifference
from ingest.questions.compare.runner import PairRunner, answer_each
from ingest.questions.compare.step_comparison import Choices
from ingest.questions.compare.thresholds import default_limit, is_ignored
from ingest.questions.placement.agree import Agreements, Kind, kind_of, kinds_of, placement_text
from ingest.questions.placement.decide import Certainty, Decision, contradicts, decide, settled_by
from ingest.questions.placement.layout_map import LayoutMap
from ingest.reader.flow.step_parts import StepPart, parts_of
from ingest.reader.parallel.told_placement import told_text
from ingest.reader.ranges import named_ranges
from workers.arrays.comparison import no_difference
from workers.arrays.sharded.assembly import replicas
from workers.arrays.sharded.placement_search import is_sum, trimmed
from workers.model import StepKey
from workers.tasks.compare import (
    PairComparison,
    PlacedPair,
    PlacementAnswer,
    PlacementQuestion,
    compare_placed,
    read_placed,
    search_placements,
)

#: Of how many tensors of a kind the values are searched for blocks in any order, if none has any.
_OF_A_KIND = 8
#: How tensors are paired whose values need not agree: their names say that they are the same.
_BY_NAME = frozenset({MatchedBy.MAPPING, MatchedBy.EXACT, MatchedBy.NAME})


@dataclass(slots=True)
class LayoutState:
    """What is kept from step to step."""

    layout_map: LayoutMap
    agreements: Agreements = field(default_factory=Agreements)
    judge: LayoutJudge = field(default_factory=LayoutJudge)
    in_vain: defaultdict[Kind, float] = field(default_factory=lambda: defaultdict(float))
    """By kind, how many tensors no way fits; below zero if the values showed that of any."""


class LayoutComparison:
    """Compares one step of all ranks of A with one of B."""

    def __init__(
        self,
        a: HeldTensors,
        b: HeldTensors,
        choices: Choices,
        state: LayoutState,
        *,
        is_last: bool = False,
        has_other_calls: bool = False,
    ) -> None:
        """Match the tensors of both by name.

        Args:
            a: the tensors of A.
            b: those of B.
            choices: what the user wants.
            state: what earlier steps have shown.
            is_last: no step is compared after this one.
            has_other_calls: calls hold other samples on both sides; see `are_cut_into_other_calls`.
        """
        self._is_last, self._has_other_calls = is_last, has_other_calls
        self._a, self._b, self._choices, self._state = a, b, choices, state
        steps = a.as_step(), b.as_step()
        matching = with_last_gradients(match_tensors(*steps, choices.mapping), *steps)
        self._pairs = {pair.a: pair for pair in matching.pairs if pair.matched_by in _BY_NAME}
        self._guesses = [pair for pair in matching.pairs if pair.matched_by not in _BY_NAME]
        self._only_a = list(matching.only_a)
        self._only_b = list(matching.only_b)
        self._decisions: dict[int, Decision] = {}
        self._outcomes: dict[int, PairComparison] = {}
        """By tensor: how far the two sides are apart, where that was measured to decide."""
        self._problems: dict[int, PlacementAnswer] = {}
        self._odd: dict[int, str] = {}
        """By tensor: what shows that its ranks should hold it in another way."""
        self.counts: Counter[Verdict] = Counter()
        """By verdict; filled by `compare`."""
        self.layout: Counter[tuple[str, str]] = Counter()
        """By placement and certainty; filled by `compare`."""

    @property
    def unreduced(self) -> list[str]:
        """The gradients of parameters of which each rank of A holds a part, if those of others are whole."""
        parts, whole, kinds = [], 0, parts_of(self._a.keys)
        for number, decision in self._decisions.items():
            name, way = self._a.keys[number].name, decision.way
            if (
                way is None
                or kinds[number] is not StepPart.PARAMETER_GRADIENT
                or decision.certainty is not Certainty.CERTAIN
            ):
                continue
            is_part = is_sum(way.a) and not way.same_on_both
            parts += [name] * is_part
            whole += not is_part
        return parts if whole else []

    @property
    def matched(self) -> int:
        """How many tensors have a counterpart."""
        return len(self._pairs)

    @property
    def guessed(self) -> Counter[str]:
        """The numbers of pairs that were guessed, by how."""
        return Counter(pair.matched_by.value for pair in self._pairs.values() if pair.matched_by.is_guess)

    def compare(self, runner: PairRunner) -> list[ComparedTensor]:
        """Compare all tensors; return them in order of execution.

        Raises:
            DumpIngestError: a store or a dump could not be read.
        """
        self._search([pair for pair in self._pairs.values() if self._can_be_read(pair)], runner)
        self._decide_removed([pair for pair in self._pairs.values() if self._is_removed(pair)])
        self._match_by_content(runner)
        self._settle()
        rows = self._judged(self._metrics(runner))
        rows += [*self._unmatched(self._a, self._only_a), *self._unmatched(self._b, self._only_b)]
        rows = without_effect(rows, len(self._pairs), (self._a.keys, self._b.keys))
        self.counts.update(row.verdict for row in rows)
        self.layout.update((row.held.placement, row.held.certainty) for row in rows if row.held)
        return sorted(rows, key=lambda row: (not row.name_a, row.number))

    def first(self, rows: Sequence[ComparedTensor]) -> FirstDifference | None:
        """Return the first tensor that differs, and on which ranks; see `LayoutJudge.first`."""
        first = self._state.judge.first(rows)
        if first is None or (ranks := self._ranks_apart(first.tensor)) == ():
            return first
        why = f"{first.tensor.reason}; only what {named_ranges('rank', ranks)} has differs"
        return replace(first, tensor=replace(first.tensor, reason=why), ranks=ranks)

    def _ranks_apart(self, row: ComparedTensor) -> tuple[int, ...]:
        """Return the ranks whose part or replica of a tensor differs, if others have theirs as B has it."""
        pair, decision = self._pairs.get(row.number), self._decisions.get(row.number)
        if row.key_a.step != self._a.step or pair is None or decision is None or not self._can_be_read(pair):
            return ()
        way, size = decision.way, math.prod(row.shape_a or ())
        if way is None or way.same_on_both or is_sum(way.a) or size > _MOST_ELEMENTS:
            return ()
        limit = row.bound.limit if row.bound else 0.0
        holders, apart = self._a.holders[pair.a], set()
        for choice in replicas(way.a.assembly):
            placed = PlacedPair(self._a.operands(pair.a), self._b.operands(pair.b), choice, way.b.assembly)
            if (read := read_placed(placed)) is None:
                return ()
            a, b = (np.asarray(side, np.float64) for side in read)
            owners = trimmed(choice, way.b.assembly).read(list(map(_Number, range(len(holders)))), 0, a.size)
            apart |= {
                holders[own].rank
                for own in np.unique(owners).tolist()
                if not np.linalg.norm((a - b)[owners == own]) <= limit * np.linalg.norm(b[owners == own])
            }
        return tuple(sorted(apart)) if len(apart) < len(holders) else ()

    def _can_be_read(self, pair: TensorPair) -> bool:
        is_dumped = self._a.is_dumped(pair.a) and self._b.is_dumped(pair.b)
        return is_dumped and not self._is_removed(pair)

    def _is_removed(self, pair: TensorPair) -> bool:
        return self._a.is_removed(pair.a) or self._b.is_removed(pair.b)

    def _search(self, pairs: Iterable[TensorPair], runner: PairRunner) -> None:
        """Decide how the ranks of both sides hold each of these tensors, each by itself."""
        open_pairs = [pair for pair in pairs if not self._have_same_content(pair)]
        if not self._state.layout_map.placements:
            open_pairs = self._without_confirmed(open_pairs, runner)
        of_kind: defaultdict[Kind, list[TensorPair]] = defaultdict(list)
        for pair in open_pairs:
            of_kind[self._kind(pair.a)].append(pair)
        first = [pair for pairs in of_kind.values() for pair in pairs[:_OF_A_KIND]]
        other = [pair for pairs in of_kind.values() for pair in pairs[_OF_A_KIND:]]
        for asked in (first, other):
            questions = [
                replace(
                    self._question(pair.a, pair.b),
                    by_content=self._state.in_vain[self._kind(pair.a)] < _OF_A_KIND,
                )
                for pair in asked
            ]
            answers = answer_each(runner, search_placements, questions)
            for pair, answer in zip(asked, answers, strict=True):
                self._take(pair, answer)

    def _kind(self, tensor: int) -> Kind:
        return kind_of(self._a.keys[tensor], len(self._a.shapes(tensor)[0]))

    def _without_confirmed(self, pairs: Sequence[TensorPair], runner: PairRunner) -> list[TensorPair]:
        """Decide what marginals propose and elements confirm, in one pass over these; return the rest."""
        proposals = {pair: propose(self._a, pair.a, self._b, pair.b) for pair in pairs}
        proposed = [(pair, proposal) for pair, proposal in proposals.items() if proposal is not None]
        jobs = [self._placed(pair, proposal.decision) for pair, proposal in proposed]
        for (pair, proposal), outcome in zip(
            proposed, answer_each(runner, compare_placed, jobs), strict=True
        ):
            dtypes = self._a.dtype(pair.a), self._b.dtype(pair.b)
            decision = confirmed(proposal, outcome.metrics, dtypes) if outcome.metrics else None
            if decision is not None:
                self._decisions[pair.a] = decision
                self._outcomes[pair.a] = outcome
        return [pair for pair in pairs if pair.a not in self._decisions]

    def _decide_removed(self, pairs: Iterable[TensorPair]) -> None:
        """Decide about tensors that were removed from a store: by digests, or by marginals alone."""
        for pair in pairs:
            if self._have_same_content(pair):
                continue
            proposal = propose(self._a, pair.a, self._b, pair.b)
            if proposal is not None and proposal.is_shown:
                self._decisions[pair.a] = proposal.decision

    def _have_same_content(self, pair: TensorPair) -> bool:
        """Return whether digests show that all pieces of both sides are equal, and decide that they are."""
        decision = same_content(self._a, pair.a, self._b, pair.b)
        if decision is None:
            return False
        size = math.prod(self._b.shapes(pair.b)[0])
        self._decisions[pair.a] = decision
        self._outcomes[pair.a] = PairComparison(no_difference(size), "digest")
        return True

    def _placed(self, pair: TensorPair, decision: Decision) -> PlacedPair:
        way = decision.way
        assert way is not None  # noqa: S101  (for mypy)
        operands = self._a.operands(pair.a), self._b.operands(pair.b)
        return PlacedPair(*operands, *(way.worst or (way.a.assembly, way.b.assembly)))

    def _take(self, pair: TensorPair, answer: PlacementAnswer) -> None:
        if answer.problem:
            self._problems[pair.a] = answer
        else:
            dtypes = self._a.dtype(pair.a), self._b.dtype(pair.b)
            decision = self._decisions[pair.a] = decide(answer.search, dtypes)
            fits_by_content = decision.fits and answer.search.order is not None
            self._state.in_vain[self._kind(pair.a)] += -math.inf if fits_by_content else not decision.fits

    def _question(self, a: int, b: int) -> PlacementQuestion:
        return PlacementQuestion(
            self._a.operands(a), self._b.operands(b), self._a.pieces(a), self._b.pieces(b)
        )

    def _match_by_content(self, runner: PairRunner) -> None:
        """Pair tensors whose names only one side has, if their values agree in some way.

        So the output of a row-parallel layer before its reduction is found to be a partial sum of the output.
        """
        candidates = [*self._guesses, *self._neighbours()]
        candidates = [pair for pair in candidates if self._can_be_read(pair)]
        questions = [self._question(pair.a, pair.b) for pair in candidates]
        answers = answer_each(runner, search_placements, questions)
        taken: set[int] = set()
        for pair, answer in zip(candidates, answers, strict=True):
            decision = decide(answer.search, (self._a.dtype(pair.a), self._b.dtype(pair.b)))
            if pair.a in self._pairs or decision.certainty is not Certainty.CERTAIN:
                continue
            self._pairs[pair.a] = pair
            self._decisions[pair.a] = decision
            taken.add(pair.b)
        guessed = {pair.a for pair in self._guesses}
        only_b = {*self._only_b, *(pair.b for pair in self._guesses)} - taken
        self._only_a = sorted({*self._only_a, *guessed} - self._pairs.keys())
        self._only_b = sorted(only_b)

    def _neighbours(self) -> Iterator[TensorPair]:
        """Yield pairs of a tensor that only A has and one of B that was executed soon after it."""
        place_in_b = {pair.a: pair.b for pair in self._pairs.values()}
        for a in self._only_a:
            later = next(
                (place_in_b[after] for after in range(a, len(self._a.keys)) if after in place_in_b), None
            )
            if later is None or len(self._a.holders[a]) < 2:
                continue
            for b in range(later, min(later + _NEIGHBOURS, len(self._b.keys))):
                if len(self._a.shapes(a)[0]) == len(self._b.shapes(b)[0]) > 0:
                    yield TensorPair(a, b, MatchedBy.CONTENT)

    def _settle(self) -> None:
        """Settle what is open by what the dump tells, others of the same kind, and the user's map."""
        agreements = self._state.agreements
        kinds = {n: kinds_of(self._a.keys[n], len(self._a.shapes(n)[0])) for n in self._decisions}
        for number, decision in self._decisions.items():
            told = self._a.told(number) if len(self._a.holders[number]) > 1 else {}
            checked = self._decisions[number] = settled_by(told, decision)
            if contradicts(told, checked):
                self._odd[number] = f"the dump tells {told_text(told)}"
            elif not self._is_awaited_sum(number, checked):
                agreements.learn([kinds[number][0]], checked)
        for number, decision in self._decisions.items():
            agreed = agreements.settle(kinds[number], decision)
            mapped = self._decisions[number] = self._state.layout_map.apply(self._a.keys[number].name, agreed)
            if mapped.way is not decision.way:
                self._outcomes.pop(number, None)  # it was measured in another way

    def _is_awaited_sum(self, number: int, decision: Decision) -> bool:
        """Return whether ranks may hold a sum only because nobody waited for its reduction yet."""
        return decision.way is not None and is_sum(decision.way.a) and self._a.is_awaited(number)

    def _metrics(self, runner: PairRunner) -> dict[int, PairComparison]:
        """Return by tensor how far the two sides are apart, put together as decided."""
        numbers, jobs = [], []
        for number, decision in self._decisions.items():
            pair = self._pairs[number]
            if decision.way is not None and number not in self._outcomes and not self._is_removed(pair):
                numbers.append(number)
                jobs.append(self._placed(pair, decision))
        compared = dict(zip(numbers, answer_each(runner, compare_placed, jobs), strict=True))
        return self._outcomes | compared

    def _judged(self, outcomes: dict[int, PairComparison]) -> list[ComparedTensor]:
        """Return the rows of all pairs, judged in order of execution."""
        tensors = [
            JudgedTensor(
                self._row(pair),
                self._decisions.get(number),
                outcomes.get(number),
                self._a.keys[number],
                self._b.shapes(pair.b)[0],
                self._odd.get(number, ""),
                self._problem(pair),
                self._a.pieces(pair.a).identical,
                zeros=self._a.zeros(pair.a),
                usual=self._usual(number),
            )
            for number, pair in sorted(self._pairs.items())
        ]
        rows = self._state.judge.judge(
            tensors,
            self._choices.thresholds,
            Dataflow(
                self._a.keys,
                (self._a.contents, self._b.contents),
                {number: pair.b for number, pair in self._pairs.items()},
            ),
            self._elements,
            fixed=self._choices.fixed_limits,
            is_last=self._is_last,
            has_other_calls=self._has_other_calls,
        )
        return [self._by_marginals(row) for row in rows]

    def _usual(self, number: int) -> str:
        """Return how ranks hold others of the kind of a tensor, if most are held in another way; else ""."""
        decision = self._decisions.get(number)
        return self._state.agreements.odd(self._kind(number), decision) if decision else ""

    def _elements(self, number: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]] | None:
        """Return the elements of both sides, put together as decided; None if they cannot be read."""
        pair, decision = self._pairs.get(number), self._decisions.get(number)
        if pair is None or decision is None or decision.way is None or not self._can_be_read(pair):
            return None
        return read_placed(self._placed(pair, decision))

    def _by_marginals(self, row: ComparedTensor) -> ComparedTensor:
        """Return a row whose elements are gone as close if marginals agree within the limit of its type."""
        decision = self._decisions.get(row.number)
        if decision is None or decision.certainty is not Certainty.BY_MARGINALS or decision.way is None:
            return row
        limit = max(default_limit(row.dtype_a), default_limit(row.dtype_b))
        verdict = Verdict.CLOSE if decision.way.error <= limit else Verdict.UNKNOWN
        reason = f"elements were removed from the store; {decision.explanation}"
        return replace(row, verdict=verdict, reason=reason, basis="marginals")

    def _problem(self, pair: TensorPair) -> tuple[str, bool]:
        if answer := self._problems.get(pair.a):
            return answer.problem, answer.damaged
        if self._is_removed(pair):
            return "elements were removed from the store", False
        return ("", False) if self._can_be_read(pair) else ("elements were not dumped", False)

    def _row(self, pair: TensorPair) -> ComparedTensor:
        a, b = self._a, self._b
        key, decision = a.keys[pair.a], self._decisions.get(pair.a)
        way = decision.way if decision else None
        shapes = (
            (way.a.assembly.shape, way.b.assembly.shape)
            if way
            else (a.shapes(pair.a)[0], b.shapes(pair.b)[0])
        )
        holders_a, holders_b = a.holders[pair.a], b.holders[pair.b]
        held = HeldBy(
            tuple(holder.rank for holder in holders_a),
            tuple(holder.rank for holder in holders_b),
            placement_text(decision) if decision else "?",
            decision.certainty.value if decision else Certainty.OPEN.value,
            decision.explanation if decision else "",
        )
        return ComparedTensor(
            key_a=StepKey(holders_a[0].rank, a.step),
            key_b=StepKey(holders_b[0].rank, b.step),
            number=pair.a,
            name_a=key.name,
            name_b=b.keys[pair.b].name,
            graph=key.graph,
            op_type=key.op_type,
            io=key.io,
            dtype_a=a.dtype(pair.a),
            dtype_b=b.dtype(pair.b),
            shape_a=shapes[0],
            shape_b=shapes[1],
            verdict=Verdict.UNKNOWN,
            matched=pair.matched_by.value,
            guessed=pair.matched_by.is_guess,
            held=held,
        )

    def _unmatched(self, side: HeldTensors, numbers: Iterable[int]) -> Iterator[ComparedTensor]:
        is_a = side is self._a
        for number in numbers:
            form = side.dtype(number), side.shapes(number)[0]
            where = StepKey(side.holders[number][0].rank, side.step)
            name, dtype = side.keys[number].name, form[0]
            limits = self._choices.thresholds.limits((name, name), (dtype, dtype))
            only = Verdict.ONLY_A if is_a else Verdict.ONLY_B
            verdict = Verdict.IGNORED if is_ignored(limits) else only
            yield one_sided_row((where, where), number, side.keys[number], form, verdict, is_a=is_a)


#: The most elements of a tensor that are read to see which ranks differ.
_MOST_ELEMENTS = 1 << 26


@dataclass(frozen=True, slots=True)
class _Number:
    """A piece whose elements are its number: put together, pieces show where each of them lies."""

    number: int

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return the elements of a range."""
        return np.full(stop - start, self.number)


#: How many tensors of B are tried for one whose name only A has.
_NEIGHBOURS = 4
