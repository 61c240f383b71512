"""How ranks hold the tensors of a step: each pair is put together from the pieces of all ranks, and measured.

Digests decide first, then marginals with one pass over the elements, then a search among all known ways.
Marginals refute all plain ways but one with some thousand numbers, of which a step of a rank has all in one
request. The elements then have to confirm that way, in the same pass that measures the difference. Without
them, because the tensors were removed, the marginals are the answer.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from ingest.identities.limits import unit_of
from ingest.questions.compare.differences import Measured, but_for_factor
from ingest.questions.compare.held_tensors import HeldTensors
from ingest.questions.compare.matching import MatchedBy, TensorPair
from ingest.questions.compare.result import ComparedTensor, HeldBy, Verdict
from ingest.questions.compare.runner import PairRunner, answer_each
from ingest.questions.compare.thresholds import default_limit, relative_difference
from ingest.questions.placement.agree import Agreements, Kind, kind_of, kinds_of, placement_text
from ingest.questions.placement.decide import (
    Certainty,
    Decision,
    contradicts,
    decide,
    explain_difference,
    fit_limit,
    settled_by,
)
from ingest.questions.placement.layout_map import LayoutMap
from ingest.reader.operator_kinds import StepPart, is_numbered, parts_of
from ingest.reader.unsharded import told_text
from workers.arrays.comparison import Metrics, no_difference
from workers.arrays.sharded.assembly import Assembly, Piece, Same, replicas
from workers.arrays.sharded.placement import (
    Dimension,
    Held,
    MarginalWay,
    MeshGrid,
    Placement,
    held_as,
    placements,
    ways_held,
)
from workers.arrays.sharded.placement_search import ScoredWay, Search, is_sum, trimmed
from workers.arrays.statistics import FIELDS
from workers.tasks.compare import (
    PairComparison,
    PlacedPair,
    PlacementAnswer,
    PlacementQuestion,
    compare_placed,
    read_placed,
    search_placement,
)

#: Of how many tensors of a kind ways are searched further than the usual ones, if that finds none.
_OF_A_KIND = 3
#: How many tensors of B are tried for one whose name only A has.
_NEIGHBOURS = 4
#: The most elements of a tensor that are read to see which ranks differ.
_MOST_ELEMENTS = 1 << 26
#: How close the ratio of a gradient must be to the number of data-parallel ranks, at least.
_FACTOR = 1e-3
#: Ways of pairing by name alone, whether or not the values agree.
_BY_NAME = frozenset({MatchedBy.MAPPING, MatchedBy.EXACT, MatchedBy.NAME})
#: With which certainty ranks hold parts of a sum.
_SHOWN = frozenset({Certainty.CERTAIN, Certainty.AGREED})


def replicated_on(side: HeldTensors, tensor: int) -> Placement:
    """Return the placement of a tensor of which all ranks of a side hold the same."""
    shapes = side.shapes(tensor)
    if len(shapes) == 1:
        return Placement((), Piece(0, shapes[0]))
    parts: tuple[Assembly, ...] = tuple(Piece(number, shape) for number, shape in enumerate(shapes))
    grid = side.pieces(tensor).grid
    names = grid.names if grid is not None and len(grid.names) == 1 else ("",)
    return Placement((Dimension(Held.REPLICATED, len(shapes), None, names[0]),), Same(parts))


def propose(
    a: HeldTensors, tensor_a: int, b: HeldTensors, tensor_b: int
) -> tuple[Decision, str, bool] | None:
    """Return the only plain way that marginals leave; None if they are not known, leave several or none.

    Of replicas that differ, the worst has to be found by elements; and a mesh of several dimensions has more
    ways than marginals are compared for.

    Returns:
        The way; a sentence on the next best one; and whether marginals also tell the order of what is cut.
    """
    pieces, whole = a.pieces(tensor_a), b.pieces(tensor_b)
    grid, count = pieces.grid, len(pieces.shapes)
    has_order = grid is None or (len(grid.names) == 1 and np.array_equal(grid.numbers, np.arange(count)))
    if not has_order or (len(whole.shapes) > 1 and not whole.identical):
        return None
    of_whole = b.marginals(tensor_b, 0)
    of_pieces = [a.marginals(tensor_a, place) for place in range(len(pieces.shapes))]
    if not of_whole or not all(of_pieces):
        return None
    ways = ways_held(of_pieces, pieces.shapes, of_whole, whole.shapes[0])
    best = held_as(ways)
    if best is None or (best.held is Held.REPLICATED and not pieces.identical):
        return None
    named = MeshGrid(grid.names if grid is not None else ("",), np.arange(count))
    placement = _placement(best, named, pieces.shapes, whole.shapes[0]) if count > 1 else None
    if placement is None:
        return None
    off = min((way.error for way in ways[1:]), default=math.inf)
    others = f"every other plain way is off by {off:.1e} or more"
    others = "the shapes allow no other plain way" if math.isinf(off) else others
    scored = ScoredWay(placement, replicated_on(b, tensor_b), best.error)
    text = f"the marginals agree within {best.error:.1e}; {others}"
    decision = Decision(scored, Certainty.BY_MARGINALS, text, search=Search((scored,)))
    return decision, others, best.axis is None or best.axis in of_whole


def _placement(
    way: MarginalWay, grid: MeshGrid, shapes: Sequence[tuple[int, ...]], whole: tuple[int, ...]
) -> Placement | None:
    for placement in placements(grid, shapes, whole):
        if (placement.dimensions[0].held, placement.dimensions[0].axis) == (way.held, way.axis):
            return placement
    return None


def _confirmed(proposed: Decision, others: str, metrics: Metrics, dtypes: Sequence[str]) -> Decision | None:
    """Return the decision that elements confirm; None if they do not agree in the proposed way."""
    error = relative_difference(metrics)
    way = proposed.way
    if way is None or error > fit_limit(dtypes):
        return None
    factor = metrics.cosine * metrics.norm_ratio
    rest = math.sqrt(max(1.0 - metrics.cosine**2, 0.0))
    scored = replace(way, error=error, factor=factor, error_besides_factor=rest)
    text = f"relative error {error:.1e}; by marginals, {others}"
    return Decision(scored, Certainty.CERTAIN, text, search=Search((scored,)))


@dataclass(frozen=True, slots=True)
class AssembledTensor:
    """How the ranks of both sides hold a tensor."""

    decision: Decision | None
    held: HeldBy
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    """Put together, of A and of B."""
    odd: str
    """What the dump tells of how its ranks hold it, if values show otherwise; else ""."""
    usual: str
    """How ranks hold others of its kind, if most are held in another way; else ""."""
    is_same_everywhere: bool
    """Whether all ranks of A hold the same bytes."""
    note: str = ""

    @property
    def way(self) -> ScoredWay | None:
        """The way in which it was put together; None if that is open."""
        return self.decision.way if self.decision else None

    @property
    def is_alike(self) -> bool:
        """Whether ranks hold it whole, or cut alike on both sides, so that operators on it do the same."""
        way = self.way
        if way is None:
            return False
        held = {dimension.held for dimension in (*way.a.dimensions, *way.b.dimensions)}
        return way.same_on_both or held <= {Held.REPLICATED}

    @property
    def is_of_one_rank(self) -> bool:
        """Whether one rank alone holds it, on either side."""
        return self.way is not None and not (self.way.a.dimensions or self.way.b.dimensions)

    @property
    def cuts(self) -> frozenset[Held]:
        """The ways in which it is cut, along whatever axis."""
        return frozenset(cut.held for cut in self.way.a.dimensions) if self.way else frozenset()

    @property
    def is_certain_sum(self) -> bool:
        """Whether ranks are known to hold parts of what is whole in B."""
        decision = self.decision
        way = decision.way if decision and decision.certainty in _SHOWN else None
        return way is not None and is_sum(way.a) and not way.same_on_both

    def measured(self, known: Measured, problem: str) -> Measured | None:
        """Return how far both sides are apart, with how they are held; None if nothing could be read."""
        way = self.way
        if known.metrics is None and (problem or self.decision is None or way is not None):
            return None
        return known._replace(
            shape=self.shapes[1],
            fits=known.metrics is not None,
            spread=way.spread if way else 0.0,
            is_alike=self.is_alike,
            averaged=_ranks_of_mean(way.a) / _ranks_of_mean(way.b) if way else 1.0,
        )

    def explained(self, row: ComparedTensor) -> ComparedTensor:
        """Return a judged row with what the way in which ranks hold the tensor adds to its verdict."""
        decision, bound = self.decision, row.bound
        if decision and decision.way and decision.certainty is Certainty.BY_MARGINALS:
            limit = max(default_limit(row.dtype_a), default_limit(row.dtype_b))
            verdict = Verdict.CLOSE if decision.way.error <= limit else Verdict.UNKNOWN
            reason = f"elements were removed from the store; {decision.explanation}"
            return replace(row, verdict=verdict, reason=reason, basis="marginals")
        if row.metrics is None:
            return replace(row, reason=row.reason or (decision.explanation if decision else ""))
        if self.odd:
            reason = f"its ranks hold it as {self.held.placement}, and {self.odd}"
            bound = bound and replace(bound, explained=False)
            return replace(row, verdict=Verdict.DIFFERENT, reason=reason, bound=bound)
        if row.verdict is Verdict.DIFFERENT and decision is not None:
            return replace(row, reason="; ".join(filter(None, (row.reason, explain_difference(decision)))))
        if row.verdict is Verdict.CLOSE and decision is not None:
            is_likely = decision.certainty is Certainty.LIKELY
            verdict, reason = (Verdict.UNKNOWN, row.reason) if is_likely else (row.verdict, self.note)
            return replace(row, verdict=verdict, reason=reason or row.reason)
        return row


def _ranks_of_mean(held: Placement) -> int:
    return math.prod(cut.size for cut in held.dimensions if cut.held is Held.MEAN)


@dataclass(slots=True)
class SeenPlacements:
    """What is kept from step to step."""

    layout_map: LayoutMap
    agreements: Agreements = field(default_factory=Agreements)
    in_vain: defaultdict[Kind, float] = field(default_factory=lambda: defaultdict(float))
    """By kind, how many tensors no way fits; below zero if that of any was found by a further search."""
    guessed_in_vain: Counter[Kind] = field(default_factory=Counter)
    """By kind, how many tensors that no name pairs are not those of B that were tried."""


class Placing:
    """Puts the tensors of one step of all ranks of A and of B together."""

    def __init__(self, a: HeldTensors, b: HeldTensors, seen: SeenPlacements, runner: PairRunner) -> None:
        """Begin with the tensors of both sides, and what earlier steps have shown."""
        self._a, self._b, self._seen, self._runner = a, b, seen, runner
        self._pairs: dict[int, TensorPair] = {}
        self._decisions: dict[int, Decision] = {}
        self._outcomes: dict[int, PairComparison] = {}
        """By tensor: how far the two sides are apart, where that was measured to decide."""
        self._coarsest = ""
        """The type that rounds most, of those of the step."""
        self._problems: dict[int, PlacementAnswer] = {}
        self._odd: dict[int, str] = {}
        """By tensor: what shows that its ranks should hold it in another way."""

    def paired(self, matched: Iterable[TensorPair], only_a: Iterable[int]) -> list[TensorPair]:
        """Return the pairs that names tell, and those of which values agree in some way; decide about all.

        So the output of a row-parallel layer before its reduction is found to be a partial sum of the output.
        `only_a` are the tensors of A that are not matched.

        Raises:
            DumpIngestError: a store or a dump could not be read.
        """
        matched, uneven = list(matched), self._uneven_functions()
        is_named = [pair.matched_by in _BY_NAME and pair.a not in uneven for pair in matched]
        self._pairs = {pair.a: pair for pair in compress(matched, is_named)}
        guesses = [pair for pair, is_known in zip(matched, is_named, strict=True) if not is_known]
        dtypes = {dtype for pair in self._pairs.values() for dtype in self._own_dtypes(pair)}
        self._coarsest = max(sorted(dtypes), key=unit_of, default="")
        self._search([pair for pair in self._pairs.values() if self.can_be_read(pair)])
        self._decide_removed([pair for pair in self._pairs.values() if self._is_removed(pair)])
        self._match_by_content([*guesses, *self._neighbours(only_a)])
        self._settle()
        return [pair for _, pair in sorted(self._pairs.items())]

    def _uneven_functions(self) -> set[int]:
        """Return tensors of A of functions that the sides do not call equally often outside of all modules.

        One more call, as where a program cuts the batch for its ranks, moves the numbers of all others.
        """
        of_a, of_b = (
            {key[2:4] for key in side.keys if is_numbered(key.op_type, key.op_name)}
            for side in (self._a, self._b)
        )
        counts = [Counter(op_type for op_type, _ in calls) for calls in (of_a, of_b)]
        uneven = {call for call in of_a if counts[0][call[0]] != counts[1][call[0]]}
        return {number for number, key in enumerate(self._a.keys) if key[2:4] in uneven}

    def measure(
        self, parts: Sequence[StepPart]
    ) -> Iterator[tuple[TensorPair, PairComparison, AssembledTensor]]:
        """Yield how far the two sides of each pair are apart, put together as decided.

        Raises:
            DumpIngestError: a store or a dump could not be read.
        """
        wanted = [
            (number, self._placed(pair, decision))
            for number, decision in self._decisions.items()
            for pair in (self._pairs[number],)
            if decision.way is not None and number not in self._outcomes and not self._is_removed(pair)
        ]
        answers = answer_each(self._runner, compare_placed, [job for _, job in wanted])
        outcomes = self._outcomes | dict(zip([number for number, _ in wanted], answers, strict=True))
        batches = self._cuts_of_batches(parts)
        usual = set[float]()
        for number, pair in sorted(self._pairs.items()):
            outcome = outcomes.get(number) or self._unread(pair)
            placed = self._held(pair)
            if parts[number] is StepPart.GRADIENT or (parts[number].is_gradient and placed.is_of_one_rank):
                limit = fit_limit(self._dtypes(pair))
                outcome, placed, factor = _rescaled(outcome, placed, batches, usual, limit)
                usual |= {factor} - {1.0}
            yield pair, outcome, placed

    def elements(self, number: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]] | None:
        """Return the elements of both sides, put together as decided; None if they cannot be read."""
        pair, decision = self._pairs.get(number), self._decisions.get(number)
        if pair is None or decision is None or decision.way is None or not self.can_be_read(pair):
            return None
        return read_placed(self._placed(pair, decision))

    def ranks_apart(self, row: ComparedTensor) -> tuple[int, ...]:
        """Return the ranks whose part or replica of a tensor differs, if others have theirs as B has it."""
        pair, decision = self._pairs.get(row.number), self._decisions.get(row.number)
        if row.key_a.step != self._a.step or pair is None or decision is None or not self.can_be_read(pair):
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

    def unreduced(self, parts: Sequence[StepPart]) -> list[str]:
        """Return the gradients of parameters of which ranks of A hold parts, if those of others are whole."""
        sums, whole = [], 0
        for number, decision in self._decisions.items():
            is_gradient = parts[number] is StepPart.PARAMETER_GRADIENT
            if decision.way is None or not is_gradient or decision.certainty is not Certainty.CERTAIN:
                continue
            is_part = is_sum(decision.way.a) and not decision.way.same_on_both
            sums += [self._a.keys[number].name] * is_part
            whole += not is_part
        return sums if whole else []

    def holders(self, number: int, *, is_a: bool) -> tuple[int, ...]:
        """Return the ranks of a side that hold a tensor of it."""
        return tuple(holder.rank for holder in (self._a if is_a else self._b).holders[number])

    def can_be_read(self, pair: TensorPair) -> bool:
        """Return whether the elements of all pieces are there."""
        is_dumped = self._a.is_dumped(pair.a) and self._b.is_dumped(pair.b)
        return is_dumped and not self._is_removed(pair)

    def _is_removed(self, pair: TensorPair) -> bool:
        return self._a.is_removed(pair.a) or self._b.is_removed(pair.b)

    def _search(self, pairs: Iterable[TensorPair]) -> None:
        open_pairs = [pair for pair in pairs if not self._have_same_content(pair)]
        if not self._seen.layout_map.placements:
            open_pairs = self._without_confirmed(open_pairs)
        of_kind: defaultdict[Kind, list[TensorPair]] = defaultdict(list)
        for pair in open_pairs:
            of_kind[self._kind(pair.a)].append(pair)
        first = [pair for pairs in of_kind.values() for pair in pairs[:_OF_A_KIND]]
        other = [pair for pairs in of_kind.values() for pair in pairs[_OF_A_KIND:]]
        for asked in (first, other):
            questions = [self._question(pair, self._seen.in_vain) for pair in asked]
            answers = answer_each(self._runner, search_placement, questions)
            for pair, answer in zip(asked, answers, strict=True):
                self._take(pair, answer)

    def _kind(self, tensor: int) -> Kind:
        return kind_of(self._a.keys[tensor], len(self._a.shapes(tensor)[0]))

    def _without_confirmed(self, pairs: Sequence[TensorPair]) -> list[TensorPair]:
        """Decide what marginals propose and elements confirm, in one pass over these; return the rest."""
        proposals = [(pair, propose(self._a, pair.a, self._b, pair.b)) for pair in pairs]
        proposed = [(pair, *proposal) for pair, proposal in proposals if proposal is not None]
        jobs = [self._placed(pair, decision) for pair, decision, *_ in proposed]
        answers = answer_each(self._runner, compare_placed, jobs)
        for (pair, way, others, _), outcome in zip(proposed, answers, strict=True):
            dtypes, metrics = self._dtypes(pair), outcome.metrics
            if metrics is not None and (decision := _confirmed(way, others, metrics, dtypes)):
                self._decisions[pair.a], self._outcomes[pair.a] = decision, outcome
        return [pair for pair in pairs if pair.a not in self._decisions]

    def _decide_removed(self, pairs: Iterable[TensorPair]) -> None:
        for pair in pairs:
            if self._have_same_content(pair):
                continue
            proposal = propose(self._a, pair.a, self._b, pair.b)
            if proposal is not None and proposal[2]:
                self._decisions[pair.a] = proposal[0]

    def _have_same_content(self, pair: TensorPair) -> bool:
        a, b = self._a, self._b
        digests = {*a.digests(pair.a), *b.digests(pair.b)}
        if len(digests) != 1 or not any(next(iter(digests))[0]):
            return False
        way = ScoredWay(replicated_on(a, pair.a), replicated_on(b, pair.b), 0.0, 1.0, 0.0)
        reason = "all pieces have the same digest"
        self._decisions[pair.a] = Decision(way, Certainty.CERTAIN, reason, search=Search((way,)))
        size = math.prod(b.shapes(pair.b)[0])
        self._outcomes[pair.a] = PairComparison(no_difference(size), "digest")
        return True

    def _dtypes(self, pair: TensorPair) -> tuple[str, ...]:
        """Return the types of both sides; of floats, also the coarsest of the step: they may come of it."""
        own = self._own_dtypes(pair)
        return (*own, self._coarsest) if any(map(unit_of, own)) else own

    def _own_dtypes(self, pair: TensorPair) -> tuple[str, str]:
        return self._a.dtype(pair.a), self._b.dtype(pair.b)

    def _placed(self, pair: TensorPair, decision: Decision) -> PlacedPair:
        way = decision.way
        assert way is not None  # noqa: S101  (for mypy)
        operands = self._a.operands(pair.a), self._b.operands(pair.b)
        return PlacedPair(*operands, *(way.worst or (way.a.assembly, way.b.assembly)))

    def _take(self, pair: TensorPair, answer: PlacementAnswer) -> None:
        if answer.problem:
            self._problems[pair.a] = answer
        else:
            search, is_number = answer.search, math.prod(self._b.shapes(pair.b)[0]) == 1
            (part,) = parts_of([self._a.keys[pair.a]])
            decision = self._decisions[pair.a] = decide(
                search, self._dtypes(pair), may_be_mean=part.is_gradient or is_number
            )
            is_worth_it = decision.fits and (search.order is not None or search.is_unusual)
            self._seen.in_vain[self._kind(pair.a)] += -math.inf if is_worth_it else not decision.fits

    def _question(self, pair: TensorPair, in_vain: Mapping[Kind, float]) -> PlacementQuestion:
        """Return what is asked of a pair; no further than the usual ways if that was in vain for its kind."""
        a, b, further = self._a, self._b, in_vain.get(self._kind(pair.a), 0) < _OF_A_KIND
        pieces = a.pieces(pair.a), b.pieces(pair.b)
        return PlacementQuestion(a.operands(pair.a), b.operands(pair.b), *pieces, further)

    def _match_by_content(self, candidates: Iterable[TensorPair]) -> None:
        """Pair tensors whose values agree in some way."""
        candidates, in_vain = list(filter(self.can_be_read, candidates)), self._seen.guessed_in_vain
        questions = [self._question(pair, in_vain) for pair in candidates]
        answers = answer_each(self._runner, search_placement, questions)
        for pair, answer in zip(candidates, answers, strict=True):
            decision = decide(answer.search, self._dtypes(pair))
            if pair.a in self._pairs or decision.certainty is not Certainty.CERTAIN:
                in_vain[self._kind(pair.a)] += 1
                continue
            self._pairs[pair.a], self._decisions[pair.a] = pair, decision

    def _neighbours(self, only_a: Iterable[int]) -> Iterator[TensorPair]:
        """Yield pairs of a tensor that only A has and one of B that was executed soon after it."""
        place_in_b = {pair.a: pair.b for pair in self._pairs.values()}
        for a in only_a:
            later = next(
                (place_in_b[after] for after in range(a, len(self._a.keys)) if after in place_in_b), None
            )
            if later is None or len(self._a.holders[a]) < 2:
                continue
            for b in range(later, min(later + _NEIGHBOURS, len(self._b.keys))):
                if len(self._a.shapes(a)[0]) == len(self._b.shapes(b)[0]) > 0:
                    yield TensorPair(a, b, MatchedBy.CONTENT)

    def _settle(self) -> None:
        agreements = self._seen.agreements
        kinds = {n: kinds_of(self._a.keys[n], len(self._a.shapes(n)[0])) for n in self._decisions}
        for number, decision in self._decisions.items():
            told = self._a.told(number) if len(self._a.holders[number]) > 1 else {}
            checked = self._decisions[number] = settled_by(told, decision)
            if contradicts(told, checked) and not self._is_same_everywhere(number, checked):
                self._odd[number] = f"the dump tells {told_text(told)}"
            elif self._tells(number) and not (
                checked.way is not None and is_sum(checked.way.a) and self._a.is_awaited(number)
            ):
                # Else, ranks may hold a sum only because nobody waited for its reduction yet.
                agreements.learn([kinds[number][0]], checked)
        for number, decision in self._decisions.items():
            agreed = agreements.settle(kinds[number], decision)
            mapped = self._decisions[number] = self._seen.layout_map.apply(self._a.keys[number].name, agreed)
            if mapped.way is not decision.way:
                self._outcomes.pop(number, None)  # it was measured in another way

    def _tells(self, number: int) -> bool:
        """Return whether a tensor is not constant: a bias that begins with zeros fits any way."""
        holder = self._a.holders[number][0]
        statistics = self._a.ranks[holder.rank].statistics[holder.number]
        return bool(statistics[FIELDS.index("min")] != statistics[FIELDS.index("max")])

    def _is_same_everywhere(self, number: int, decision: Decision) -> bool:
        """Return whether all ranks of both sides hold the same bytes, as they do of shards of ones, too."""
        is_replicated = decision.way is not None and set(decision.way.kinds) == {Held.REPLICATED.value}
        a, b = self._a.pieces(number), self._b.pieces(self._pairs[number].b)
        return is_replicated and a.identical and b.identical

    def _unread(self, pair: TensorPair) -> PairComparison:
        """Return why a pair was not measured; without a problem if it is open how it is held."""
        if answer := self._problems.get(pair.a):
            return PairComparison(None, problem=answer.problem, damaged=answer.damaged)
        if self._is_removed(pair):
            return PairComparison(None, problem="elements were removed from the store")
        return PairComparison(None, problem="" if self.can_be_read(pair) else "elements were not dumped")

    def _held(self, pair: TensorPair) -> AssembledTensor:
        a, b, decision = self._a, self._b, self._decisions.get(pair.a)
        way = decision.way if decision else None
        return AssembledTensor(
            decision,
            HeldBy(
                self.holders(pair.a, is_a=True),
                self.holders(pair.b, is_a=False),
                placement_text(decision) if decision else "?",
                decision.certainty.value if decision else Certainty.OPEN.value,
                decision.explanation if decision else "",
            ),
            (way.a.assembly.shape, way.b.assembly.shape)
            if way
            else (a.shapes(pair.a)[0], b.shapes(pair.b)[0]),
            self._odd.get(pair.a, ""),
            self._seen.agreements.odd(self._kind(pair.a), decision) if decision else "",
            a.pieces(pair.a).identical,
        )

    def _cuts_of_batches(self, parts: Sequence[StepPart]) -> frozenset[tuple[int | None, int]]:
        """Return along which axis, over how many ranks, batches are cut: as tokens and what comes first."""
        keys, numbers = self._a.keys, [n for n in sorted(self._pairs) if not parts[n].is_of_parameter]
        # What the model reads in all of its calls: what it evaluates may be other samples on each rank.
        model = keys[numbers[0]]._replace(occurrence=0) if numbers else None
        told = [n for n in numbers if keys[n]._replace(occurrence=0) == model or "int" in self._a.dtype(n)]
        ways = [way for n in told if n in self._decisions and (way := self._decisions[n].way) is not None]
        cuts = (cut for way in ways for cut in (*way.a.dimensions, *way.b.dimensions))
        return frozenset((cut.axis, cut.size) for cut in cuts if cut.axis is not None)


def _rescaled(
    outcome: PairComparison,
    placed: AssembledTensor,
    batches: frozenset[tuple[int | None, int]],
    usual: Collection[float],
    limit: float,
) -> tuple[PairComparison, AssembledTensor, float]:
    """Return a gradient of activations without the factor that data parallelism gives it, and that factor.

    Each rank averages the loss over its own share of the batch, so what is cut along the batch has gradients
    that are as many times larger. Gradients of parameters are averaged afterwards, and must not have that.

    Args:
        outcome: how far both sides are apart.
        placed: how ranks hold it.
        batches: along which axis, over how many ranks, batches are cut.
        usual: the factors of others in the step. What one rank holds of samples of all, as an expert does,
            has one of these. It may be divided after it was dumped: the parameter of the next step tells.
        limit: the largest relative error with which both sides hold the same.
    """
    way = placed.way
    if not way or outcome.metrics is None:
        return outcome, placed, 1.0
    own, other = (
        {cut.size for cut in side.dimensions if (cut.axis, cut.size) in batches} for side in (way.a, way.b)
    )
    if any(cut.held is Held.MEAN and cut.size in own for cut in way.a.dimensions):
        # Parts of a sum that is as many times larger look like a mean.
        return outcome, replace(placed, odd=""), 1.0
    factors = {of_a / of_b for of_a in own - other or {1} for of_b in other - own or {1}} - {1.0}
    if placed.is_of_one_rank:
        factors = factors.union(usual)
    # What rounding leaves of the values decides how well their factor is known.
    near = max(_FACTOR, min(way.error_besides_factor, limit))
    factor = next((each for each in factors if math.isclose(way.factor, each, rel_tol=near)), None)
    if factor is None:
        return outcome, placed, 1.0
    metrics = but_for_factor(outcome.metrics, factor)
    note = f"{factor:g} times B, as each rank averages the loss over its share of the batch"
    return replace(outcome, metrics=metrics), replace(placed, note=note), factor


@dataclass(frozen=True, slots=True)
class _Number:
    """A piece whose elements are its number: put together, pieces show where each of them lies."""

    number: int

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return the elements of a range."""
        return np.full(stop - start, self.number)
