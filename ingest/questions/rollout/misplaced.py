"""Right values in the wrong place: by what other layers, experts and shards of the same program show."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple, TypeVar

from ingest.questions.rollout.stretches import (
    DIFFERENT,
    EQUAL,
    MISPLACED,
    OPEN,
    STALE,
    Arrived,
    FibreStretch,
    sources_text,
)

_Value = TypeVar("_Value", bound=Hashable)
_NUMBER = re.compile(r"(?:(?<=[._/])|^)\d+(?=[._/]|$)")
_ORDER = "not in the trainer's order: values do not tell whether it is right"
_SQUARE = "square, and nothing else is transposed: values do not tell whether it should be"


def misplaced(tensors: Sequence[Arrived]) -> list[Arrived]:
    """Return tensors with what is not where most others of their kind are, and with what stays open."""
    told: dict[tuple[int, int], str] = {}
    told |= _odd_numbers(tensors)
    told |= _odd_shards(tensors)
    told |= {place: text for place, text in _odd_orders(tensors).items() if place not in told}
    odd = {number for number, _ in told}
    is_transposed = any(each.is_transposed and not _is_square(each) for each in tensors)
    return [
        replace(
            each,
            stretches=tuple(
                _judged(stretch, told.get((number, place), ""))
                for place, stretch in enumerate(each.stretches)
            ),
            note="" if number in odd else _note(each, is_transposed=is_transposed),
        )
        for number, each in enumerate(tensors)
    ]


def _judged(stretch: FibreStretch, problem: str) -> FibreStretch:
    if not problem:
        return stretch
    return replace(stretch, verdict=DIFFERENT if stretch.verdict == OPEN else MISPLACED, how=problem)


def _is_square(tensor: Arrived) -> bool:
    return tensor.shape[-1] == tensor.shape[-2]


def _note(tensor: Arrived, *, is_transposed: bool) -> str:
    if tensor.is_transposed and _is_square(tensor) and not is_transposed:
        return _SQUARE
    # Ranks of the trainer hold parts of a slice, one behind another.
    places = [(stretch.of_number, stretch.first, stretch.of_rank) for _, stretch in _placed(tensor)]
    ends: dict[tuple[str, int], int] = {}
    has_gap = False
    for _, each in _placed(tensor):
        has_gap |= ends.get((each.of, each.of_rank), each.first) != each.first
        ends[each.of, each.of_rank] = each.first + each.length
    return _ORDER if has_gap or places != sorted(places) else ""


def _placed(tensor: Arrived) -> list[tuple[int, FibreStretch]]:
    """Return the stretches whose place in the trainer is certain, with their numbers."""
    return [
        (place, stretch)
        for place, stretch in enumerate(tensor.stretches)
        if stretch.verdict in (EQUAL, STALE) and stretch.of and stretch.is_certain
    ]


def _pattern(name: str) -> str:
    return _NUMBER.sub("*", name)


def _majority(values: Iterable[_Value]) -> _Value | None:
    """Return the value that more than half have, if two have it or more."""
    counts = Counter(values)
    for value, count in counts.most_common(1):
        if count > 1 and 2 * count > counts.total():
            return value
    return None


class _NameNumber(NamedTuple):
    """A number in the name of a trainer's parameter by one in the rollout: a layer or an expert."""

    place: tuple[int, int]
    kind: tuple[str, int, str]
    """The patterns of both names, and which number of the first."""
    of: int
    candidates: tuple[int, ...]
    """The numbers in the rollout's name, and last its place among pieces of the same pattern."""
    word: str
    ranks: tuple[int, int]


def _steps(tensors: Sequence[Arrived]) -> Iterator[_NameNumber]:
    for number, tensor in enumerate(tensors):
        own = tuple(map(int, _NUMBER.findall(tensor.name)))
        order: dict[str, dict[str, int]] = defaultdict(dict)
        for place, stretch in _placed(tensor):
            of_pattern = order[_pattern(stretch.of)]
            slot = of_pattern.setdefault(stretch.of, len(of_pattern))
            for position, match in enumerate(_NUMBER.finditer(stretch.of)):
                word = re.split(r"[._/]", stretch.of[: match.start()].rstrip("._/"))[-1]
                kind = (_pattern(stretch.of), position, _pattern(tensor.name))
                ranks = tensor.rank, stretch.of_rank
                yield _NameNumber((number, place), kind, int(match[0]), (*own, slot), word, ranks)


def _odd_numbers(tensors: Sequence[Arrived]) -> dict[tuple[int, int], str]:
    """Return stretches that come from another layer or expert than most at the same place."""
    by_kind: dict[tuple[str, int, str], list[_NameNumber]] = defaultdict(list)
    for step in _steps(tensors):
        by_kind[step.kind].append(step)
    pools: dict[tuple[str, tuple[int, int]], list[_Shift]] = defaultdict(list)
    for steps in by_kind.values():
        counts = [
            sum(
                max(Counter(step.of - step.candidates[which] for step in of_ranks).values())
                for of_ranks in _by_ranks(steps)
            )
            for which in range(len(steps[0].candidates))
        ]
        which = counts.index(max(counts))
        for step in steps:
            others = step.candidates[:which] + step.candidates[which + 1 :]
            pools[step.word, step.ranks].append(_Shift(step, step.candidates[which], others))
    told: dict[tuple[int, int], str] = {}
    for (word, _), pool in pools.items():
        usual = _majority(shift.step.of - shift.own for shift in pool)
        odd = [each for each in pool if usual is not None and each.step.of != each.own + usual]
        for shift in odd:
            belongs = shift.own + (usual or 0)
            if "expert" not in word or not _is_permutation(shift, pool):
                told[shift.step.place] = f"of {word} {shift.step.of}, where {word} {belongs} belongs"
    return told


class _Shift(NamedTuple):
    """A number, the number of the rollout that it goes with, and the others of the rollout's name."""

    step: _NameNumber
    own: int
    others: tuple[int, ...]


def _is_permutation(shift: _Shift, pool: Iterable[_Shift]) -> bool:
    """Return whether all parameters of an expert moved with it: right if the router, or a map, did, too."""
    moved = [each.step for each in pool if (each.own, each.others) == (shift.own, shift.others)]
    return len({step.kind[2] for step in moved}) > 1 and len({step.of for step in moved}) == 1


def _by_ranks(steps: Iterable[_NameNumber]) -> Iterable[list[_NameNumber]]:
    ranks: dict[tuple[int, int], list[_NameNumber]] = defaultdict(list)
    for step in steps:
        ranks[step.ranks].append(step)
    return ranks.values()


def _odd_shards(tensors: Sequence[Arrived]) -> dict[tuple[int, int], str]:
    """Return slices that begin elsewhere than most slices of the same share on their rank do.

    What lies between elements that differ is not a slice.
    """
    pools: dict[tuple[int, Fraction], list[tuple[list[tuple[int, int]], Fraction]]] = defaultdict(list)
    for number, tensor in enumerate(tensors):
        if any(stretch.verdict in (OPEN, DIFFERENT) for stretch in tensor.stretches):
            continue
        slices: dict[tuple[str, int], list[tuple[int, FibreStretch]]] = defaultdict(list)
        for place, stretch in _placed(tensor):
            slices[stretch.of, stretch.of_rank].append((place, stretch))
        for parts in slices.values():
            first = min(part.first for _, part in parts)
            length = max(part.first + part.length for _, part in parts) - first
            whole = parts[0][1].of_length
            if length < whole and length == sum(part.length for _, part in parts):
                places = [(number, place) for place, _ in parts]
                pools[tensor.rank, Fraction(length, whole)].append((places, Fraction(first, whole)))
    told: dict[tuple[int, int], str] = {}
    for (_, share), pool in pools.items():
        most = _majority(begin for _, begin in pool)
        for places, begin in pool:
            if most is not None and begin != most:
                shards = f"shard {float(begin / share):g}", f"shard {float(most / share):g}"
                told |= dict.fromkeys(
                    places, f"{shards[0]}, where other tensors of the rank hold {shards[1]}"
                )
    return told


def _odd_orders(tensors: Sequence[Arrived]) -> dict[tuple[int, int], str]:
    """Return tensors that are put together in another way than most of the same name in other layers."""
    siblings: dict[tuple[int, str, tuple[int, ...]], list[int]] = defaultdict(list)
    for number, tensor in enumerate(tensors):
        siblings[tensor.rank, _pattern(tensor.name), tensor.shape].append(number)
    told: dict[tuple[int, int], str] = {}
    for numbers in siblings.values():
        orders = {number: _order(tensors[number]) for number in numbers if _is_certain(tensors[number])}
        usual = _majority(orders.values())
        if usual is None:
            continue
        other = tensors[next(each for each in orders if orders[each] == usual)]
        like = f"not put together as {other.name}: {sources_text(other.stretches)}"
        like += ", transposed" if other.is_transposed else ""
        for number in numbers:
            is_odd = orders.get(number, usual) != usual
            told |= {
                (number, place): like
                for place, stretch in enumerate(tensors[number].stretches)
                if is_odd or (stretch.verdict == OPEN and not stretch.plus)
            }
    return told


def _is_certain(tensor: Arrived) -> bool:
    return all(
        each.is_certain and each.verdict in (EQUAL, STALE) and not each.how for each in tensor.stretches
    )


def _order(tensor: Arrived) -> Hashable:
    first_rank = min(each.of_rank for each in tensor.stretches)
    return tuple(
        (
            each.axis,
            each.of_axis,
            each.begin,
            each.end,
            _pattern(each.of),
            each.first,
            each.of_rank - first_rank,
        )
        for each in tensor.stretches
    )
