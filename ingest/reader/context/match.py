"""Match dumped operators with the operators of a graph.

File names contain the name of an operator with `_` for slash, dot, backslash and space; up to MindSpore 2.2
only its last part, which was unique in a process. The numbers at the end of names (`Cast-op3`) can differ as
well: MindSpore renumbers some operators after it has chosen the file names.

Operators that have no equal name are matched among those of the same scope and type, in two orders: the order
of their first files with the order of execution, and the order of their numbers in both. Either may be wrong.
In a network of casts the new numbers follow execution and the old ones the program, and operators that do not
wait for each other are dumped in any order. So an order that contradicts the types is dropped. If two
different orders remain, or none, an operator is matched only if it is the only one with its types.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ingest.reader.context.ir import Signature, TensorType

EXACT, BY_TYPE, AMBIGUOUS = "exact", "by scope and type", "ambiguous"

_REPLACED = re.compile(r"[/.\\ ]")
_NUMBERED = re.compile(r"(.*)-op(\d{1,18})", re.DOTALL)
#: Pairs of operators whose types are compared; larger groups stay ambiguous.
_MAX_PAIRS = 100_000
#: Names in an `OperatorMatch` that is ambiguous.
_MAX_CANDIDATES = 20


@dataclass(frozen=True, slots=True)
class DumpedOp:
    """An operator as its dumped files describe it."""

    name: str
    first: int = -1
    """When its first file was written, in microseconds since the epoch; -1 if that is not known."""
    types: Mapping[tuple[str, int], TensorType] = field(default_factory=dict)
    """The types of its tensors, by `input` or `output`, and slot."""


@dataclass(frozen=True, slots=True)
class GraphOp:
    """An operator as a graph file names it."""

    name: str
    signature: Signature | None = None
    runs: bool = True
    """Whether it is in the execution order. Operators that are not are matched only by their exact name."""

    def allows(self, op: DumpedOp) -> bool:
        """Return whether a dumped operator may be this one, by its types."""
        return self.signature is None or self.signature.allows(op.types)


@dataclass(frozen=True, slots=True)
class OperatorMatch:
    """The name of a dumped operator in a graph, and how it was matched."""

    names: tuple[str, ...]
    """Full names with scope: one name or, if the match is ambiguous, the first ones of the candidates."""
    how: str
    """`exact`, `by scope and type`, or `ambiguous`."""

    @property
    def name(self) -> str | None:
        """The full name; None if the match is ambiguous."""
        return self.names[0] if self.how != AMBIGUOUS else None

    @property
    def is_whole(self) -> bool:
        """Whether `names` has all candidates."""
        return len(self.names) < _MAX_CANDIDATES


def flatten(name: str) -> str:
    """Return a name as file names contain it; MindSpore 1.1 and 1.2 write `--` for `/`."""
    return _REPLACED.sub("_", name.replace("--", "/"))


def match_ops(dumped: Iterable[DumpedOp], graph: Sequence[GraphOp]) -> dict[str, OperatorMatch]:
    """Match dumped operators with those of one graph.

    Args:
        dumped: all operators of the graph that were dumped in one step.
        graph: the operators of the graph, in order of execution.

    Returns:
        The matches by name in the dump. Operators are left out if the graph has none of their scope and type.
    """
    by_name, by_stem = _index(graph)
    matches: dict[str, OperatorMatch] = {}
    unmatched: dict[str, list[DumpedOp]] = defaultdict(list)
    for op in dumped:
        flat = flatten(op.name)
        if len(targets := by_name.get(flat, [])) == 1:
            matches[op.name] = OperatorMatch((targets[0].name,), EXACT)
        elif targets:
            matches[op.name] = _ambiguous(targets)
        else:
            unmatched[_stem(flat)[0]].append(op)
    taken = {name for match in matches.values() for name in match.names}
    for stem, ops in unmatched.items():
        free = [target for target in by_stem.get(stem, ()) if target.name not in taken]
        matches |= _match_group(ops, free)
    return matches


def _index(graph: Sequence[GraphOp]) -> tuple[dict[str, list[GraphOp]], dict[str, list[GraphOp]]]:
    """Return the operators by name, and those that run by scope and type, both as in names of files."""
    full: dict[str, list[GraphOp]] = defaultdict(list)
    last: dict[str, list[GraphOp]] = defaultdict(list)
    for op in graph:
        full[flatten(op.name)].append(op)
        last[flatten(op.name.rpartition("/")[2])].append(op)
    by_stem: dict[str, list[GraphOp]] = {}
    # Full names take precedence: the last part of another name may be equal to one.
    for names in (last, full):
        stems: dict[str, list[GraphOp]] = defaultdict(list)
        for flat, ops in names.items():
            stems[_stem(flat)[0]] += [op for op in ops if op.runs]
        by_stem |= stems
    return {**last, **full}, by_stem


def _stem(flat: str) -> tuple[str, int]:
    """Return scope and type, and the number; -1 for no number."""
    match = _NUMBERED.fullmatch(flat)
    return (match[1], int(match[2])) if match else (flat, -1)


def _match_group(ops: list[DumpedOp], free: list[GraphOp]) -> dict[str, OperatorMatch]:
    """Match dumped operators of one scope and type, whose names the graph does not have.

    If not one pairing of all is possible, those are matched whose types allow exactly one; the others are
    ambiguous.

    Args:
        ops: the dumped operators.
        free: the operators of the graph of that scope and type which are not matched yet.
    """
    if not free:
        return {}
    pairings = _possible_pairings(ops, free) if len(ops) == len(free) else []
    if len(pairings) == 1:
        return {name: OperatorMatch((target.name,), BY_TYPE) for name, target in pairings[0].items()}
    if len(ops) * len(free) > _MAX_PAIRS:
        return {op.name: _ambiguous(free) for op in ops}
    return _match_by_type(ops, free)


def _match_by_type(ops: list[DumpedOp], free: list[GraphOp]) -> dict[str, OperatorMatch]:
    """Match those operators whose types allow exactly one, which allows no other; the rest is ambiguous."""
    candidates = {op.name: [target for target in free if target.allows(op)] for op in ops}
    uses = Counter(target.name for targets in candidates.values() for target in targets)
    return {
        name: OperatorMatch((targets[0].name,), BY_TYPE)
        if len(targets) == 1 and uses[targets[0].name] == 1
        else _ambiguous(targets or free)
        for name, targets in candidates.items()
    }


def _possible_pairings(ops: list[DumpedOp], free: list[GraphOp]) -> list[dict[str, GraphOp]]:
    """Return the pairings by number and by time that do not contradict the types, without duplicates."""

    def number(op: DumpedOp | GraphOp) -> int:
        return _stem(flatten(op.name))[1]

    numbered = sorted(ops, key=number)
    timed = sorted(numbered, key=lambda op: op.first)
    pairings: list[dict[str, GraphOp]] = []
    for dumped, targets in ((numbered, sorted(free, key=number)), (timed, free)):
        pairing = {op.name: target for op, target in zip(dumped, targets, strict=True)}
        is_possible = all(target.allows(op) for op, target in zip(dumped, targets, strict=True))
        if is_possible and pairing not in pairings:
            pairings.append(pairing)
    return pairings


def _ambiguous(targets: Sequence[GraphOp]) -> OperatorMatch:
    return OperatorMatch(tuple(target.name for target in targets[:_MAX_CANDIDATES]), AMBIGUOUS)
