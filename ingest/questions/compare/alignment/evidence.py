"""How likely it is that a call of A and one of B are the same, in points: a row of B at a time.

Two calls are the same only if they have the same result, or do the same and have results of one size. All
else adds to that: equal inputs, calls before and after that are the same, and the scope.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ingest.questions.compare.alignment.calls import (
    Numbers,
    OperatorCall,
    ValueClasses,
    classes_of,
    sources_of,
)
from ingest.reader.operator_kinds import is_container

#: Points. What is shared among several inputs, sources or readers is given once if all of them agree.
RESULT, WEAK_RESULT = 24, 4
KINDS, SAME_KINDS, SAME_LEVEL = 6, 2, 4
INPUTS, WEAK_INPUTS = 12, 2
SOURCES, READERS = 10, 6
SCOPE, WORD = 8, 4
#: With fewer points, calls are not the same: they do in part the same.
LEAST = KINDS + SAME_LEVEL + 1

_WORDS = re.compile(r"[^A-Za-z0-9]+")
#: A word of a scope tells something if at most this share of the calls have it.
_RARE = 0.25
_PARAMETER = "Parameter"
_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One program as numbers."""

    calls: Sequence[OperatorCall]
    result: Numbers
    """(call,): the class of its result; -1 if it is not known."""
    size: Numbers
    """(call,): the number of elements of its result; -1 if it has none."""
    kinds: npt.NDArray[np.bool_]
    """(call, kind)."""
    is_parameter: npt.NDArray[np.bool_]
    is_module: npt.NDArray[np.bool_]
    """(call,): whether it is a module or cell, in which operators run that are in the dump, too."""
    inputs: list[tuple[int, ...]]
    """By call, the classes of its inputs."""
    sources: list[tuple[int, ...]]
    """By call, the calls that wrote what it reads."""
    readers: list[list[int]]
    """By call, the calls that read what it wrote."""

    @classmethod
    def of(cls, calls: Sequence[OperatorCall], classes: ValueClasses, kinds: Mapping[str, int]) -> Side:
        """Return a program as numbers; `kinds` numbers all kinds of both."""
        results = [call.result for call in calls]
        table = np.zeros((len(calls), len(kinds)), bool)
        for number, call in enumerate(calls):
            table[number, [kinds[kind] for kind in call.kinds]] = True
        sources = sources_of(calls)
        readers: list[list[int]] = [[] for _ in calls]
        for number, known in enumerate(sources):
            for source in known:
                readers[source].append(number)
        return cls(
            calls=calls,
            result=np.array([classes.of(value) for value in results], np.int64),
            size=np.array([-1 if value is None else value.size for value in results], np.int64),
            kinds=table,
            is_parameter=np.array([call.op_type == _PARAMETER for call in calls], bool),
            is_module=np.array([is_container(call.op_type) for call in calls], bool),
            inputs=[tuple({classes.of(value) for value in call.inputs} - {-1}) for call in calls],
            sources=sources,
            readers=readers,
        )


@dataclass(slots=True, eq=False)
class Evidence:
    """The points of all pairs of calls, given those that are known to be the same."""

    a: Side
    b: Side
    weak: frozenset[int]
    """Classes of values that are equal by chance."""
    pairs: dict[int, int] = field(default_factory=dict)
    """Calls of B by those of A that are the same."""
    _have_both_levels: bool = False
    """Whether both sides have modules and what runs in them: then a module does not count as an operator."""
    _by_input: dict[int, Numbers] = field(default_factory=dict)
    _by_scope: dict[Hashable, Numbers] = field(default_factory=dict)
    _by_word: dict[str, Numbers] = field(default_factory=dict)

    @classmethod
    def of(cls, a: Sequence[OperatorCall], b: Sequence[OperatorCall]) -> Evidence:
        """Return the evidence of two programs."""
        classes = classes_of(a, b)
        names = sorted({kind for call in (*a, *b) for kind in call.kinds})
        kinds = {name: number for number, name in enumerate(names)}
        sides = [Side.of(calls, classes, kinds) for calls in (a, b)]
        evidence = cls(sides[0], sides[1], classes.weak)
        evidence._have_both_levels = all(0 < side.is_module.sum() < len(side.calls) for side in sides)
        evidence._by_input = _places((number, sides[1].inputs[number]) for number in range(len(b)))
        evidence._by_scope = _places(
            (number, [call.scope] * bool(call.scope)) for number, call in enumerate(b)
        )
        evidence._by_word = _rare_words(b)
        return evidence

    def row(self, number: int) -> Numbers:
        """Return the points of a call of A with all calls of B, (B,), int64; 0 if they are not the same."""
        a, b = self.a, self.b
        same_result = self.same_result(number)
        is_strong = int(a.result[number]) not in self.weak
        common = b.kinds[:, a.kinds[number]].any(axis=1)
        alike = (b.kinds == a.kinds[number]).all(axis=1)
        same_level = b.is_module == a.is_module[number]
        alike_by_kind = common & (same_level | (not self._have_both_levels))
        possible = (b.size == a.size[number]) & (alike_by_kind | (same_result & is_strong))
        possible &= b.is_parameter == a.is_parameter[number]
        points = KINDS * common.astype(np.int64) + SAME_KINDS * alike
        points += SAME_LEVEL * same_level
        points += (RESULT if is_strong else WEAK_RESULT) * same_result
        points += self._of_inputs(number) + self._of_neighbours(number)
        points += self._of_scope(a.calls[number].scope)
        return np.asarray(np.where(possible & (points >= LEAST), points, 0))

    def same_result(self, number: int) -> npt.NDArray[np.bool_]:
        """Return a mask of the calls of B that have the result of a call of A, (B,)."""
        result = self.a.result[number]
        return np.asarray((self.b.result == result) & (result >= 0))

    def has_same_result(self, a: int, b: int) -> bool:
        """Return whether two calls have the same result, and not by chance."""
        result = int(self.a.result[a])
        return result >= 0 and result == int(self.b.result[b]) and result not in self.weak

    def has_same_sources(self, a: int, b: int) -> bool:
        """Return whether all that a call of A reads comes from calls that wrote what the one of B reads."""
        sources = self.a.sources[a]
        return bool(sources) and all(self.pairs.get(source) in self.b.sources[b] for source in sources)

    def _of_inputs(self, number: int) -> Numbers:
        points = np.zeros(len(self.b.calls), np.int64)
        classes = self.a.inputs[number]
        for known in classes:
            if known in self._by_input:
                points[self._by_input[known]] += (WEAK_INPUTS if known in self.weak else INPUTS) // len(
                    classes
                )
        return points

    def _of_neighbours(self, number: int) -> Numbers:
        points = np.zeros(len(self.b.calls), np.int64)
        for full, before, after in (
            (SOURCES, self.a.sources[number], self.b.readers),
            (READERS, self.a.readers[number], self.b.sources),
        ):
            for neighbour in before:
                other = self.pairs.get(neighbour)
                if other is not None:
                    points[list(after[other])] += -(-full // len(before))
        return points

    def _of_scope(self, scope: str) -> Numbers:
        points = np.zeros(len(self.b.calls), np.int64)
        for word in _words(scope) & self._by_word.keys():
            points[self._by_word[word]] = WORD
        if scope in self._by_scope:
            points[self._by_scope[scope]] = SCOPE
        return points


def _places(members: Iterable[tuple[int, Iterable[_Key]]]) -> dict[_Key, Numbers]:
    """Return by key the numbers of those that have it."""
    places: dict[_Key, list[int]] = {}
    for number, keys in members:
        for key in keys:
            places.setdefault(key, []).append(number)
    return {key: np.array(numbers, np.int64) for key, numbers in places.items()}


def _words(scope: str) -> set[str]:
    return {word.lower() for word in _WORDS.split(scope) if word}


def _rare_words(calls: Sequence[OperatorCall]) -> dict[str, Numbers]:
    counts = Counter(word for call in calls for word in _words(call.scope))
    rare = {word for word, count in counts.items() if count <= max(_RARE * len(calls), 1)}
    return _places((number, _words(call.scope) & rare) for number, call in enumerate(calls))
