"""Tensors of two programs that ran different operators: paired as their calls are aligned."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import TypeAlias

from ingest.questions.compare.alignment.align import AlignedCalls, Alignment, Gap, align
from ingest.questions.compare.alignment.calls import OperatorCall, Value, calls_of, classes_of, with_contents
from ingest.questions.compare.matching import (
    Form,
    MatchedBy,
    Matching,
    TensorPair,
    without_numbers,
)
from ingest.questions.compare.result import OperatorGap, Why
from ingest.questions.compare.runner import PairRunner, batched
from ingest.questions.compare.step_tensors import StepTensors
from ingest.reader.operator_kinds import is_input
from workers.store.consolidated.blocks import OperatorKey
from workers.tasks.compare import Pair, are_turned

#: How tensors are paired if neither values nor the user say that they are the same.
_BY_NAME = frozenset({MatchedBy.EXACT, MatchedBy.NAME, MatchedBy.ORDER})
_NUMBER = re.compile(r"op_?\d")
_CERTAIN = frozenset({MatchedBy.EXACT, MatchedBy.CONTENT, MatchedBy.PRODUCERS})
_STATISTIC = "statistic."
_MATRIX = 2
#: Input or output, and slot.
_Place: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class AlignedPrograms:
    """All tensors of two steps, matched or not, and the operators that only one side has."""

    matching: Matching
    gaps: tuple[OperatorGap, ...] = ()
    operators: tuple[int, int, int] = (0, 0, 0)
    """Of A, of B, and in common."""
    contents: tuple[Sequence[bytes], Sequence[bytes]] = ((), ())
    """The digests of all tensors of A, and of B; zeros if not known, and none if nothing was aligned."""


def align_programs(
    a: StepTensors, b: StepTensors, matching: Matching, runner: PairRunner, *, names_tell: bool
) -> AlignedPrograms:
    """Pair what names leave unpaired, by an alignment of all operators.

    Digests and statistics of tensors in dumps are computed first: these are read once more.

    Args:
        a: the tensors of A.
        b: the tensors of B.
        matching: what is known.
        runner: where tensors are read.
        names_tell: most names are the same, or a mapping file pairs them. What is left is then paired only if
            content shows it or, without a mapping file, producers. Else, names that are equal may be so by
            chance, and tensors of two frameworks that have one name may have other axes.

    Raises:
        StoreError: a store cannot be read.
        DumpError: a file of a dump changed, or cannot be read.
    """
    a, b = (with_contents(side, range(len(side.keys)), runner) for side in (a, b))
    programs = _Programs.of(a, b)
    if not names_tell:
        matching = programs.without_chance(matching)
    alignment = align(programs.a.calls, programs.b.calls, programs.known(matching))
    pairs = list(programs.pairs(matching, _trusted(alignment, matching, names_tell=names_tell)))
    pairs += programs.parts(alignment, pairs)
    by_name = {pair for pair in matching.pairs if names_tell and pair.matched_by is not MatchedBy.MAPPING}
    others = [pair for pair in matching.pairs if pair not in by_name]
    return AlignedPrograms(
        _completed(matching, [*by_name, *programs.with_forms([*others, *pairs], runner)]),
        tuple(programs.named(alignment.gaps)),
        (len(programs.a.calls), len(programs.b.calls), len(alignment.pairs)),
        (a.contents, b.contents),
    )


def _trusted(alignment: Alignment, matching: Matching, *, names_tell: bool) -> list[AlignedCalls]:
    """Return the aligned calls whose tensors are paired."""
    if not names_tell:
        return list(alignment.pairs)
    is_mapped = any(pair.matched_by is MatchedBy.MAPPING for pair in matching.pairs)
    accepted = _CERTAIN - {MatchedBy.PRODUCERS} if is_mapped else _CERTAIN
    return [aligned for aligned in alignment.pairs if aligned.because in accepted]


def _completed(matching: Matching, pairs: Sequence[TensorPair]) -> Matching:
    """Return a matching of these pairs; what was in none, and still is not, remains."""
    taken_a, taken_b = {pair.a for pair in pairs}, {pair.b for pair in pairs}
    return Matching(
        sorted(pairs, key=attrgetter("a")),
        [number for number in matching.only_a if number not in taken_a],
        [number for number in matching.only_b if number not in taken_b],
    )


@dataclass(frozen=True, slots=True)
class _Program:
    """One step: its tensors, what is known of them, and its operators as calls."""

    tensors: StepTensors
    operators: Sequence[OperatorKey]
    """In order of execution."""
    calls: Sequence[OperatorCall]
    """Of the operators."""
    values: Sequence[Value]
    """Of the tensors."""
    classes: Sequence[int]
    """Of the values: equal on both sides for the same elements, or nearly; -1 if nothing is known of them."""

    def place(self, number: int) -> _Place:
        """Return where a tensor is among those of its operator."""
        key = self.tensors.keys[number]
        return key.io, key.slot

    def is_input(self, number: int) -> bool:
        """Return whether the operator of a tensor reads it."""
        return is_input(self.tensors.keys[number].io)

    def is_statistic(self, number: int) -> bool:
        """Return whether a log tells this number of another tensor."""
        return self.tensors.keys[number].io.startswith(_STATISTIC)

    def by_operator(self, numbers: Iterable[int]) -> dict[OperatorKey, list[int]]:
        """Return tensors by their operators."""
        found: dict[OperatorKey, list[int]] = {}
        for number in numbers:
            found.setdefault(self.tensors.keys[number].operator, []).append(number)
        return found


@dataclass(frozen=True, slots=True)
class _Programs:
    """Two steps, and which of their tensors are the same."""

    a: _Program
    b: _Program

    @classmethod
    def of(cls, a: StepTensors, b: StepTensors) -> _Programs:
        """Return the programs of two steps."""
        operators_a, calls_a, values_a = calls_of(a)
        operators_b, calls_b, values_b = calls_of(b)
        classes = classes_of(calls_a, calls_b)
        return cls(
            _Program(a, operators_a, calls_a, values_a, list(map(classes.of, values_a))),
            _Program(b, operators_b, calls_b, values_b, list(map(classes.of, values_b))),
        )

    def _is_chance(self, operator: OperatorKey, pairs: Iterable[TensorPair]) -> bool:
        return _has_number(operator[3]) and any(map(self._contradicts, pairs))

    def without_chance(self, matching: Matching) -> Matching:
        """Return a matching without operators whose names are equal by chance: `op_5_t`."""
        by_operator: dict[OperatorKey, list[TensorPair]] = {}
        for pair in matching.pairs:
            by_operator.setdefault(self.a.tensors.keys[pair.a].operator, []).append(pair)
        dropped = {
            pair
            for operator, pairs in by_operator.items()
            if self._is_chance(operator, pairs)
            for pair in pairs
            if pair.matched_by in _BY_NAME
        }
        return Matching(
            [pair for pair in matching.pairs if pair not in dropped],
            sorted([*matching.only_a, *(pair.a for pair in dropped)]),
            sorted([*matching.only_b, *(pair.b for pair in dropped)]),
        )

    def _contradicts(self, pair: TensorPair) -> bool:
        mine, theirs = self.a.classes[pair.a], self.b.classes[pair.b]
        return not self._have_one_size(pair.a, pair.b) or (mine != theirs and min(mine, theirs) >= 0)

    def _have_one_size(self, number: int, other: int) -> bool:
        return self.a.values[number].size == self.b.values[other].size

    def known(self, matching: Matching) -> dict[int, int]:
        """Return the operators of B by those of A that are the same as their tensors show."""
        numbers_a = {key: number for number, key in enumerate(self.a.operators)}
        numbers_b = {key: number for number, key in enumerate(self.b.operators)}
        known: dict[int, int] = {}
        taken: set[int] = set()
        for pair in matching.pairs:
            first = numbers_a[self.a.tensors.keys[pair.a].operator]
            second = numbers_b[self.b.tensors.keys[pair.b].operator]
            if first not in known and second not in taken:
                known[first] = second
                taken.add(second)
        return known

    def pairs(self, matching: Matching, alignment: Iterable[AlignedCalls]) -> Iterator[TensorPair]:
        """Yield the tensors of aligned calls that are the same, of those that a matching leaves unpaired."""
        left_a, left_b = self.a.by_operator(matching.only_a), self.b.by_operator(matching.only_b)
        for aligned in alignment:
            operators = self.a.operators[aligned.a], self.b.operators[aligned.b]
            yield from self._pairs_of(aligned, left_a.get(operators[0], []), left_b.get(operators[1], []))

    def _pairs_of(
        self, aligned: AlignedCalls, left_a: Sequence[int], left_b: Sequence[int]
    ) -> Iterator[TensorPair]:
        """Yield the tensors of two aligned calls that are the same: by content, or else by place."""
        matched_by = MatchedBy.SEQUENCE if aligned.because is MatchedBy.EXACT else aligned.because
        by_content = MatchedBy.CONTENT if matched_by is MatchedBy.SEQUENCE else matched_by
        same_kinds = self.a.calls[aligned.a].kinds == self.b.calls[aligned.b].kinds
        by_place = partial(self._by_place, same_kinds=same_kinds)
        places: dict[_Place, _Place] = {}
        rest = list(left_b)
        for find, how in ((self._by_content, by_content), (by_place, matched_by)):
            for number in left_a:
                if self.a.place(number) in places or self.a.is_statistic(number):
                    continue
                other = find(number, rest)
                if other is not None:
                    rest.remove(other)
                    places[self.a.place(number)] = self.b.place(other)
                    yield TensorPair(number, other, how)
        for number in filter(self.a.is_statistic, left_a):
            yield from self._statistics(number, rest, places, matched_by)

    def parts(self, alignment: Alignment, pairs: Sequence[TensorPair]) -> Iterator[TensorPair]:
        """Yield inputs that an operator reads on one side, and one that was fused into it on the other."""
        taken_a, taken_b = {pair.a for pair in pairs}, {pair.b for pair in pairs}
        read_a = self.a.by_operator(filter(self.a.is_input, range(len(self.a.values))))
        of_b = self.b.by_operator(range(len(self.b.values)))
        for end_a, end_b in _fused(alignment):
            for number in read_a.get(self.a.operators[end_a], []):
                if number in taken_a or self.a.values[number].is_weak:
                    continue
                left = [other for other in of_b[self.b.operators[end_b]] if other not in taken_b]
                other = self._by_content(number, left)
                if other is not None:
                    taken_b.add(other)
                    yield TensorPair(number, other, MatchedBy.CONTENT)

    def _by_content(self, number: int, others: Sequence[int]) -> int | None:
        """Return the tensor of B with nearly the elements of one of A: of several, the one at its place."""
        mine, place = self.a.classes[number], self.a.place(number)
        same = [other for other in others if self.b.classes[other] == mine and self._may_be(number, other)]
        return None if mine < 0 else min(same, key=lambda other: self.b.place(other) != place, default=None)

    def _by_place(self, number: int, others: Sequence[int], *, same_kinds: bool) -> int | None:
        """Return the tensor of B at the place of one of A; calls of other kinds may read in another order."""
        if self.a.is_input(number) and not same_kinds:
            return None
        place = self.a.place(number)
        at_place = (other for other in others if self.b.place(other) == place)
        return next((other for other in at_place if self._may_be(number, other)), None)

    def _may_be(self, number: int, other: int) -> bool:
        """Return whether two tensors have one size, and both are read or both are written."""
        return (
            self._have_one_size(number, other)
            and self.a.is_input(number) == self.b.is_input(other)
            and not self.b.is_statistic(other)
        )

    def _statistics(
        self,
        number: int,
        others: Sequence[int],
        places: Mapping[_Place, _Place],
        matched_by: MatchedBy,
    ) -> Iterator[TensorPair]:
        """Yield a statistic that a log tells of a tensor with that of its counterpart."""
        io, slot = self.a.place(number)
        base, _, name = io.removeprefix(_STATISTIC).rpartition(".")
        place = places.get((base, slot))
        if place is None:
            return
        wanted = f"{_STATISTIC}{place[0]}.{name}", place[1]
        for other in others:
            if self.b.place(other) == wanted:
                yield TensorPair(number, other, matched_by)
                return

    def with_forms(self, pairs: Sequence[TensorPair], runner: PairRunner) -> Iterator[TensorPair]:
        """Yield the pairs, of which some are to be compared with exchanged axes, or as one row of elements.

        Where only elements can tell whether axes were exchanged, these are read.
        """
        a, b = self.a.tensors, self.b.tensors
        doubtful = [pair for pair in pairs if self._may_be_turned(pair) and self._elements_tell(pair)]
        jobs = [Pair(a.operand(pair.a), b.operand(pair.b)) for pair in doubtful]
        answers = (
            answer for batch in runner.map(are_turned, batched(jobs, runner.parts)) for answer in batch
        )
        told = dict(zip(doubtful, answers, strict=True))
        for pair in pairs:
            yield pair._replace(form=self._form(pair, is_turned=told.get(pair)))

    def _form(self, pair: TensorPair, *, is_turned: bool | None) -> Form:
        """Return the form of a pair; `is_turned` is what its elements tell, None if they were not read."""
        is_reshaped = self.a.tensors.shapes[pair.a] != self.b.tensors.shapes[pair.b]
        if is_turned is None:
            is_turned = is_reshaped and self._may_be_turned(pair)
        if is_turned:
            return Form.TRANSPOSED
        return Form.RESHAPED if is_reshaped and self._have_one_size(pair.a, pair.b) else Form.AS_IS

    def _may_be_turned(self, pair: TensorPair) -> bool:
        """Return whether shapes and bytes allow that one is a matrix of the other with exchanged axes."""
        a, b = self.a.tensors, self.b.tensors
        shape = a.shapes[pair.a]
        is_matrix = len(shape) == _MATRIX and shape == b.shapes[pair.b][::-1] and 1 not in shape
        return is_matrix and (not any(a.contents[pair.a]) or a.contents[pair.a] != b.contents[pair.b])

    def _elements_tell(self, pair: TensorPair) -> bool:
        """Return whether elements have to tell: they are the same, in an order that is not known."""
        are_dumped = self.a.tensors.dumped[pair.a] and self.b.tensors.dumped[pair.b]
        mine = self.a.classes[pair.a]
        is_same = mine >= 0 and mine == self.b.classes[pair.b]
        return bool(are_dumped and is_same and not self.a.values[pair.a].is_weak)

    def named(self, gaps: Iterable[Gap]) -> Iterator[OperatorGap]:
        """Yield gaps with the names of their operators."""
        sides = {"A": self.a.operators, "B": self.b.operators}
        for gap in gaps:
            other = gap.side if gap.why is Why.RECOMPUTED else "B" if gap.side == "A" else "A"
            of = "" if gap.of is None else operator_name(sides[other][gap.of])
            yield OperatorGap(gap.side, operator_name(sides[gap.side][gap.number]), gap.why, of)


def _has_number(op_name: str) -> bool:
    """Return whether a name has a number that another run may give to another operator."""
    return without_numbers(op_name) != op_name or _NUMBER.search(op_name) is not None


def _fused(alignment: Alignment) -> Iterator[tuple[int, int]]:
    """Yield the calls of A and of B of which one was fused into the other."""
    for gap in alignment.gaps:
        if gap.why is Why.FUSED and gap.of is not None:
            yield (gap.number, gap.of) if gap.side == "A" else (gap.of, gap.number)


def operator_name(operator: OperatorKey) -> str:
    """Return the name by which a gap calls an operator."""
    _, _, op_type, op_name, occurrence = operator
    return f"{op_type}.{op_name}" + (f"#{occurrence}" if occurrence else "")
