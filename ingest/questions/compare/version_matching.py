"""Guesses which tensors are the same where two versions of a framework name them differently.

Operators are paired, and then their tensors by input or output, slot and number of elements. In this order,
each time those that are still unpaired:

1. parameters whose names differ in `.`, `_` and `/` alone;
2. operators of one type in one scope;
3. an operator that was fused of several (`MatMulBiasAddFusion`) with the last of these in its scope: outputs.

What is left is for `alignment`.

Several candidates are told apart by sizes, then by content if that is unique: by equal bytes, or else by
norms that are nearly equal; then by the order of execution if there are as many on either side. What was
guessed in one step holds for the others. All of these are guesses, and are marked as such.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ingest.questions.compare.matching import MatchedBy, Matching, TensorPair
from ingest.questions.compare.operator_origins import OperatorOrigin, origins_of
from ingest.questions.compare.step_tensors import StepTensors
from workers.arrays.statistics import FIELDS
from workers.store.consolidated.blocks import OperatorKey

_SPELLING = re.compile(r"[._/]+")
_PARAMETER = "Parameter"
#: The first output of an operator: which of inputs and outputs, slot, copy.
_OUTPUT = ("output", 0, 0)
#: Relative difference of norms up to which tensors may be the same, computed by two versions.
_NEARLY = 1e-3
_NORM = FIELDS.index("l2_norm")

KnownPairs: TypeAlias = dict[OperatorKey, tuple[OperatorKey, MatchedBy]]
"""Operators of B by those of A, and how they were guessed."""


@dataclass(slots=True)
class _Operator:
    """An operator of one side, with its unmatched tensors."""

    key: OperatorKey
    origin: OperatorOrigin
    tensors: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """Numbers of tensors, by input or output, slot, and copy."""
    sizes: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """Numbers of their elements."""
    contents: dict[tuple[str, int, int], bytes] = field(default_factory=dict)
    """Their digests, if known."""
    norms: dict[tuple[str, int, int], float] = field(default_factory=dict)
    """Their L2 norms; NaN if unknown."""

    @property
    def op_type(self) -> str:
        """The type of the operator."""
        return self.key[2]

    @property
    def name(self) -> str:
        """The name of the operator."""
        return self.key[3]

    @property
    def output_size(self) -> int | None:
        """The number of elements of its first output."""
        return self.sizes.get(_OUTPUT)


_Key: TypeAlias = Callable[[_Operator], Hashable | None]


def with_guesses(matching: Matching, a: StepTensors, b: StepTensors, known: KnownPairs) -> Matching:
    """Return a matching with guesses for what names leave.

    Args:
        matching: what names and the user say.
        a: the tensors of A.
        b: the tensors of B.
        known: the guesses of other steps; those of this one are added.

    Raises:
        StoreError: a store cannot be read.
    """
    guesses = list(guess_pairs(a, b, (matching.only_a, matching.only_b), known))
    taken_a, taken_b = {pair.a for pair in guesses}, {pair.b for pair in guesses}
    return Matching(
        sorted([*matching.pairs, *guesses], key=lambda pair: pair.a),
        [number for number in matching.only_a if number not in taken_a],
        [number for number in matching.only_b if number not in taken_b],
    )


def are_of_versions(a: StepTensors, b: StepTensors) -> bool:
    """Return whether most names of both sides are unknown to the other."""
    names_a, names_b = ({key.name for key in side.keys} for side in (a, b))
    return 2 * len(names_a & names_b) < min(len(names_a), len(names_b))


def guess_pairs(
    a: StepTensors, b: StepTensors, left: tuple[Iterable[int], Iterable[int]], known: KnownPairs
) -> Iterator[TensorPair]:
    """Yield guesses for tensors without a counterpart; each tensor is in one pair at most.

    Args:
        a: the tensors of A.
        b: the tensors of B.
        left: the numbers of those of A and of B that have no counterpart.
        known: the guesses of other steps; those of this one are added.

    Raises:
        StoreError: a store cannot be read.
    """
    operators_a, operators_b = _operators(a, left[0]), _operators(b, left[1])
    by_key_b = {operator.key: operator for operator in operators_b}
    for operator in list(operators_a):
        key_b, how = known.get(operator.key, (None, MatchedBy.SCOPE))
        if key_b in by_key_b:
            other = by_key_b[key_b]
            operators_a.remove(operator)
            operators_b.remove(other)
            yield from _pairs_of(operator, other, how)
    for how, key_of in _STAGES:
        groups_a, groups_b = _grouped(operators_a, key_of), _grouped(operators_b, key_of)
        for key, members in groups_a.items():
            for first, second in _paired(members, groups_b.get(key, [])):
                operators_a.remove(first)
                operators_b.remove(second)
                known[first.key] = second.key, how
                yield from _pairs_of(first, second, how)
        if how is MatchedBy.SCOPE:
            yield from _fused(operators_a, operators_b)
            yield from (
                TensorPair(pair.b, pair.a, pair.matched_by) for pair in _fused(operators_b, operators_a)
            )


def _operators(side: StepTensors, left: Iterable[int]) -> list[_Operator]:
    """Return the operators of unmatched tensors, in order of execution."""
    origins = origins_of(side)
    operators: dict[Hashable, _Operator] = {}
    for number in left:
        key = side.keys[number]
        operator = operators.get(key.operator)
        if operator is None:
            operator = _Operator(key.operator, origins[key.operator])
            operators[key.operator] = operator
        place = key.io, key.slot, key.copy
        operator.tensors[place] = number
        operator.sizes[place] = math.prod(side.shapes[number])
        operator.norms[place] = float(side.statistics[number, _NORM])
        if side.digests[number].any():
            operator.contents[place] = side.digests[number].tobytes()
    return list(operators.values())


def _spelling(operator: _Operator) -> Hashable | None:
    return _SPELLING.sub("_", operator.name) if operator.op_type == _PARAMETER else None


def _type_and_scope(operator: _Operator) -> Hashable | None:
    scope = operator.origin.scope
    return (operator.op_type, scope, operator.output_size) if scope else None


_STAGES: tuple[tuple[MatchedBy, _Key], ...] = (
    (MatchedBy.SPELLING, _spelling),
    (MatchedBy.SCOPE, _type_and_scope),
)


def _grouped(operators: Iterable[_Operator], key_of: _Key) -> dict[Hashable, list[_Operator]]:
    groups: dict[Hashable, list[_Operator]] = {}
    for operator in operators:
        if (key := key_of(operator)) is not None:
            groups.setdefault(key, []).append(operator)
    return groups


def _paired(
    operators_a: Sequence[_Operator], operators_b: Sequence[_Operator]
) -> Iterator[tuple[_Operator, _Operator]]:
    """Pair the operators of one group: by the sizes of inputs, unique contents, and order of execution."""
    if not operators_b:
        return
    common = _common_places([*operators_a, *operators_b])
    by_sizes_b = _grouped(operators_b, lambda operator: _sizes(operator, common))
    for sizes, members in _grouped(operators_a, lambda operator: _sizes(operator, common)).items():
        rest_a, rest_b = list(members), list(by_sizes_b.get(sizes, []))
        for first, second in list(_same_content(rest_a, rest_b)):
            rest_a.remove(first)
            rest_b.remove(second)
            yield first, second
        for first, second in list(_same_norms(rest_a, rest_b)):
            rest_a.remove(first)
            rest_b.remove(second)
            yield first, second
        if len(rest_a) == len(rest_b):
            yield from zip(rest_a, rest_b, strict=True)


def _common_places(operators: Sequence[_Operator]) -> list[tuple[str, int, int]]:
    """Return the inputs and outputs that all of these operators have."""
    places = set(operators[0].sizes)
    for operator in operators:
        places &= operator.sizes.keys()
    return sorted(places)


def _sizes(operator: _Operator, places: Iterable[tuple[str, int, int]]) -> Hashable:
    return tuple(operator.sizes[place] for place in places)


def _same_content(
    operators_a: Sequence[_Operator], operators_b: Sequence[_Operator]
) -> Iterator[tuple[_Operator, _Operator]]:
    """Yield pairs whose tensors have the same bytes, if only one operator of each side has these bytes."""
    by_contents_b = _grouped(operators_b, _all_contents)
    for contents, members in _grouped(operators_a, _all_contents).items():
        candidates = by_contents_b.get(contents, [])
        if len(members) == len(candidates) == 1:
            yield members[0], candidates[0]


def _same_norms(
    operators_a: Sequence[_Operator], operators_b: Sequence[_Operator]
) -> Iterator[tuple[_Operator, _Operator]]:
    """Yield, of several operators, pairs of nearly equal norms that match no other operator."""
    if len(operators_a) < 2 and len(operators_b) < 2:
        return
    alike = {
        place: [other for other, second in enumerate(operators_b) if _have_same_norms(first, second)]
        for place, first in enumerate(operators_a)
    }
    uses = Counter(other for others in alike.values() for other in others)
    for place, others in alike.items():
        if len(others) == 1 and uses[others[0]] == 1:
            yield operators_a[place], operators_b[others[0]]


def _have_same_norms(first: _Operator, second: _Operator) -> bool:
    places = [place for place in first.norms.keys() & second.norms.keys() if first.sizes[place] > 1]
    return bool(places) and all(
        math.isclose(first.norms[place], second.norms[place], rel_tol=_NEARLY) for place in places
    )


def _all_contents(operator: _Operator) -> Hashable | None:
    # Later versions dump more inputs: attributes that became operands.
    contents = {place: digest for place, digest in operator.contents.items() if operator.sizes[place] > 1}
    return frozenset(contents.items()) or None


def _pairs_of(first: _Operator, second: _Operator, how: MatchedBy) -> Iterator[TensorPair]:
    for place, number in first.tensors.items():
        other = second.tensors.get(place)
        if other is not None and first.sizes[place] == second.sizes[place]:
            yield TensorPair(number, other, how)


def _fused(fused: list[_Operator], parts: list[_Operator]) -> Iterator[TensorPair]:
    """Yield the output of each fused operator with that of the last of its parts, which ran in its scope."""
    for operator in [operator for operator in fused if operator.op_type.endswith("Fusion")]:
        candidates = [part for part in parts if _may_end(part, operator)]
        if not candidates or _OUTPUT not in operator.tensors:
            continue
        # A scope may run several times: fused operators of one size come in the order of their last parts.
        ends = _last_parts(candidates, operator)
        if len(ends) == sum(_is_like(other, operator) for other in fused):
            end = ends[0]
            yield TensorPair(operator.tensors.pop(_OUTPUT), end.tensors.pop(_OUTPUT), MatchedBy.SCOPE)
            fused.remove(operator)
            parts.remove(end)


def _may_end(part: _Operator, fused: _Operator) -> bool:
    """Return whether an operator may be the last part of a fused one, whose type names its parts."""
    return (
        bool(fused.origin.scope)
        and part.origin.scope == fused.origin.scope
        and part.op_type.lower() in fused.op_type.lower()
        and _OUTPUT in part.tensors
        and part.output_size == fused.output_size
    )


def _last_parts(parts: Sequence[_Operator], fused: _Operator) -> list[_Operator]:
    """Return the parts of the type that the type of the fused operator names last."""
    names = fused.op_type.lower()
    ending = max(sorted({part.op_type for part in parts}), key=lambda op_type: names.rfind(op_type.lower()))
    return [part for part in parts if part.op_type == ending]


def _is_like(other: _Operator, fused: _Operator) -> bool:
    """Return whether another operator was fused from the same, in the same scope, to an output as large."""
    return (
        other.op_type == fused.op_type
        and other.origin.scope == fused.origin.scope
        and other.output_size == fused.output_size
    )
