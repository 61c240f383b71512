"""Which calls of two programs are the same, and what becomes of the others.

Programs differ in what was fused, recomputed, renamed, moved and left out, in the framework and in the order.
So, in rounds, until nothing changes:

1. Calls are the same in any order if no other call is nearly as likely on either side, and their results are
   the same, or all that they read comes from the same calls.
2. The others are aligned as sequences with gaps, in which these are fixed points.

Each round knows the pairs of the round before, and with them which calls have the same calls before and after
them. So an alignment goes on behind the first real difference, where no content agrees any more.

Sequences are aligned as by S. B. Needleman and C. D. Wunsch (J. Mol. Biol. 48, 1970), but a gap costs
nothing: pairs that keep the order on both sides, with the largest sum of scores. One row of the table of sums
is kept, and for each cell two bits that say from where its sum came.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from ingest.questions.compare.matching import MatchedBy
from ingest.questions.compare.result import Why
from ingest.reader.operator_kinds import is_container

_PREFIX = re.compile(r"^(?:aten|prims?|torch|tensor|functional|primitive|mint|module|cell|npu|vf|ops)[._:]+")
_SUFFIX = re.compile(r"[._](?:default|out|tensor|scalar|int|dim_?intlist|self|onednn)$")
_SEPARATORS = re.compile(r"[^a-z0-9]+")
_BACKWARD = re.compile(r"grad(?!uate)|backward|bprop")
_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in {
        "matmul": r"matmul|addmm|bmm|^mm|linear|dense|gemm|einsum|mmfp",
        "conv": r"conv(?!ert)",
        "bias": r"biasadd|addmm|linear|dense",
        "add": r"(?<!bias)add(?!mm|rms|cmul|cdiv)|^sum|reducesum|tensoradd",
        "sub": r"sub",
        "mul": r"(?<!mat)mul(?!ti|n)",
        "div": r"div|rsqrt|reciprocal",
        "relu": r"relu",
        "gelu": r"gelu",
        "silu": r"silu|swish|swiglu",
        "sigmoid": r"sigmoid",
        "tanh": r"tanh",
        "softmax": r"softmax|attention",
        "norm": r"norm",
        "pool": r"pool",
        "mean": r"mean",
        "loss": r"loss|nll|entropy",
        "embedding": r"embedding|gather|indexselect|take",
        "dropout": r"dropout",
        "attention": r"attention|sdpa",
        "parameter": r"^parameter$",
        "reduce": r"allreduce|reducescatter|allgather|alltoall",
        "optimizer": r"adam|momentum|sgd|lamb|lars|rmsprop|adagrad|ftrl",
        "move": r"^t$|transpose|permute|view|reshape|flatten|squeeze|contiguous|clone|copy|detach|alias"
        r"|identity|expand|broadcast|^cast$|^to$|^depend$|^load$|tupleget|getitem|slice|split|concat|^cat$|stack",
    }.items()
)


@lru_cache(maxsize=4096)
def plain_type(op_type: str) -> str:
    """Return a type of operators without what frameworks put around it: `addmm` for `aten.addmm.out`."""
    text, before = op_type.lower(), ""
    while text != before:
        before, text = text, _SUFFIX.sub("", _PREFIX.sub("", text))
    return _SEPARATORS.sub("", text)


@lru_cache(maxsize=4096)
def kinds_of(op_type: str) -> frozenset[str]:
    """Return the kinds of an operator type; its plain name if they are not known.

    >>> sorted(kinds_of("MatMulBiasAddReluFusion"))
    ['bias', 'matmul', 'relu']
    """
    plain = plain_type(op_type)
    known = {kind for kind, pattern in _KINDS if pattern.search(plain)}
    known = known or {plain}
    return frozenset(f"{kind} backward" for kind in known) if _BACKWARD.search(plain) else frozenset(known)


def only_moves(op_type: str) -> bool:
    """Return whether operators of a type pass elements on as they are, in another place or shape."""
    return kinds_of(op_type) == {"move"}


#: The marks of a value: none of them depends on the order of elements, nor on the shape.
MARKS = ("l1_norm", "l2_norm", "min", "max", "mean")
_MEAN = MARKS.index("mean")
#: Relative difference of marks up to which values may be the same, in types of 32 bits and more.
NEARLY = 1e-3
#: The same in narrower types: an element of bfloat16 has 8 bits.
NEARLY_NARROW = 2.0**-7

Numbers: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Value:
    """One tensor that a call reads or writes."""

    size: int
    content: Hashable = None
    """Equal for equal elements on either side; None if it is not known."""
    marks: tuple[float, ...] = (math.nan,) * len(MARKS)
    """What `MARKS` names; NaN for what is not known."""
    is_weak: bool = False
    """Whether many tensors are equal to it by chance: it is constant, or has one element."""
    is_narrow: bool = False
    """Whether its type has 16 bits at most."""

    @property
    def identity(self) -> Hashable:
        """Equal for tensors of one side that have the same elements; None if nothing is known of them."""
        if self.content is not None:
            return self.content
        known = tuple(None if math.isnan(mark) else mark for mark in self.marks)
        return known if any(mark is not None for mark in known) else None


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """A call of an operator."""

    op_type: str
    inputs: tuple[Value, ...] = ()
    outputs: tuple[Value, ...] = ()
    scope: str = ""
    """Where it is in the network, as far as its name tells."""

    @property
    def result(self) -> Value | None:
        """What it is known by: its first output; without any, its first input."""
        return next(iter((*self.outputs, *self.inputs)), None)


def classes_of(a: Sequence[OperatorCall], b: Sequence[OperatorCall]) -> tuple[dict[int, int], frozenset[int]]:
    """Return the classes of all values of two programs: of equal content, or with nearly equal marks.

    Returns:
        The class by `id` of a value, of those of which something is known; and the classes of values that are
        equal by chance.
    """
    first: dict[Hashable, int] = {}
    distinct: list[Value] = []
    place_of: dict[int, int] = {}
    for value in (value for call in (*a, *b) for value in (*call.inputs, *call.outputs)):
        if value.identity is None:
            continue
        place = first.setdefault((value.size, value.identity), len(distinct))
        if place == len(distinct):
            distinct.append(value)
        place_of[id(value)] = place
    roots = _joined(distinct)
    weak = frozenset(roots[place] for place, value in enumerate(distinct) if value.is_weak)
    return {key: roots[place] for key, place in place_of.items()}, weak


def _joined(values: Sequence[Value]) -> list[int]:
    roots = list(range(len(values)))

    def root(place: int) -> int:
        while roots[place] != place:
            roots[place] = roots[roots[place]]
            place = roots[place]
        return place

    for first, second in _near_pairs(values):
        roots[root(first)] = root(second)
    return [root(place) for place in range(len(values))]


def _near_pairs(values: Sequence[Value]) -> Iterable[tuple[int, int]]:
    """Yield the pairs of values of one size whose marks are nearly equal."""
    by_size: dict[tuple[int, bool], list[int]] = {}
    for place, value in enumerate(values):
        by_size.setdefault((value.size, value.is_weak), []).append(place)
    for places in by_size.values():
        marks = np.array([values[place].marks for place in places], np.float64)
        narrow = np.array([values[place].is_narrow for place in places])
        scale = np.nanmax(np.abs(np.nan_to_num(marks[:, 1:_MEAN], nan=0.0)), axis=1, initial=0.0)
        for column in (0, 1):  # sorted by one of the norms, near values are near each other
            known = np.flatnonzero(~np.isnan(marks[:, column]))
            order = known[np.argsort(marks[known, column], kind="stable")]
            for rank, place in enumerate(order.tolist()):
                limit = marks[place, column] * (1 + 2 * NEARLY_NARROW) + 1e-300
                stop = int(np.searchsorted(marks[order, column], limit, side="right"))
                others = order[rank + 1 : stop]
                for other in others[_are_near(marks, scale, narrow, place, others)].tolist():
                    yield places[place], places[other]


def _are_near(
    marks: npt.NDArray[np.float64],
    scale: npt.NDArray[np.float64],
    narrow: npt.NDArray[np.bool_],
    place: int,
    others: Numbers,
) -> npt.NDArray[np.bool_]:
    """Return a mask of the other values whose marks are near those of one, as far as both are known."""
    mine, theirs = marks[place], marks[others]
    tolerance = np.where(narrow[others] | narrow[place], NEARLY_NARROW, NEARLY)[:, None]
    with np.errstate(invalid="ignore"):
        size = np.maximum(np.abs(mine), np.abs(theirs))
        # Extremes and means may be near zero: what counts is how large elements are.
        size[:, 2:] = np.maximum(size[:, 2:], np.maximum(scale[place], scale[others])[:, None])
        near = (np.abs(mine - theirs) <= tolerance * size) | (mine == theirs)
    return np.asarray((near | np.isnan(mine) | np.isnan(theirs)).all(axis=1))


def sources_of(calls: Sequence[OperatorCall]) -> list[tuple[int, ...]]:
    """Return for each call the calls that wrote what it reads: the latest ones before it, or parameters.

    Calls that only pass elements on wrote nothing.
    """
    written: dict[Hashable, int] = {}
    for number, call in enumerate(calls):
        for key in _known(call.outputs) if call.op_type == _PARAMETER else ():
            written.setdefault(key, number)
    sources: list[tuple[int, ...]] = []
    for number, call in enumerate(calls):
        writers = dict.fromkeys(written[key] for key in _known(call.inputs) if key in written)
        sources.append(tuple(source for source in writers if source != number))
        for key in _known(call.outputs) if call.op_type != _PARAMETER else ():
            if not (only_moves(call.op_type) and key in written):
                written[key] = number
    return sources


def _known(values: Iterable[Value]) -> list[Hashable]:
    return [(value.size, value.identity) for value in values if value.identity is not None]


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


class _Program:
    def __init__(
        self, calls: Sequence[OperatorCall], classes: Mapping[int, int], kinds: Mapping[str, int]
    ) -> None:
        """Look up its values by `id` in `classes`, and its kinds among those of both programs."""
        self.calls = calls
        results = [call.result for call in calls]
        self.result = np.array([classes.get(id(value), -1) for value in results], np.int64)
        """(call,): the class of its result; -1 if it is not known."""
        self.size = np.array([-1 if value is None else value.size for value in results], np.int64)
        """(call,): the number of elements of its result; -1 if it has none."""
        self.kinds = np.zeros((len(calls), len(kinds)), bool)
        """(call, kind)."""
        for number, call in enumerate(calls):
            self.kinds[number, [kinds[kind] for kind in kinds_of(call.op_type)]] = True
        self.is_parameter = np.array([call.op_type == _PARAMETER for call in calls], bool)
        self.is_module = np.array([is_container(call.op_type) for call in calls], bool)
        """(call,): whether it is a module or cell, in which operators run that are in the dump, too."""
        self.inputs = [tuple({classes.get(id(v), -1) for v in call.inputs} - {-1}) for call in calls]
        """By call, the classes of its inputs."""
        self.sources = sources_of(calls)
        """By call, the calls that wrote what it reads."""
        self.readers: list[list[int]] = [[] for _ in calls]
        """By call, the calls that read what it wrote."""
        for number, known in enumerate(self.sources):
            for source in known:
                self.readers[source].append(number)


class _Evidence:
    """The points of all pairs of calls, given those that are known to be the same.

    Two calls are the same only if they have the same result, or do the same and have results of one size. All
    else adds to that: equal inputs, calls before and after that are the same, and the scope.
    """

    def __init__(self, a: Sequence[OperatorCall], b: Sequence[OperatorCall]) -> None:
        classes, self.weak = classes_of(a, b)
        names = sorted({kind for call in (*a, *b) for kind in kinds_of(call.op_type)})
        kinds = {name: number for number, name in enumerate(names)}
        self.a, self.b = (_Program(calls, classes, kinds) for calls in (a, b))
        self.pairs: dict[int, int] = {}
        """Calls of B by those of A that are the same."""
        # Where both sides have modules and what runs in them, a module does not count as an operator.
        sides = self.a, self.b
        self._have_both_levels = all(0 < side.is_module.sum() < len(side.calls) for side in sides)
        self._by_input = _places(enumerate(self.b.inputs))
        self._by_scope = _places((number, [call.scope] * bool(call.scope)) for number, call in enumerate(b))
        self._by_word = _rare_words(b)

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


def align_sequences(score_row: Callable[[int], Numbers], count_a: int, count_b: int) -> list[tuple[int, int]]:
    """Return pairs of places in A and B, ascending on both sides, whose scores add up to the most.

    Takes time in proportion to the product of both lengths, in numpy (about 0.2 s for 5000 by 5000), and
    memory for two bits of each pair (6 MB).

    Args:
        score_row: returns the scores of a place of A with all of B, (B,); 0 or less: they are not the same.
        count_a: the length of A.
        count_b: the length of B.
    """
    best: Numbers = np.zeros(count_b + 1, np.int64)
    moves = []
    for place in range(count_a):
        above, best, scores = best, best.copy(), score_row(place)
        best[1:] = np.maximum(above[1:], np.where(scores > 0, above[:-1] + scores, 0))
        best = np.maximum.accumulate(best)
        moves.append(np.packbits([best[1:] == best[:-1], best[1:] == above[1:]], axis=1))
    pairs, column = list[tuple[int, int]](), count_b
    for place in reversed(range(count_a)):
        from_left, from_above = np.unpackbits(moves[place], axis=1, count=count_b)
        while column and from_left[column - 1]:
            column -= 1
        if column and not from_above[column - 1]:
            column -= 1
            pairs.append((place, column))
    return pairs[::-1]


#: By how many points a call must be ahead of all others to be the same in any order.
_AHEAD = 4
#: Points for a fixed point of a sequence, besides its own.
_FIXED = 16
_ROUNDS = 3
_NONE = -1


class AlignedCalls(NamedTuple):
    """Two calls that are the same."""

    a: int
    b: int
    because: MatchedBy
    """What shows it: `exact` if it was known before."""


class Gap(NamedTuple):
    """A call that only one side has, `A` or `B`."""

    side: str
    number: int
    why: Why
    of: int | None = None
    """The call that has the same result, of its own side; or that does it, too, of the other side."""


def align(
    a: Sequence[OperatorCall], b: Sequence[OperatorCall], known: Mapping[int, int] | None = None
) -> tuple[list[AlignedCalls], list[Gap]]:
    """Return which calls of two programs are the same, by the number in A; and the gaps, those of A first.

    Takes time in proportion to the product of their lengths: 1 s for 2000 by 2000 calls; memory for 32 MB of
    sums at the most, and what is proportional to the lengths.

    Args:
        a: the calls of A, in order of execution.
        b: the calls of B, in order of execution.
        known: calls of B by those of A that are the same for certain.
    """
    evidence = _Evidence(a, b)
    fixed = dict(known or {})
    pairs = dict(fixed)
    for _ in range(_ROUNDS):
        evidence.pairs = pairs
        anchors = {**_anchors(evidence, fixed), **fixed}
        row = partial(_anchored_row, evidence, anchors, np.array(sorted(anchors.values()), np.int64))
        aligned = dict(align_sequences(row, len(a), len(b)))
        aligned.update(anchors)
        if aligned == pairs:
            break
        pairs = aligned
    evidence.pairs = pairs
    calls = [AlignedCalls(i, j, _because(evidence, i, j, fixed)) for i, j in sorted(pairs.items())]
    of_b = _gaps("B", evidence.b, evidence.a, {j: i for i, j in pairs.items()})
    return calls, [*_gaps("A", evidence.a, evidence.b, pairs), *of_b]


def _anchored_row(evidence: _Evidence, anchors: Mapping[int, int], taken: Numbers, number: int) -> Numbers:
    """Return the points of a call of A with all of B, (B,); anchors have none with others than their own."""
    points = evidence.row(number)
    if number not in anchors:
        points[taken] = 0
        return points
    alone, other = np.zeros_like(points), anchors[number]
    alone[other] = _FIXED + points[other]
    return alone


def _anchors(evidence: _Evidence, fixed: Mapping[int, int]) -> dict[int, int]:
    """Return the calls that are the same whatever the order: none other is nearly as likely."""
    count = len(evidence.b.calls)
    taken = np.array(sorted(fixed.values()), np.int64)
    best = np.zeros(count, np.int64)
    second = np.zeros(count, np.int64)
    best_of = np.full(count, _NONE)
    candidates: dict[int, int] = {}
    for number in range(len(evidence.a.calls)):
        if number in fixed or not count:
            continue
        points = evidence.row(number)
        points[taken] = 0
        higher = points > best
        second = np.where(higher, best, np.maximum(second, points))
        best = np.where(higher, points, best)
        best_of[higher] = number
        top = int(points.argmax())
        if points[top] >= np.delete(points, top).max(initial=0) + _AHEAD:
            candidates[number] = top
    return {
        number: other
        for number, other in candidates.items()
        if best_of[other] == number
        and best[other] >= second[other] + _AHEAD
        and (evidence.has_same_result(number, other) or evidence.has_same_sources(number, other))
    }


def _because(evidence: _Evidence, number: int, other: int, fixed: Mapping[int, int]) -> MatchedBy:
    call_a, call_b = evidence.a.calls[number], evidence.b.calls[other]
    if fixed.get(number) == other:
        return MatchedBy.EXACT
    if evidence.has_same_result(number, other):
        return MatchedBy.CONTENT
    if evidence.has_same_sources(number, other):
        return MatchedBy.PRODUCERS
    return MatchedBy.SCOPE if call_a.scope and call_a.scope == call_b.scope else MatchedBy.SEQUENCE


def _gaps(name: str, side: _Program, other: _Program, pairs: Mapping[int, int]) -> list[Gap]:
    """Explain the calls of a side that have no counterpart; `pairs` are the counterparts of its calls."""
    fused = _fused_into(side, other, pairs)
    done = [(int(result), tuple(sorted(read))) for result, read in zip(side.result, side.inputs, strict=True)]
    by_result: dict[tuple[int, tuple[int, ...]], int] = {}
    for number in pairs:
        by_result.setdefault(done[number], number)
    gaps = []
    for number in (number for number in range(len(side.calls)) if number not in pairs):
        again = by_result.get(done[number], _NONE) if done[number][0] >= 0 else _NONE
        gaps.append(Gap(name, number, *_became(side, number, again, fused.get(number, _NONE))))
    return gaps


def _became(side: _Program, number: int, again: int, fused: int) -> tuple[Why, int | None]:
    """Return what became of a call, and in which other one: `again` has its result, `fused` does it, too."""
    call = side.calls[number]
    if is_container(call.op_type):
        return Why.CONTAINS, None
    if only_moves(call.op_type):
        return Why.MOVES, None
    if again != _NONE and call.inputs:
        return Why.RECOMPUTED, again
    if fused != _NONE:
        return Why.FUSED, fused
    return Why.UNUSED if call.inputs and call.outputs and not side.readers[number] else Why.UNKNOWN, None


def _fused_into(side: _Program, others: _Program, pairs: Mapping[int, int]) -> dict[int, int]:
    """Return by call without a counterpart which call of the other side does it, too, or right behind it.

    That is the counterpart of the call that first reads what it writes, maybe by way of others without one.
    The counterpart must read what this one reads or writes, or do what it does.
    """
    into: dict[int, int] = {}
    for number in reversed(range(len(side.calls))):
        if number in pairs or not side.readers[number] or side.is_parameter[number]:
            continue
        reader = side.readers[number][0]
        end = pairs.get(reader, into.get(reader, _NONE))
        if end == _NONE:
            continue
        read = {*side.inputs[number], int(side.result[number])}
        does_it = bool((others.kinds[end] & side.kinds[number]).any())
        is_read = bool(read & set(others.inputs[end]))
        if reader in into or does_it or is_read or only_moves(side.calls[number].op_type):
            into[number] = end
    return into
