"""What operators compute: every definition against numpy, which knows when a result is not finite."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ingest.identities.operators import plain_name
from ingest.questions.why.definitions import ELEMENTWISE, reasons_of, reasons_of_rows

#: Inputs that show what goes wrong, and what numpy computes.
CASES: dict[str, tuple[Callable[..., Any], list[list[float]]]] = {
    "log": (np.log, [[0, -1, 2]]),
    "log1p": (np.log1p, [[-1, -2, 2]]),
    "sqrt": (np.sqrt, [[0, -1, 2]]),
    "reciprocal": (np.reciprocal, [[0, 1, 2]]),
    "realdiv": (np.divide, [[0, 1, np.inf, 1], [0, 0, np.inf, 2]]),
    "mul": (np.multiply, [[0, 1e30, np.inf, 2], [np.inf, 1e30, 0, 3]]),
    "add": (np.add, [[np.inf, 3e38, 1], [-np.inf, 3e38, 1]]),
    "sub": (np.subtract, [[np.inf, 3e38, 1], [np.inf, -3e38, 1]]),
    "exp": (np.exp, [[100, 1]]),
    "square": (np.square, [[1e30, 1]]),
    "pow": (np.power, [[0, -2, 1e30, 2], [-1, 0.5, 2, 2]]),
    "asin": (np.arcsin, [[2, 0.5]]),
    "acosh": (np.arccosh, [[0.5, 2]]),
    "atanh": (np.arctanh, [[1, 2, 0.5]]),
    "sin": (np.sin, [[np.inf, 1]]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_reason_is_given_exactly_where_the_result_is_not_finite(name: str) -> None:
    function, lists = CASES[name]
    operands = [np.array(values, np.float32) for values in lists]
    with np.errstate(all="ignore"):
        result = function(*operands)
    wide = [operand.astype(np.float64) for operand in operands]
    reasons = reasons_of(ELEMENTWISE[name], wide, result.astype(np.float64), result.dtype)
    assert [bool(reason) for reason in reasons] == (~np.isfinite(result)).tolist()


def test_rows_of_softmax_have_reasons() -> None:
    rows = np.array([[-np.inf, -np.inf], [np.inf, 1], [-np.inf, 1]])
    masked, infinite, fine = reasons_of_rows(rows)
    assert "fully masked" in masked
    assert "infinity minus infinity" in infinite
    assert not fine


@pytest.mark.parametrize(
    ("op_type", "name"),
    [
        ("Log", "log"),
        ("aten.log.default", "log"),
        ("Tensor.log_", "log"),
        ("Functional.softmax.0.forward", "softmax"),
        ("Torch.true_divide", "truedivide"),
        ("SoftmaxV2", "softmax"),
        ("aclnnRealDiv", "realdiv"),
        ("Log1p", "log1p"),
    ],
)
def test_names_of_all_dump_systems_are_known(op_type: str, name: str) -> None:
    assert plain_name(op_type) == name
