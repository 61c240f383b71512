"""What operators do, by their types in several frameworks."""

import pytest

from ingest.questions.compare.alignment.calls import kinds_of, only_moves, plain_type


@pytest.mark.parametrize(
    ("op_type", "kinds"),
    [
        ("MatMulBiasAddReluFusion", {"matmul", "bias", "relu"}),
        ("aten.addmm.out", {"matmul", "bias"}),
        ("Module.Linear", {"matmul", "bias"}),
        ("BiasAdd", {"bias"}),
        ("ReluGrad", {"relu backward"}),
        ("aten.native_layer_norm_backward", {"norm backward"}),
        ("aten.t", {"move"}),
        ("Functional.max_pool2d", {"pool"}),
        ("aten.mul.Tensor", {"mul"}),
        ("MyKernel", {"mykernel"}),
    ],
)
def test_kinds(op_type: str, kinds: set[str]) -> None:
    assert kinds_of(op_type) == kinds


def test_only_what_changes_nothing_moves() -> None:
    assert only_moves("aten.view")
    assert not only_moves("ViewAndAdd")
    assert plain_type("aten::addmm.out") == "addmm"
