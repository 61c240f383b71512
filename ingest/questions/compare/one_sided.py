"""What only one side of a comparison has, and whether that makes a difference."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ingest.questions.compare.compared_tensor import GOOD, UNMATCHED, ComparedTensor, Verdict
from ingest.questions.compare.matching import MatchedBy, Matching, TensorPair
from ingest.questions.compare.step_tensors import StepTensors
from ingest.questions.placement.decide import Certainty
from ingest.reader.flow.operator_kinds import is_input, is_parameter
from ingest.reader.flow.step_parts import StepPart, parts_of
from workers.store.consolidated.blocks import OperatorKey, TensorKey


def with_last_gradients(matching: Matching, a: StepTensors, b: StepTensors) -> Matching:
    """Return a matching in which gradients that were added up in other numbers of calls are the last ones.

    Each call dumps the gradient of a parameter again, with its part added: only the last one is whole.
    """
    sides: list[defaultdict[TensorKey, list[int]]] = []
    for tensors in (a, b):
        sides.append(defaultdict(list))
        for number, part in enumerate(parts_of(tensors.keys)):
            if part is StepPart.PARAMETER_GRADIENT:
                sides[-1][tensors.keys[number]._replace(occurrence=0, copy=0)].append(number)
    added = [
        (sides[0][name], sides[1][name])
        for name in sides[0].keys() & sides[1].keys()
        if len(sides[0][name]) != len(sides[1][name])
    ]
    if not added:
        return matching
    of_a, of_b = ({n for pair in added for n in pair[side]} for side in (0, 1))
    pairs = [pair for pair in matching.pairs if pair.a not in of_a and pair.b not in of_b]
    pairs += [TensorPair(own[-1], other[-1], MatchedBy.NAME) for own, other in added]
    paired = {pair.a for pair in pairs}, {pair.b for pair in pairs}
    return replace(
        matching,
        pairs=sorted(pairs),
        only_a=sorted(set(range(len(a.keys))) - paired[0]),
        only_b=sorted(set(range(len(b.keys))) - paired[1]),
    )


def counterparts(
    a: StepTensors, b: StepTensors, pairs: Sequence[TensorPair]
) -> dict[tuple[str, OperatorKey], OperatorKey]:
    """Return the counterpart of each operator, by side: the one with which it shares most tensors."""
    shared = Counter((a.keys[pair.a].operator, b.keys[pair.b].operator) for pair in pairs)
    partners: dict[tuple[str, OperatorKey], OperatorKey] = {}
    for (first, second), _ in shared.most_common():
        partners.setdefault(("A", first), second)
        partners.setdefault(("B", second), first)
    return partners


#: Single functions, which are numbered in order: one more or less moves all numbers.
NUMBERED = ("Functional.", "Tensor.", "Torch.")
#: With fewer tensors that agree, nothing is known of what others do.
_FEWEST = 3
_NO_EFFECT = "nothing that both sides have differs"


def without_effect(
    rows: Sequence[ComparedTensor], named: int, keys: tuple[Iterable[TensorKey], Iterable[TensorKey]]
) -> list[ComparedTensor]:
    """Return the rows of a step, with what makes no difference as ignored.

    That is what only one side has, such as recomputed activations, or what is paired by more than names, if
    all else agrees: had it an effect, something would differ. Parameters and their gradients have theirs in
    later steps; one in another form, such as a sparse gradient, is there on both sides.

    Args:
        rows: the step's, of equal tensors maybe none.
        named: how many pairs names tell.
        keys: the tensors of A and of B.
    """
    if named < _FEWEST or not all(row.verdict in GOOD for row in rows if is_sure(row)):
        return list(rows)
    parts = [parts_of(of_side) for of_side in keys]
    operators = [{f"{key.op_type}.{key.op_name}" for key in of_side} for of_side in keys]

    def is_missing(row: ComparedTensor) -> bool:
        matters = parts[not row.name_a][row.number].is_of_parameter
        operator = row.name.rpartition(f".{row.io}")[0]
        return matters and (row.verdict is Verdict.SHAPE or operator not in operators[bool(row.name_a)])

    return [
        row
        if is_sure(row) or row.verdict in GOOD or is_missing(row)
        else replace(row, verdict=Verdict.IGNORED, reason=row.reason or _NO_EFFECT)
        for row in rows
    ]


def is_sure(row: ComparedTensor) -> bool:
    """Return whether names tell that both sides have the tensor: a number of a call does not.

    Nor do they if shapes differ: the calls of one side may read more samples than those of the other. Where
    it is open how ranks hold a tensor, nothing is known of it but by what was computed from it.
    """
    if row.verdict is Verdict.UNKNOWN:
        held = row.held
        return held is None or held.certainty != Certainty.OPEN or row.reason != held.explanation
    is_told = not row.guessed and not row.op_type.startswith(NUMBERED) and row.verdict is not Verdict.SHAPE
    return is_told and row.verdict not in UNMATCHED


_UPDATED = "dumped before its update on one side, and after it on the other: operators read the same"


def ignoring_updates(
    rows: Sequence[ComparedTensor],
    pairs: Iterable[TensorPair],
    keys: Sequence[TensorKey],
    contents: tuple[Sequence[bytes], Sequence[bytes]],
) -> list[ComparedTensor]:
    """Return the rows of two programs, with parameters as ignored that differ by their update alone.

    Such a parameter differs, and all that reads it as one side dumped it reads the same on the other side.

    Args:
        rows: those of tensors that both sides have.
        pairs: the tensors that were compared.
        keys: the names of the tensors of A.
        contents: the digests of the tensors of A, and of B; zeros if not known.
    """
    pair_of = {pair.a: pair for pair in pairs}
    readers: tuple[dict[bytes, list[int]], ...] = ({}, {})
    for pair in pair_of.values():
        if is_input(keys[pair.a].io) and pair.matched_by.is_guess:
            for place, content in enumerate(_contents(pair, contents)):
                readers[place].setdefault(content, []).append(pair.a)
    differ = {row.number for row in rows if row.verdict is Verdict.DIFFERENT}

    def is_updated(row: ComparedTensor) -> bool:
        own = _contents(pair_of[row.number], contents)
        read = [known.get(content, []) for known, content in zip(readers, own, strict=True) if any(content)]
        return any(numbers and differ.isdisjoint(numbers) for numbers in read)

    return [
        replace(row, verdict=Verdict.IGNORED, reason=_UPDATED)
        if row.number in differ and is_parameter(row.op_type) and is_updated(row)
        else row
        for row in rows
    ]


def _contents(pair: TensorPair, contents: tuple[Sequence[bytes], Sequence[bytes]]) -> tuple[bytes, bytes]:
    return contents[0][pair.a], contents[1][pair.b]
