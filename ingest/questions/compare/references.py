"""Matches the outputs of a reference dump with those of an Ascend dump.

A reference (`ingest.layouts.reference`) names outputs by the operator of the model: `conv1`, output 0. The
dump of a compiled model has the same operator, or one that several were fused into: `conv1conv1_relu`, whose
DumpData says that it is output 0 of `conv1_relu` of the model. (CANN, accuracy comparison of whole networks:
`original_op` in DumpData.) The model counts first, then the name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from ingest.dump_configs.model import flatten
from ingest.layouts.reference import REFERENCE
from ingest.questions.compare.sources import StepTensors

_Output: TypeAlias = tuple[str, int]
"""The name of an operator as files have it, and the slot of its output."""


def reference_pairs(
    a: StepTensors, b: StepTensors, numbers_a: Iterable[int], numbers_b: Iterable[int]
) -> Iterator[tuple[int, int]]:
    """Yield which tensor of A is which of B, if exactly one of the two is a reference; by their numbers."""
    of_a, of_b = list(numbers_a), list(numbers_b)
    if _is_reference(a, of_a) == _is_reference(b, of_b):
        return
    if _is_reference(a, of_a):
        yield from _pairs(a, b, of_a, of_b)
    else:
        yield from ((number, other) for other, number in _pairs(b, a, of_b, of_a))


def _is_reference(tensors: StepTensors, numbers: Iterable[int]) -> bool:
    return any(tensors.keys[number].op_type == REFERENCE for number in numbers)


def _pairs(
    reference: StepTensors, dump: StepTensors, wanted: Iterable[int], numbers: Iterable[int]
) -> Iterator[tuple[int, int]]:
    outputs = [number for number in numbers if dump.keys[number].io == "output"]
    by_model: dict[_Output, int] = {}
    by_name: dict[_Output, int] = {}
    for number in outputs:
        key = dump.keys[number]
        by_name.setdefault((flatten(key.op_name), key.slot), number)
        if (original := _original(dump.operands.attributes(number))) is not None:
            by_model.setdefault(original, number)
    taken: set[int] = set()
    for number in wanted:
        key = reference.keys[number]
        name = (key.op_name, key.slot)
        other = by_model.get(name, by_name.get(name))
        if key.op_type == REFERENCE and other is not None and other not in taken:
            taken.add(other)
            yield number, other


def _original(attributes: dict[str, Any]) -> _Output | None:
    told = attributes.get("tensor")
    original = told.get("original_op") if isinstance(told, dict) else None
    if not isinstance(original, dict):
        return None
    name, output = original.get("name"), original.get("output")
    return (flatten(name), output) if isinstance(name, str) and isinstance(output, int) else None
