"""Which operator of a graph a dumped one is.

Files spell a name with `_` for slash, dot, backslash and space; up to MindSpore 2.2 only with its last part,
which was then unique in a process. And the numbers at the end of names (`Cast-op3`) can differ: MindSpore
numbers some operators anew after it has named them for the files. Those of one scope and type that are left
over are then compared in two orders: that of their first file with that of execution, and that of their
numbers. Either may be wrong (in a net of casts the new numbers follow execution, the old ones the program;
and operators that do not wait for one another are written in any order). So an order that contradicts the
types is dropped, and where two different ones remain, or none, an operator is matched only if no other has
its types.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ingest.reader.context.types import Signature, TensorType

EXACT, BY_TYPE, AMBIGUOUS = "exact", "by scope and type", "ambiguous"

_REPLACED = re.compile(r"[/.\\ ]")
_NUMBERED = re.compile(r"(.*)-op(\d{1,18})", re.DOTALL)
#: Pairs that are compared one by one; larger groups stay ambiguous.
_MAX_PAIRS = 100_000
#: Names of a `OperatorMatch` that is ambiguous.
_MAX_CANDIDATES = 20


@dataclass(frozen=True, slots=True)
class DumpedOp:
    """An operator as its files show it."""

    name: str
    first: int = -1
    """When its first file was written, in microseconds since the epoch; -1 where that is not known."""
    types: Mapping[tuple[str, int], TensorType] = field(default_factory=dict)
    """By `input` or `output`, and slot."""


@dataclass(frozen=True, slots=True)
class GraphOp:
    """An operator as a graph file names it."""

    name: str
    signature: Signature | None = None
    runs: bool = True
    """Whether it stands in the execution order; what does not can only be found by its own name."""


@dataclass(frozen=True, slots=True)
class OperatorMatch:
    """What a dumped operator is called in a graph, and how that was found."""

    names: tuple[str, ...]
    """Full names with scope: one, or where it is ambiguous the first of those that it may be."""
    how: str
    """`exact`, `by scope and type`, or `ambiguous`."""

    @property
    def name(self) -> str | None:
        """The full name, or None where it is ambiguous."""
        return self.names[0] if self.how != AMBIGUOUS else None

    @property
    def is_whole(self) -> bool:
        """Whether `names` has all that it may be."""
        return len(self.names) < _MAX_CANDIDATES


def flatten(name: str) -> str:
    """Return a name as files spell it (1.1 and 1.2: with `--` for `/`)."""
    return _REPLACED.sub("_", name.replace("--", "/"))


def match_ops(dumped: Iterable[DumpedOp], graph: Sequence[GraphOp]) -> dict[str, OperatorMatch]:
    """Find the operators of one graph that were dumped.

    Args:
        dumped: all operators that one step has dumped of the graph.
        graph: the operators of the graph, in order of execution.

    Returns:
        By the name in the dump; without those of which the graph has none of that scope and type.
    """
    exact, groups = _index(graph)
    matches: dict[str, OperatorMatch] = {}
    left: dict[str, list[DumpedOp]] = defaultdict(list)
    for op in dumped:
        flat = flatten(op.name)
        if len(found := exact.get(flat, [])) == 1:
            matches[op.name] = OperatorMatch((found[0].name,), EXACT)
        elif found:
            matches[op.name] = _ambiguous(found)
        else:
            left[_stem(flat)[0]].append(op)
    taken = {name for match in matches.values() for name in match.names}
    for stem, ops in left.items():
        free = [one for one in groups.get(stem, ()) if one.name not in taken]
        matches |= _match_group(ops, free)
    return matches


def _index(graph: Sequence[GraphOp]) -> tuple[dict[str, list[GraphOp]], dict[str, list[GraphOp]]]:
    """Return the operators by their names, and by their scope and type, as files may spell them."""
    full: dict[str, list[GraphOp]] = defaultdict(list)
    last: dict[str, list[GraphOp]] = defaultdict(list)
    for op in graph:
        full[flatten(op.name)].append(op)
        last[flatten(op.name.rpartition("/")[2])].append(op)
    # A full name always wins: the last part of another one may look like it.
    exact = {**last, **full}
    groups: dict[str, list[GraphOp]] = {}
    for names in (last, full):
        stems: dict[str, list[GraphOp]] = defaultdict(list)
        for flat, ops in names.items():
            stems[_stem(flat)[0]] += [op for op in ops if op.runs]
        groups |= stems
    return exact, groups


def _stem(flat: str) -> tuple[str, int]:
    """Return scope and type, and the number; -1 for none."""
    found = _NUMBERED.fullmatch(flat)
    return (found[1], int(found[2])) if found else (flat, -1)


def _match_group(ops: list[DumpedOp], free: list[GraphOp]) -> dict[str, OperatorMatch]:
    """Match operators of one scope and type, none of which has its own name in the graph."""
    if not free:
        return {}
    pairings = []
    if len(ops) == len(free):
        numbered = sorted(ops, key=_number)
        by_number = dict(zip((op.name for op in numbered), sorted(free, key=_number), strict=True))
        by_time = dict(zip((op.name for op in sorted(numbered, key=lambda op: op.first)), free, strict=True))
        types = {op.name: op.types for op in ops}
        for pairing in (by_number, by_time):
            fits = all(_allows(target, types[name]) for name, target in pairing.items())
            if fits and pairing not in pairings:
                pairings.append(pairing)
    if len(pairings) == 1:
        return {name: OperatorMatch((target.name,), BY_TYPE) for name, target in pairings[0].items()}
    return _by_types_alone(ops, free)


def _by_types_alone(ops: list[DumpedOp], free: list[GraphOp]) -> dict[str, OperatorMatch]:
    """Match those that only one operator of the graph can be; the others are ambiguous."""
    if len(ops) * len(free) > _MAX_PAIRS:
        return {op.name: _ambiguous(free) for op in ops}
    possible = {op.name: [one for one in free if _allows(one, op.types)] for op in ops}
    wanted: dict[str, int] = defaultdict(int)
    for targets in possible.values():
        for target in targets:
            wanted[target.name] += 1
    found = {}
    for name, targets in possible.items():
        if len(targets) == 1 and wanted[targets[0].name] == 1:
            found[name] = OperatorMatch((targets[0].name,), BY_TYPE)
        else:
            found[name] = _ambiguous(targets or free)
    return found


def _allows(target: GraphOp, types: Mapping[tuple[str, int], TensorType]) -> bool:
    return target.signature is None or target.signature.allows(types)


def _number(op: DumpedOp | GraphOp) -> int:
    return _stem(flatten(op.name))[1]


def _ambiguous(targets: Sequence[GraphOp]) -> OperatorMatch:
    return OperatorMatch(tuple(target.name for target in targets[:_MAX_CANDIDATES]), AMBIGUOUS)
