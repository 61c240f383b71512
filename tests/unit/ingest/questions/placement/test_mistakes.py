"""Which tensors are held against one another in the search for what ranks should not hold."""

from ingest.questions.placement.mistakes import gradients_of_parameters
from workers.store.consolidated.blocks import TensorKey


def key(op_type: str, name: str, occurrence: int = 0) -> TensorKey:
    return TensorKey("", "", op_type, name, "output", 0, occurrence)


def test_of_a_gradient_that_passes_add_up_the_last_counts() -> None:
    keys = [
        key("Parameter", "fc.weight"),
        key("Parameter", "fc.bias"),
        key("Gradient", "fc.weight"),
        key("Gradient", "fc.bias"),
        key("Gradient", "fc.weight", 1),
        key("Gradient", "fc.weight", 2),
    ]
    assert gradients_of_parameters(keys) == [(3, 1), (5, 0)]
