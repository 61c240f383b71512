"""The row of a tensor that only one side of a comparison has."""

import pytest

from ingest.questions.compare.compared_tensor import Verdict
from ingest.questions.compare.one_sided import one_sided_row
from workers.model import StepKey
from workers.store.consolidated.blocks import TensorKey

STEPS = StepKey(0, 2), StepKey(1, 3)
KEY = TensorKey("", "g", "Add", "add", "output", 0, 0)


@pytest.mark.parametrize(("is_a", "verdict"), [(True, Verdict.ONLY_A), (False, Verdict.ONLY_B)])
def test_the_other_side_has_neither_name_nor_type_nor_shape(is_a: bool, verdict: Verdict) -> None:
    row = one_sided_row(STEPS, 7, KEY, ("float32", (2, 3)), verdict, is_a=is_a)
    own, other = (
        (row.name_a, row.dtype_a, row.shape_a),
        (row.name_b, row.dtype_b, row.shape_b),
    )
    if not is_a:
        own, other = other, own
    assert own == (KEY.name, "float32", (2, 3))
    assert other == ("", "", None)
    assert (row.key_a, row.key_b, row.number, row.verdict) == (*STEPS, 7, verdict)
