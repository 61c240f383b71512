"""Parameters of two programs that one side dumped before its update, and the other one after it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ingest.questions.compare.compared_tensor import ComparedTensor, Verdict
from ingest.questions.compare.matching import TensorPair
from ingest.reader.flow.operator_kinds import is_input, is_parameter
from workers.store.consolidated.blocks import TensorKey

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
