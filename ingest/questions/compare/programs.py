"""Tensors of two programs that ran different operators: paired as their calls are aligned."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np

from ingest.questions.compare.alignment import (
    MARKS,
    AlignedCalls,
    Gap,
    OperatorCall,
    Value,
    align,
    classes_of,
    kinds_of,
)
from ingest.questions.compare.matching import (
    Form,
    MatchedBy,
    TensorPair,
    unmatched,
    without_numbers,
)
from ingest.questions.compare.result import OperatorGap, Why
from ingest.questions.compare.runner import PairRunner, answer_each
from ingest.questions.compare.sources import StepTensors
from ingest.reader.context.ir import flatten
from ingest.reader.operator_kinds import FUNCTIONS, is_input, is_output
from workers.arrays.dtypes import from_name
from workers.arrays.statistics import FIELDS
from workers.store.consolidated.blocks import OperatorKey
from workers.tasks.compare import Pair, is_turned, read_content

#: How tensors are paired if neither values nor the user say that they are the same.
_BY_NAME = frozenset({MatchedBy.EXACT, MatchedBy.NAME, MatchedBy.ORDER})
_NUMBER = re.compile(r"op_?\d")
_CERTAIN = frozenset({MatchedBy.EXACT, MatchedBy.CONTENT, MatchedBy.PRODUCERS})
_STATISTIC = "statistic."
_MATRIX = 2
#: Input or output, and slot.
_Place: TypeAlias = tuple[str, int]


_L1 = "l1:"
_OP_NUMBER = re.compile(r"-op\d+$")
#: MindSpore 2.0 writes `gradMatMul-expand` and `gradMaxPool-meta` for what later versions call `Grad_MatMul`.
_GRADIENT = re.compile(r"(?:^|(?<=[/_]))grad([A-Z]\w*?)(?:-(?:expand|meta))?(?=/)")
_COLUMNS = tuple(FIELDS.index(name) if name in FIELDS else None for name in MARKS)
_NARROW_NBYTES = 2


def with_contents(side: StepTensors, numbers: Iterable[int], runner: PairRunner) -> StepTensors:
    """Return a step with the digests and statistics of these tensors, which are read if they are not known.

    Raises:
        StoreError: a store cannot be reached.
        DumpError: a file of a dump changed, or cannot be read.
    """
    unknown = [number for number in numbers if side.dumped[number] and not side.digests[number].any()]
    if not unknown:
        return side
    digests, statistics = side.digests.copy(), side.statistics.copy()
    answers = answer_each(runner, read_content, [side.operand(number) for number in unknown])
    for number, answer in zip(unknown, answers, strict=True):
        if answer.digest:
            digests[number] = np.frombuffer(answer.digest, np.uint8)
        if answer.statistics:
            statistics[number] = answer.statistics
    return replace(side, digests=digests, statistics=statistics)


def calls_of(side: StepTensors) -> tuple[list[OperatorKey], list[OperatorCall], list[Value]]:
    """Return the operators of a step in order of execution, each as a call; and the value of each tensor.

    Raises:
        StoreError: the store cannot be read.
    """
    values = [_value(side, number) for number in range(len(side.keys))]
    found: dict[OperatorKey, tuple[int, list[Value], list[Value]]] = {}
    for number, key in enumerate(side.keys):
        _, inputs, outputs = found.setdefault(key.operator, (number, [], []))
        if is_output(key.io):
            outputs.append(values[number])
        elif is_input(key.io):
            inputs.append(values[number])
    calls = [
        OperatorCall(
            key[2],
            tuple(inputs),
            tuple(outputs),
            scope_of(side.operands.full_name(first) or key[3], key[2]) or key[3],
        )
        for key, (first, inputs, outputs) in found.items()
    ]
    return list(found), calls, values


def scope_of(name: str, op_type: str) -> str:
    """Return the cells that an operator is in, from its name; "" for none, as in `MatMul-op47`.

    Two versions of a framework may name one operator `MatMul-op104` and
    `Gradients_Default_network-Net_fc-Dense_Grad_MatMul_MatMul-op0`. The graph files of a dump have the whole
    name, in which the scope is spelt alike.
    """
    plain = flatten(_GRADIENT.sub(r"Grad_\1", _OP_NUMBER.sub("", name)))
    scope = plain.removesuffix(op_type).rstrip("_")
    return scope if scope != plain else ""


def _told_hash(side: StepTensors, number: int) -> str | None:
    tensor = side.operands.attributes(number).get("tensor")
    told = tensor.get("hash") if isinstance(tensor, dict) else None
    return told if isinstance(told, str) else None


def _value(side: StepTensors, number: int) -> Value:
    statistics = side.statistics[number]
    marks = [math.nan if column is None else float(statistics[column]) for column in _COLUMNS]
    content: Hashable = None
    if side.digests[number].any():
        content = side.dtypes[number], side.digests[number].tobytes()
    elif not side.dumped[number]:
        told = _told_hash(side, number)
        if told is not None and told.startswith(_L1):
            marks[0] = float(told.removeprefix(_L1))
        else:
            content = told
    size = math.prod(side.shapes[number])
    low, high = marks[2], marks[3]
    is_weak = size <= 1 or low == high or 0.0 in marks[:2]
    return Value(size, content, tuple(marks), is_weak, _is_narrow(side.dtypes[number]))


def _is_narrow(dtype: str) -> bool:
    try:
        return from_name(dtype).itemsize <= _NARROW_NBYTES
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class AlignedPrograms:
    """The tensors of two steps that are the same, and the operators that only one side has."""

    pairs: list[TensorPair]
    gaps: tuple[OperatorGap, ...] = ()
    operators: tuple[int, int, int] = (0, 0, 0)
    """Of A, of B, and in common."""
    contents: tuple[Sequence[bytes], Sequence[bytes]] = ((), ())
    """The digests of all tensors of A, and of B; zeros if not known, and none if nothing was aligned."""


def align_programs(
    a: StepTensors, b: StepTensors, matched: list[TensorPair], runner: PairRunner, *, names_tell: bool
) -> AlignedPrograms:
    """Pair what names leave unpaired, by an alignment of all operators.

    Digests and statistics of tensors in dumps are computed first: these are read once more.

    Args:
        a: the tensors of A.
        b: the tensors of B.
        matched: what is known.
        runner: where tensors are read.
        names_tell: most names are the same, or a mapping file pairs them. What is left is then paired only if
            content shows it or, without a mapping file, producers. Else, names that are equal may be so by
            chance, and tensors of two frameworks that have one name may have other axes.

    Raises:
        StoreError: a store cannot be read.
        DumpError: a file of a dump changed, or cannot be read.
    """
    a, b = (with_contents(side, range(len(side.keys)), runner) for side in (a, b))
    programs = _Programs(a, b)
    if not names_tell:
        matched = programs.without_chance(matched)
    aligned, gaps = align(programs.a.calls, programs.b.calls, programs.known(matched))
    trusted = _trusted(matched, names_tell=names_tell)
    pairs = list(programs.pairs(matched, [each for each in aligned if each.because in trusted]))
    pairs += programs.parts(gaps, pairs)
    by_name = {pair for pair in matched if names_tell and pair.matched_by is not MatchedBy.MAPPING}
    others = [pair for pair in matched if pair not in by_name]
    return AlignedPrograms(
        sorted([*by_name, *programs.with_forms([*others, *pairs], runner)]),
        tuple(programs.named(gaps)),
        (len(programs.a.calls), len(programs.b.calls), len(aligned)),
        (a.contents, b.contents),
    )


#: The most pairs of calls that are looked at to see which functions one side calls more often.
_MOST_PAIRS = 1 << 24


def with_uneven_functions(
    a: StepTensors, b: StepTensors, matched: list[TensorPair], runner: PairRunner
) -> list[TensorPair]:
    """Return pairs in which functions that one side calls more often are paired by an alignment of all calls.

    Their numbers tell nothing then: any of them may be the one more. A batch that is cut into more calls has
    other shapes; its calls keep their numbers.

    Raises:
        StoreError: a store cannot be read.
        DumpError: a file of a dump changed, or cannot be read.
    """
    if not (uneven := _uneven_functions(a, b)):
        return matched
    kept = [pair for pair in matched if _function(a.keys[pair.a].operator) not in uneven]
    if len(kept) == len(matched) or any(a.shapes[pair.a] != b.shapes[pair.b] for pair in kept):
        return matched
    programs = _Programs(*(with_contents(side, range(len(side.keys)), runner) for side in (a, b)))
    if len(programs.a.calls) * len(programs.b.calls) > _MOST_PAIRS:
        return matched
    aligned, _ = align(programs.a.calls, programs.b.calls, programs.known(kept))
    calls = ((programs.a.operators[each.a], programs.b.operators[each.b]) for each in aligned)
    same = (each for each in calls if _function(each[0]) in uneven and len({*map(_function, each)}) == 1)
    return sorted([*kept, *programs.by_place(same)])


def _uneven_functions(a: StepTensors, b: StepTensors) -> set[tuple[str, ...]]:
    of_a, of_b = (Counter(map(_function, {key.operator for key in side.keys})) for side in (a, b))
    return {each for each in of_a.keys() & of_b if each and of_a[each] != of_b[each]}


def _function(operator: OperatorKey) -> tuple[str, ...]:
    """Return what the calls of a function in a module have in common; () if it is none."""
    net, graph, op_type, op_name, _ = operator
    name, _, number = op_name.rpartition(".")
    is_function = op_type.startswith(FUNCTIONS) and number.isdecimal()
    return (net, graph, op_type, name) if is_function else ()


def _trusted(matched: Iterable[TensorPair], *, names_tell: bool) -> frozenset[MatchedBy]:
    """Return what must show that calls are the same, so that their tensors are paired, too."""
    if not names_tell:
        return frozenset(MatchedBy)
    is_mapped = any(pair.matched_by is MatchedBy.MAPPING for pair in matched)
    return _CERTAIN - {MatchedBy.PRODUCERS} if is_mapped else _CERTAIN


class _StepProgram:
    def __init__(self, tensors: StepTensors) -> None:
        self.tensors = tensors
        self.operators, self.calls, self.values = calls_of(tensors)
        """Operators are in order of execution, calls are of these; values are of the tensors."""
        self.classes: list[int] = []
        """Of the values: equal on both sides for the same elements, or nearly; -1 if nothing is known."""

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


class _Programs:
    def __init__(self, a: StepTensors, b: StepTensors) -> None:
        self.a, self.b = _StepProgram(a), _StepProgram(b)
        classes, _ = classes_of(self.a.calls, self.b.calls)
        for side in (self.a, self.b):
            side.classes = [classes.get(id(value), -1) for value in side.values]

    def without_chance(self, matched: Sequence[TensorPair]) -> list[TensorPair]:
        """Return the pairs but for operators whose names are equal by chance: `op_5_t`."""
        by_operator: dict[OperatorKey, list[TensorPair]] = {}
        for pair in matched:
            by_operator.setdefault(self.a.tensors.keys[pair.a].operator, []).append(pair)
        chance = {
            operator
            for operator, pairs in by_operator.items()
            if _has_number(operator[3]) and any(map(self._contradicts, pairs))
        }
        return [
            pair
            for pair in matched
            if pair.matched_by not in _BY_NAME or self.a.tensors.keys[pair.a].operator not in chance
        ]

    def _contradicts(self, pair: TensorPair) -> bool:
        mine, theirs = self.a.classes[pair.a], self.b.classes[pair.b]
        return not self._have_one_size(pair.a, pair.b) or (mine != theirs and min(mine, theirs) >= 0)

    def _have_one_size(self, number: int, other: int) -> bool:
        return self.a.values[number].size == self.b.values[other].size

    def known(self, matched: Iterable[TensorPair]) -> dict[int, int]:
        """Return the operators of B by those of A that are the same as their tensors show."""
        numbers_a = {key: number for number, key in enumerate(self.a.operators)}
        numbers_b = {key: number for number, key in enumerate(self.b.operators)}
        known: dict[int, int] = {}
        taken: set[int] = set()
        for pair in matched:
            first = numbers_a[self.a.tensors.keys[pair.a].operator]
            second = numbers_b[self.b.tensors.keys[pair.b].operator]
            if first not in known and second not in taken:
                known[first] = second
                taken.add(second)
        return known

    def by_place(self, calls: Iterable[tuple[OperatorKey, OperatorKey]]) -> Iterator[TensorPair]:
        """Yield the tensors that stand at the same place of a call of A and of one of B."""
        of_a, of_b = (side.by_operator(range(len(side.values))) for side in (self.a, self.b))
        for own, other in calls:
            how = MatchedBy.EXACT if own == other else MatchedBy.NAME
            places_a = {self.a.place(number): number for number in of_a[own]}
            places_b = {self.b.place(number): number for number in of_b[other]}
            for place in places_a.keys() & places_b:
                yield TensorPair(places_a[place], places_b[place], how)

    def pairs(self, matched: Iterable[TensorPair], alignment: Iterable[AlignedCalls]) -> Iterator[TensorPair]:
        """Yield the tensors of aligned calls that are the same, of those that are in no pair yet."""
        only_a, only_b = unmatched(self.a.tensors, self.b.tensors, matched)
        left_a, left_b = self.a.by_operator(only_a), self.b.by_operator(only_b)
        for aligned in alignment:
            operators = self.a.operators[aligned.a], self.b.operators[aligned.b]
            yield from self._pairs_of(aligned, left_a.get(operators[0], []), left_b.get(operators[1], []))

    def _pairs_of(
        self, aligned: AlignedCalls, left_a: Sequence[int], left_b: Sequence[int]
    ) -> Iterator[TensorPair]:
        """Yield the tensors of two aligned calls that are the same: by content, or else by place."""
        matched_by = MatchedBy.SEQUENCE if aligned.because is MatchedBy.EXACT else aligned.because
        by_content = MatchedBy.CONTENT if matched_by is MatchedBy.SEQUENCE else matched_by
        same_kinds = kinds_of(self.a.calls[aligned.a].op_type) == kinds_of(self.b.calls[aligned.b].op_type)
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

    def parts(self, gaps: Iterable[Gap], pairs: Sequence[TensorPair]) -> Iterator[TensorPair]:
        """Yield inputs that an operator reads on one side, and one that was fused into it on the other."""
        taken_a, taken_b = {pair.a for pair in pairs}, {pair.b for pair in pairs}
        read_a = self.a.by_operator(filter(self.a.is_input, range(len(self.a.values))))
        of_b = self.b.by_operator(range(len(self.b.values)))
        for end_a, end_b in _fused(gaps):
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
        answers = answer_each(runner, is_turned, jobs)
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


def _fused(gaps: Iterable[Gap]) -> Iterator[tuple[int, int]]:
    for gap in gaps:
        if gap.why is Why.FUSED and gap.of is not None:
            yield (gap.number, gap.of) if gap.side == "A" else (gap.of, gap.number)


def operator_name(operator: OperatorKey) -> str:
    """Return the name by which a gap calls an operator."""
    _, _, op_type, op_name, occurrence = operator
    return f"{op_type}.{op_name}" + (f"#{occurrence}" if occurrence else "")
