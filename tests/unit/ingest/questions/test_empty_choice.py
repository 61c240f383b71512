"""Why no tensor was chosen, and what may be meant."""

import pytest

from ingest.questions.choosing import empty_choice_error
from ingest.reader.tensor_filter import FilterFields, TensorFilter
from workers.store.consolidated.blocks import BLOCK_COLUMNS, TensorKey

KEYS = [
    TensorKey("Net", "0", "MatMul", "fc-op0", "output", 0),
    TensorKey("Net", "0", "Log", "log-op0", "input", 0),
]


@pytest.mark.parametrize(
    ("fields", "message", "hint"),
    [
        (
            {"name": "matmul.*"},
            "no tensor is named like 'matmul.*'",
            "In another case: MatMul.fc-op0.output.0",
        ),
        ({"op_type": "matmul"}, "no tensor has the op_type 'matmul'", "Did you mean MatMul? Case matters."),
        ({"op_type": "MatMull"}, "no tensor has the op_type 'MatMull'", "Near: MatMul"),
        ({"graph": "9"}, "no tensor has the graph '9'", "There are: 0"),
        ({"role": "loss", "io": "output"}, "no tensor fulfils --role 'loss' --io 'output'", "find STORE"),
    ],
)
def test_the_error_is_about_the_condition_that_nothing_fulfils(
    fields: FilterFields, message: str, hint: str
) -> None:
    error = empty_choice_error(TensorFilter(fields, BLOCK_COLUMNS), KEYS)
    assert error.message == message
    assert hint in error.hint
