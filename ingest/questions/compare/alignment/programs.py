"""Tensors of two programs that ran different operators: paired as their calls are aligned."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ingest.questions.compare.alignment.align import AlignedCalls, Alignment, Because, align
from ingest.questions.compare.alignment.calls import OperatorCall, Value, classes_of
from ingest.questions.compare.alignment.step_calls import calls_of, with_contents
from ingest.questions.compare.matching import (
    Form,
    MatchedBy,
    Matching,
    TensorPair,
    without_numbers,
)
from ingest.questions.compare.operator_origins import OperatorKey
from ingest.questions.compare.programs import OperatorGap, Why
from ingest.questions.compare.runner import PairRunner, batched
from ingest.questions.compare.step_tensors import StepTensors
from ingest.reader.flow.operator_kinds import is_input
from workers.tasks.compare import Pair
from workers.tasks.contents import are_turned

_MATCHED_BY = {
    Because.CONTENT: MatchedBy.CONTENT,
    Because.PRODUCERS: MatchedBy.PRODUCERS,
    Because.SCOPE: MatchedBy.SCOPE,
    Because.LINE: MatchedBy.LINE,
    Because.SEQUENCE: MatchedBy.SEQUENCE,
}
#: How tensors are paired if neither values nor the user say that they are the same.
_BY_NAME = frozenset({MatchedBy.EXACT, MatchedBy.NAME, MatchedBy.ORDER})
_NUMBER = re.compile(r"op_?\d")
_CERTAIN = frozenset({Because.KNOWN, Because.CONTENT, Because.PRODUCERS})
_STATISTIC = "statistic."
_MATRIX = 2


@dataclass(frozen=True, slots=True)
class AlignedPrograms:
    """All tensors of two steps, matched or not, and the operators that only one side has."""

    matching: Matching
    gaps: tuple[OperatorGap, ...] = ()
    operators: tuple[int, int, int] = (0, 0, 0)
    """Of A, of B, and in common."""


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
    operators_a, calls_a, values_a = calls_of(a)
    operators_b, calls_b, values_b = calls_of(b)
    tensors = _Tensors(a, b, values_a, values_b, _class_numbers(calls_a, calls_b, values_a, values_b))
    if not names_tell:
        matching = tensors.without_chance(matching)
    known = _known(a, b, matching, operators_a, operators_b)
    alignment = align(calls_a, calls_b, known)
    is_mapped = any(pair.matched_by is MatchedBy.MAPPING for pair in matching.pairs)
    accepted = _CERTAIN - {Because.PRODUCERS} if is_mapped else _CERTAIN
    by_operator = _by_operator(a, matching.only_a), _by_operator(b, matching.only_b)
    pairs = [
        pair
        for aligned in alignment.pairs
        if not names_tell or aligned.because in accepted
        for pair in tensors.pairs(
            by_operator[0].get(operators_a[aligned.a], []),
            by_operator[1].get(operators_b[aligned.b], []),
            aligned,
            same_kinds=calls_a[aligned.a].kinds == calls_b[aligned.b].kinds,
        )
    ]
    pairs += tensors.parts(alignment, pairs, operators_a, operators_b)
    taken_a, taken_b = {pair.a for pair in pairs}, {pair.b for pair in pairs}
    named = [pair for pair in matching.pairs if names_tell and pair.matched_by is not MatchedBy.MAPPING]
    others = [pair for pair in matching.pairs if pair not in set(named)]
    formed = [*named, *_with_forms(tensors, [*others, *pairs], runner)]
    return AlignedPrograms(
        Matching(
            sorted(formed, key=lambda pair: pair.a),
            [number for number in matching.only_a if number not in taken_a],
            [number for number in matching.only_b if number not in taken_b],
        ),
        tuple(_named_gaps(alignment, operators_a, operators_b)),
        (len(calls_a), len(calls_b), len(alignment.pairs)),
    )


def _known(
    a: StepTensors,
    b: StepTensors,
    matching: Matching,
    operators_a: Sequence[OperatorKey],
    operators_b: Sequence[OperatorKey],
) -> dict[int, int]:
    """Return the operators of B by those of A that are the same as their tensors show."""
    numbers_a = {key: number for number, key in enumerate(operators_a)}
    numbers_b = {key: number for number, key in enumerate(operators_b)}
    known: dict[int, int] = {}
    taken: set[int] = set()
    for pair in matching.pairs:
        first, second = numbers_a[a.keys[pair.a].operator], numbers_b[b.keys[pair.b].operator]
        if first not in known and second not in taken:
            known[first] = second
            taken.add(second)
    return known


def _class_numbers(
    calls_a: Sequence[OperatorCall],
    calls_b: Sequence[OperatorCall],
    values_a: Sequence[Value],
    values_b: Sequence[Value],
) -> tuple[list[int], list[int]]:
    classes = classes_of(calls_a, calls_b)
    return [classes.of(value) for value in values_a], [classes.of(value) for value in values_b]


def _by_operator(side: StepTensors, numbers: Sequence[int]) -> dict[OperatorKey, list[int]]:
    by_operator: dict[OperatorKey, list[int]] = {}
    for number in numbers:
        by_operator.setdefault(side.keys[number].operator, []).append(number)
    return by_operator


@dataclass(frozen=True, slots=True)
class _Tensors:
    """The tensors of two steps, with their values and the classes of these."""

    a: StepTensors
    b: StepTensors
    values_a: Sequence[Value]
    values_b: Sequence[Value]
    classes: tuple[Sequence[int], Sequence[int]]

    def without_chance(self, matching: Matching) -> Matching:
        """Return a matching without operators whose names are equal by chance: `op_5_t`."""
        by_operator: dict[OperatorKey, list[TensorPair]] = {}
        for pair in matching.pairs:
            by_operator.setdefault(self.a.keys[pair.a].operator, []).append(pair)
        dropped = {
            pair
            for operator, pairs in by_operator.items()
            if without_numbers(operator[3]) != operator[3] or _NUMBER.search(operator[3])
            for pair in pairs
            if pair.matched_by in _BY_NAME and any(map(self._contradicts, pairs))
        }
        return Matching(
            [pair for pair in matching.pairs if pair not in dropped],
            sorted([*matching.only_a, *(pair.a for pair in dropped)]),
            sorted([*matching.only_b, *(pair.b for pair in dropped)]),
        )

    def _contradicts(self, pair: TensorPair) -> bool:
        mine, theirs = self.classes[0][pair.a], self.classes[1][pair.b]
        sizes = self.values_a[pair.a].size, self.values_b[pair.b].size
        return sizes[0] != sizes[1] or (mine != theirs and min(mine, theirs) >= 0)

    def pairs(
        self, left_a: Sequence[int], left_b: Sequence[int], aligned: AlignedCalls, *, same_kinds: bool
    ) -> Iterator[TensorPair]:
        """Yield the tensors of two aligned operators that are the same: by place, or inputs by content."""
        matched_by = _MATCHED_BY.get(aligned.because, MatchedBy.SEQUENCE)
        places: dict[tuple[str, int], tuple[str, int]] = {}
        rest = list(left_b)
        for is_exact in (True, False):
            for number in left_a:
                key = self.a.keys[number]
                place = key.io, key.slot
                if place in places or key.io.startswith(_STATISTIC):
                    continue
                other = self._counterpart(number, rest, is_exact=is_exact, same_kinds=same_kinds)
                if other is not None:
                    rest.remove(other)
                    places[place] = self.b.keys[other].io, self.b.keys[other].slot
                    is_weak = aligned.because in {Because.KNOWN, Because.SEQUENCE}
                    yield TensorPair(number, other, MatchedBy.CONTENT if is_exact and is_weak else matched_by)
        for number in left_a:
            key = self.a.keys[number]
            if key.io.startswith(_STATISTIC):
                yield from self._statistics(number, rest, places, matched_by)

    def parts(
        self,
        alignment: Alignment,
        pairs: Sequence[TensorPair],
        operators_a: Sequence[OperatorKey],
        operators_b: Sequence[OperatorKey],
    ) -> Iterator[TensorPair]:
        """Yield inputs that an operator reads on one side, and one that was fused into it on the other."""
        taken_a, taken_b = {pair.a for pair in pairs}, {pair.b for pair in pairs}
        of_a, of_b = (
            _by_operator(self.a, range(len(self.a.keys))),
            _by_operator(self.b, range(len(self.b.keys))),
        )
        for gap in alignment.gaps:
            if gap.why is not Why.FUSED or gap.of is None:
                continue
            ends = (gap.number, gap.of) if gap.side == "A" else (gap.of, gap.number)
            for number in of_a[operators_a[ends[0]]]:
                left = [other for other in of_b[operators_b[ends[1]]] if other not in taken_b]
                if number in taken_a or not is_input(self.a.keys[number].io) or self.values_a[number].is_weak:
                    continue
                other = self._counterpart(number, left, is_exact=True, same_kinds=False)
                if other is not None:
                    taken_b.add(other)
                    yield TensorPair(number, other, MatchedBy.CONTENT)

    def _counterpart(
        self, number: int, others: Sequence[int], *, is_exact: bool, same_kinds: bool
    ) -> int | None:
        """Return the tensor of B that one of A is: of its class, or else at its place."""
        key = self.a.keys[number]
        sized = [other for other in others if self._may_be(number, other)]
        same_place = [
            other for other in sized if (self.b.keys[other].io, self.b.keys[other].slot) == (key.io, key.slot)
        ]
        if is_exact:
            mine = self.classes[0][number]
            same = [other for other in sized if self.classes[1][other] == mine >= 0]
            return next(iter([other for other in same if other in same_place] or same), None)
        return same_place[0] if same_place and (same_kinds or not is_input(key.io)) else None

    def _may_be(self, number: int, other: int) -> bool:
        """Return whether two tensors have one size, and both are read or both are written."""
        io_b = self.b.keys[other].io
        return (
            self.values_a[number].size == self.values_b[other].size
            and is_input(self.a.keys[number].io) == is_input(io_b)
            and not io_b.startswith(_STATISTIC)
        )

    def _statistics(
        self,
        number: int,
        others: Sequence[int],
        places: Mapping[tuple[str, int], tuple[str, int]],
        matched_by: MatchedBy,
    ) -> Iterator[TensorPair]:
        """Yield a statistic that a log tells of a tensor with that of its counterpart."""
        key = self.a.keys[number]
        base, _, name = key.io.removeprefix(_STATISTIC).rpartition(".")
        place = places.get((base, key.slot))
        if place is None:
            return
        wanted = f"{_STATISTIC}{place[0]}.{name}", place[1]
        for other in others:
            if (self.b.keys[other].io, self.b.keys[other].slot) == wanted:
                yield TensorPair(number, other, matched_by)
                return


def _with_forms(tensors: _Tensors, pairs: Sequence[TensorPair], runner: PairRunner) -> list[TensorPair]:
    """Return the pairs, of which some are to be compared with exchanged axes, or as one row of elements."""
    a, b = tensors.a, tensors.b
    formed: list[TensorPair] = []
    doubtful: list[int] = []
    for pair in pairs:
        shapes = a.shapes[pair.a], b.shapes[pair.b]
        form = Form.AS_IS
        if shapes[0] != shapes[1] and tensors.values_a[pair.a].size == tensors.values_b[pair.b].size:
            form = Form.RESHAPED
        is_matrix = len(shapes[0]) == len(shapes[1]) == _MATRIX and shapes[0] == shapes[1][::-1]
        if is_matrix and 1 not in shapes[0] and not _same_bytes(a, b, pair):
            if form is Form.RESHAPED:
                form = Form.TRANSPOSED
            if a.dumped[pair.a] and b.dumped[pair.b] and _may_be_turned(tensors, pair):
                doubtful.append(len(formed))
        formed.append(pair._replace(form=form))
    jobs = [Pair(a.operand(formed[place].a), b.operand(formed[place].b)) for place in doubtful]
    answers = (answer for batch in runner.map(are_turned, batched(jobs, runner.parts)) for answer in batch)
    for place, is_turned in zip(doubtful, answers, strict=True):
        if is_turned:
            formed[place] = formed[place]._replace(form=Form.TRANSPOSED)
        elif formed[place].form is Form.TRANSPOSED and _classes_agree(tensors, formed[place]):
            formed[place] = formed[place]._replace(form=Form.RESHAPED)
    return formed


def _same_bytes(a: StepTensors, b: StepTensors, pair: TensorPair) -> bool:
    digest = a.digests[pair.a]
    return bool(digest.any()) and bool((digest == b.digests[pair.b]).all())


def _classes_agree(tensors: _Tensors, pair: TensorPair) -> bool:
    mine = tensors.classes[0][pair.a]
    return mine >= 0 and mine == tensors.classes[1][pair.b]


def _may_be_turned(tensors: _Tensors, pair: TensorPair) -> bool:
    """Return whether elements have to tell: they are the same, in an order that is not known."""
    return not tensors.values_a[pair.a].is_weak and _classes_agree(tensors, pair)


def _named_gaps(
    alignment: Alignment, operators_a: Sequence[OperatorKey], operators_b: Sequence[OperatorKey]
) -> Iterator[OperatorGap]:
    sides: dict[str, Sequence[OperatorKey]] = {"A": operators_a, "B": operators_b}
    for gap in alignment.gaps:
        other = gap.side if gap.why is Why.RECOMPUTED else "B" if gap.side == "A" else "A"
        of = "" if gap.of is None else operator_name(sides[other][gap.of])
        yield OperatorGap(gap.side, operator_name(sides[gap.side][gap.number]), gap.why, of)


def operator_name(operator: OperatorKey) -> str:
    """Return the name by which a gap calls an operator."""
    _, _, op_type, op_name, occurrence = operator
    return f"{op_type}.{op_name}" + (f"#{occurrence}" if occurrence else "")
