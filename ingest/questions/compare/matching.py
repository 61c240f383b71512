"""Which tensor of A is which tensor of B, within one step.

In this order, each on what is still unmatched: the mapping file, for somebody said so; the exact key; the
exact name in another network or graph; the name without the numbers that a compiler gives (`-op12`, `_12`,
the number of a call), by order within one type, scope, input or output and shape; the same for a single one
on either side whose shape differs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from ingest.questions.compare.mapping import NameMapping
from ingest.questions.compare.sources import Tensors

#: Numbers at the end of an operator's name.
_TRAILING = re.compile(r"(?:[-_.]?(?:op)?\d+)+$")
#: The number of a call in the names of msProbe: `Torch.relu.0.forward`, `Cell.fc.Dense.forward.0`.
_CALL = re.compile(r"\.\d+\.(forward|backward)\b|\.(forward|backward|parameters_grad)\.\d+\b")


class How(StrEnum):
    """How two tensors were found to be the same one."""

    MAPPING = "mapping"
    EXACT = "exact"
    NAME = "name"
    """The same name in another network or graph."""
    ORDER = "order"
    """The same type, scope, slot and shape, and the same place in the order of these."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """Two tensors, by their numbers in order of execution."""

    a: int
    b: int
    how: How
    ambiguous: bool = False
    """Whether it might as well be another one.

    There are more of these on one side than on the other, digests show that they are in another order, or
    other operators of the same name but for its number show that numbers were given anew.
    """


@dataclass(frozen=True, slots=True)
class Matching:
    """All tensors of one step, matched or not."""

    pairs: list[Pairing]
    """In order of execution in A."""
    only_a: list[int]
    only_b: list[int]


def match(a: Tensors, b: Tensors, mapping: NameMapping | None = None) -> Matching:
    """Match the tensors of two steps; each is in one pair at most."""
    found: list[Pairing] = []
    left_a, left_b = dict.fromkeys(range(len(a.keys))), dict.fromkeys(range(len(b.keys)))

    def take(matches: Iterable[Pairing]) -> None:
        for one in matches:
            found.append(one)
            del left_a[one.a], left_b[one.b]

    if mapping is not None and mapping.rules:
        take(_by_mapping(a, b, mapping))
    where = {b.keys[n]: n for n in left_b}
    take([Pairing(n, where[key], How.EXACT) for n in left_a if (key := a.keys[n]) in where])
    for how, of in _LOOSER:
        if left_a and left_b:
            of_b = _grouped(b, left_b, of)
            groups = [(ours, of_b.get(key, [])) for key, ours in _grouped(a, left_a, of).items()]
            if of is _scope:
                # Of several with other shapes, nothing says which is which.
                groups = [(ours, theirs) for ours, theirs in groups if len(ours) == len(theirs) == 1]
            take([pair for ours, theirs in groups for pair in _in_order(ours, theirs, how)])
    if any(one.how is not How.EXACT for one in found) or left_a or left_b:
        found = list(_with_doubts(a, b, found))
    found.sort(key=lambda one: one.a)
    return Matching(found, list(left_a), list(left_b))


def _with_doubts(a: Tensors, b: Tensors, found: Iterable[Pairing]) -> Iterator[Pairing]:
    """Mark the pairs that might as well be others."""
    groups: dict[Hashable, list[Pairing]] = {}
    for one in found:
        if one.how is How.MAPPING:
            yield one
        else:
            groups.setdefault(_scope(a, one.a), []).append(one)
    operators_a, operators_b = _operators(a), _operators(b)
    for scope, pairs in groups.items():
        in_a, in_b = operators_a[scope], operators_b[scope]
        numbered_anew = in_a != in_b and not in_a.isdisjoint(in_b)
        there = {b.digests[one.b].tobytes() for one in pairs}
        for one in pairs:
            mine, other = a.digests[one.a].tobytes(), b.digests[one.b].tobytes()
            in_other_order = one.how is How.ORDER and any(mine) and mine != other and mine in there
            yield replace(one, ambiguous=True) if numbered_anew or in_other_order else one


def _operators(tensors: Tensors) -> dict[Hashable, set[str]]:
    """Return the names of operators by what is the same of them when numbers are given anew."""
    found: dict[Hashable, set[str]] = {}
    for number, key in enumerate(tensors.keys):
        found.setdefault(_scope(tensors, number), set()).add(key.op_name)
    return found


def _by_mapping(a: Tensors, b: Tensors, mapping: NameMapping) -> list[Pairing]:
    by_name: dict[str, list[int]] = {}
    for number, key in enumerate(b.keys):
        by_name.setdefault(key.name, []).append(number)
    wanted: dict[str, list[int]] = {}
    for number, key in enumerate(a.keys):
        name = mapping.of(key.name)
        if name in by_name:
            wanted.setdefault(name, []).append(number)
    return [pair for name, ours in wanted.items() for pair in _in_order(ours, by_name[name], How.MAPPING)]


def _in_order(ours: list[int], theirs: list[int], how: How) -> list[Pairing]:
    ambiguous = len(ours) != len(theirs)
    return [Pairing(x, y, how, ambiguous) for x, y in zip(ours, theirs, strict=False)]


def _grouped(
    tensors: Tensors, numbers: Iterable[int], of: Callable[[Tensors, int], Hashable]
) -> dict[Hashable, list[int]]:
    groups: dict[Hashable, list[int]] = {}
    for number in numbers:
        groups.setdefault(of(tensors, number), []).append(number)
    return groups


def _name(tensors: Tensors, number: int) -> Hashable:
    return tensors.keys[number]._replace(net="", graph="")


def _scope(tensors: Tensors, number: int) -> tuple[Hashable, ...]:
    key = tensors.keys[number]
    return key.op_type, without_numbers(key.op_name), key.io, key.slot


def _scope_and_shape(tensors: Tensors, number: int) -> Hashable:
    return *_scope(tensors, number), tensors.shapes[number]


_LOOSER: tuple[tuple[How, Callable[[Tensors, int], Hashable]], ...] = (
    (How.NAME, _name),
    (How.ORDER, _scope_and_shape),
    (How.ORDER, _scope),
)


def without_numbers(op_name: str) -> str:
    """Return the name of an operator without the numbers that change from one compilation to the next."""
    plain = _CALL.sub(lambda m: f".{m[1] or m[2]}", op_name)
    return _TRAILING.sub("", plain)
