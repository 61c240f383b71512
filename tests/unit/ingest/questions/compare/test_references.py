"""Outputs of a reference dump and those of an Ascend dump."""

from types import SimpleNamespace
from typing import Any

from ingest.layouts.reference import REFERENCE
from ingest.questions.compare.references import reference_pairs
from workers.store.blocks import TensorKey


def step(*tensors: tuple[str, str, str, int]) -> Any:
    """Return the tensors of a step by type, name, `io` and slot, without attributes."""
    keys = [TensorKey("", "", op_type, name, io, slot, 0) for op_type, name, io, slot in tensors]
    return SimpleNamespace(keys=keys, operands=SimpleNamespace(attributes=lambda _: {}))


MODEL = step(
    (REFERENCE, "conv1", "output", 0), (REFERENCE, "conv1", "output", 1), (REFERENCE, "fc", "output", 0)
)
DUMP = step(
    ("Conv2D", "conv1", "input", 0), ("Conv2D", "conv1", "output", 0), ("Conv2D", "conv1", "output", 1)
)


def test_outputs_are_paired_by_operator_and_slot() -> None:
    assert list(reference_pairs(MODEL, DUMP, range(3), range(3))) == [(0, 1), (1, 2)]


def test_either_side_may_be_the_reference() -> None:
    assert list(reference_pairs(DUMP, MODEL, range(3), range(3))) == [(1, 0), (2, 1)]


def test_two_references_or_none_are_not_paired_here() -> None:
    assert list(reference_pairs(MODEL, MODEL, range(3), range(3))) == []
    assert list(reference_pairs(DUMP, DUMP, range(3), range(3))) == []
