"""Matches outputs by the operators of the model that they were made of.

A reference (`ingest.layouts.reference`) names outputs by the operator of the model: `conv1`, output 0. The
dump of a compiled model has the same operator, or one that several were fused into: `conv1conv1_relu`, of
which DumpData or the graph of GE says that it is output 0 of `conv1_relu` of the model. (CANN, accuracy
comparison of whole networks: `original_op` in DumpData, `_datadump_origin_name` in the graph.) The model
counts first, then the name.

Of two dumps of compiled models, with and without fusion for example, the same is true of either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from ingest.dump_configs.model import flatten
from ingest.layouts.reference import REFERENCE
from ingest.questions.compare.step_tensors import StepTensors
from ingest.reader.context.ge_graph import ModelOutput

_ByModel: TypeAlias = dict[ModelOutput, int]


def model_pairs(
    a: StepTensors, b: StepTensors, numbers_a: Iterable[int], numbers_b: Iterable[int]
) -> Iterator[tuple[int, int]]:
    """Yield the numbers of outputs of A and B that are the same output of the model.

    At least one side says so, or is a reference; the other may have the operator of the model by its name.
    """
    of_a, of_b = list(numbers_a), list(numbers_b)
    if is_reference(a, of_a) and is_reference(b, of_b):
        return
    told_a, named_a = _outputs(a, of_a)
    told_b, named_b = _outputs(b, of_b)
    taken: set[int] = set()
    for output, number in {**named_a, **told_a}.items():
        # Equal names alone are for those who compare types, too.
        other = told_b.get(output, named_b.get(output) if output in told_a else None)
        if other is not None and other not in taken:
            taken.add(other)
            yield number, other


def is_reference(tensors: StepTensors, numbers: Iterable[int]) -> bool:
    """Return whether some tensors are of another framework, and named by the operators of the model."""
    return any(tensors.keys[number].op_type == REFERENCE for number in numbers)


def _outputs(dump: StepTensors, numbers: Iterable[int]) -> tuple[_ByModel, _ByModel]:
    """Return the outputs by what they are in the model: as the dump tells, and of the others, by name."""
    told: _ByModel = {}
    named: _ByModel = {}
    numbers = list(numbers)
    if is_reference(dump, numbers):
        known = ((dump.keys[number], number) for number in numbers)
        return {ModelOutput(of.op_name, of.slot): n for of, n in known if of.op_type == REFERENCE}, {}
    for number in numbers:
        key = dump.keys[number]
        if key.io != "output":
            continue
        operands = dump.operands
        if (output := _told(operands.attributes(number)) or operands.model_output(number)) is not None:
            told.setdefault(output, number)
        else:
            named.setdefault(ModelOutput(flatten(key.op_name), key.slot), number)
    return told, named


def _told(attributes: dict[str, Any]) -> ModelOutput | None:
    """Return the output of the model that DumpData names; None if it names none."""
    told = attributes.get("tensor")
    original = told.get("original_op") if isinstance(told, dict) else None
    if not isinstance(original, dict):
        return None
    name, slot = original.get("name"), original.get("output")
    return ModelOutput(flatten(name), slot) if isinstance(name, str) and isinstance(slot, int) else None
