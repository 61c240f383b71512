"""Outputs of a reference dump and those of an Ascend dump."""

from types import SimpleNamespace
from typing import Any

from ingest.layouts.cann import REFERENCE
from ingest.questions.compare.matching import model_pairs
from ingest.reader.context.ge_graph import ModelOutput
from workers.store.consolidated.blocks import TensorKey


def step(*tensors: tuple[str, str, str, int], of_model: dict[int, ModelOutput] | None = None) -> Any:
    """Return the tensors of a step by type, name, `io` and slot, and what a graph says of their numbers."""
    keys = [TensorKey("", "", op_type, name, io, slot, 0) for op_type, name, io, slot in tensors]
    operands = SimpleNamespace(attributes=lambda _: {}, model_output=(of_model or {}).get)
    return SimpleNamespace(keys=keys, operands=operands)


MODEL = step(
    (REFERENCE, "conv1", "output", 0), (REFERENCE, "conv1", "output", 1), (REFERENCE, "fc", "output", 0)
)
DUMP = step(
    ("Conv2D", "conv1", "input", 0), ("Conv2D", "conv1", "output", 0), ("Conv2D", "conv1", "output", 1)
)


def test_outputs_are_paired_by_operator_and_slot() -> None:
    assert list(model_pairs(MODEL, DUMP, range(3), range(3))) == [(0, 1), (1, 2)]


def test_either_side_may_be_the_reference() -> None:
    assert list(model_pairs(DUMP, MODEL, range(3), range(3))) == [(1, 0), (2, 1)]


def test_two_references_are_not_paired_here() -> None:
    assert list(model_pairs(MODEL, MODEL, range(3), range(3))) == []


def test_the_graph_says_which_output_of_the_model_a_fused_one_is() -> None:
    fused = step(
        ("Conv2D", "conv1fc", "output", 0),
        ("Conv2D", "conv1", "output", 0),
        of_model={0: ModelOutput("fc", 0), 1: ModelOutput("conv1", 1)},
    )
    assert list(model_pairs(MODEL, fused, range(3), range(2))) == [(1, 1), (2, 0)]
    plain = step(("Relu", "fc", "output", 0), ("Conv2D", "conv1", "output", 0))
    assert list(model_pairs(plain, fused, range(2), range(2))) == [(0, 0)]
    assert list(model_pairs(fused, plain, range(2), range(2))) == [(0, 0)]
    assert list(model_pairs(fused, fused, range(2), range(2))) == [(0, 0), (1, 1)]


def test_equal_names_alone_do_not_make_one_output_of_the_model() -> None:
    assert list(model_pairs(DUMP, DUMP, range(3), range(3))) == []
