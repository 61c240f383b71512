"""Why an operator gave NaN or Inf."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingest
from ingest.identities.operators import plain_name
from ingest.questions.why import (
    ELEMENTWISE,
    WhyAnswer,
    WhyElement,
    WhyReason,
    explain,
    reasons_of,
    reasons_of_rows,
)
from tests.origin_runs import INF, NAN, origin_of
from tests.stores import DumpLibrary, MadeDump, MadeRun, Values, ingest_directly, numbers

POSITIVE = "logarithm of a number that is not positive"


def why(made: MadeDump, store: Path, operator: str, inputs: list[Values], output: Values) -> WhyAnswer:
    """Ingest one call, and explain its output."""
    MadeRun(made).op(f"{operator}.op0", inputs, [output])
    ingest_directly(made.root, store)
    tensors = ingest.open_store(store).tensors()
    of_inputs = [tensor for tensor in tensors if tensor.io == "input"]
    (bad,) = [tensor for tensor in tensors if tensor.io == "output"]
    answer = explain(operator, of_inputs, bad)
    assert answer is not None
    return answer


def test_the_logarithm_of_the_real_dump_names_its_elements(dumps: DumpLibrary, store: Path) -> None:
    """The files are the truth: both which elements are NaN, and what was there before."""
    dump = dumps["nan-log-2rank"]
    truth = json.loads((dump / "truth.json").read_text())["origin"]["rank_1"]["first_nan"]
    output = np.load(dump / "dump" / truth["file"])
    (source,) = (dump / "dump" / truth["file"]).parent.glob("Log.*.input.0.*")
    values = np.load(source)
    answer = origin_of(dump / "dump", store).why
    assert answer is not None
    assert [(reason.reason, reason.elements) for reason in answer.reasons] == [(POSITIVE, truth["nan"])]
    places = [tuple(place) for place in np.argwhere(np.isnan(output)).tolist()]
    assert [element.index for element in answer.elements] == places
    assert [element.inputs for element in answer.elements] == [(float(values[place]),) for place in places]
    assert (answer.bad, answer.examined, answer.size) == (truth["nan"], truth["size"], truth["size"])


@pytest.mark.parametrize("keeps_axis", [True, False])
def test_the_row_from_which_an_element_was_computed_is_named(
    made: MadeDump, store: Path, *, keeps_axis: bool
) -> None:
    """An operator without a definition, such as a module, which reduces the last axis."""
    values = np.arange(24, dtype="<f4").reshape(2, 3, 4)
    values[1, 2, 0] = -500
    output = np.where(values.min(axis=-1, keepdims=keeps_axis) < 0, np.float32("nan"), np.float32(1))
    answer = why(made, store, "Module.rescale", [values, numbers(1)], output)
    (element,) = answer.elements
    (row,) = element.rows
    assert (row.input, row.at, row.low, row.high) == (0, "1, 2, :", -500, 23)
    assert element.to_dict()["rows"] == [{"input": 0, "at": "1, 2, :", "low": -500, "high": 23}]
    place = "[1, 2, 0]" if keeps_axis else "[1, 2]"
    assert answer.first == f"at {place}: input 1 = 1, input 0 [1, 2, :] from -500 to 23, output = NaN"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nan-sqrt-2rank", "square root of a negative number"),
        ("inf-explode-1rank", "product beyond the largest float32, 3.40282e+38"),
        ("nan-mask-1rank", "infinity minus infinity"),
    ],
)
def test_every_real_dump_with_nan_has_a_reason(
    name: str, reason: str, dumps: DumpLibrary, store: Path
) -> None:
    answer = origin_of(dumps[name] / "dump", store).why
    assert answer is not None
    assert [known.reason for known in answer.reasons] == [reason]
    assert answer.reasons[0].elements == answer.bad


def test_a_row_of_softmax_that_is_fully_masked_is_named(made: MadeDump, store: Path) -> None:
    scores = np.array([[1, -INF], [-INF, -INF]], np.float32)
    answer = why(made, store, "Softmax", [scores], np.array([[1, 0], [NAN, NAN]], np.float32))
    assert answer.summary == "softmax of a row that is fully masked (2 of 4 elements)"
    assert [element.index for element in answer.elements] == [(1, 0), (1, 1)]


def test_a_cast_that_does_not_fit_is_named(made: MadeDump, store: Path) -> None:
    output = np.array([1, INF], np.float16)
    answer = why(made, store, "Cast", [numbers(1, 7e4)], output)
    assert answer.summary == "cast value beyond the largest float16, 65504 (1 of 2 elements)"
    assert answer.elements[0].inputs == (7e4,)


def test_a_sum_of_products_that_does_not_fit_is_named(made: MadeDump, store: Path) -> None:
    inputs = [np.full((2, 3), 1e30, np.float32), np.full((3, 2), 1e30, np.float32)]
    answer = why(made, store, "MatMul", inputs, np.full((2, 2), INF, np.float32))
    assert answer.summary.startswith("sum of products beyond the largest float32")


@pytest.mark.parametrize(
    "parameter",
    [
        np.array(["ab", "cd"]),
        np.array(["2026-01-01", "2026-01-02"], "M8[D]"),
        np.zeros(2, [("low", "<f4"), ("high", "<i4")]),
    ],
    ids=["text", "time", "structure"],
)
def test_inputs_that_are_no_numbers_explain_nothing(made: MadeDump, store: Path, parameter: Values) -> None:
    answer = why(made, store, "Module.parse", [parameter, numbers(1, 2)], numbers(1, NAN))
    assert answer.elements[0].inputs == (None, 2.0)


def test_an_operand_that_cannot_be_read_is_not_replaced_by_the_next_input(
    made: MadeDump, store: Path
) -> None:
    answer = why(made, store, "Log", [np.ones(2, np.complex64), numbers(1, -1)], numbers(1, NAN))
    assert [reason.reason for reason in answer.reasons] == [""]


@pytest.mark.parametrize("inputs", [[], [numbers(1, INF), numbers(1, 1)]], ids=["unknown", "infinite"])
def test_a_sum_overflows_only_if_its_inputs_are_known_to_be_finite(
    made: MadeDump, store: Path, inputs: list[Values]
) -> None:
    answer = why(made, store, "MatMul", inputs, numbers(1, INF))
    assert [reason.reason for reason in answer.reasons] == [""]


def test_without_a_definition_the_elements_are_shown(made: MadeDump, store: Path) -> None:
    answer = why(made, store, "FancyOp", [numbers(1, 2)], numbers(1, NAN))
    assert answer.summary == ""
    assert [reason.to_dict() for reason in answer.reasons] == [{"reason": "", "elements": 1}]
    assert (answer.elements[0].index, answer.elements[0].inputs) == ((1,), (2.0,))
    assert math.isnan(answer.elements[0].value)
    assert answer.to_dict()["elements"][0]["value"] == "NaN"


@pytest.mark.parametrize(("inputs", "what"), [(("a",), "output"), ((), "value")])
def test_what_is_not_known_and_not_looked_at_is_told(inputs: tuple[str, ...], what: str) -> None:
    element = WhyElement((0,), NAN, (None,) * len(inputs), "")
    why = WhyAnswer("Op.x.output.0", inputs, (WhyReason("", 5),), (element,) * 5, 5, 10, 100)
    assert list(why.lines(1)) == [
        "5 of 10 elements of Op.x.output.0",
        "the first 10 of 100 elements were looked at",
        f"at [0]: {what} = NaN",
        "and 4 more",
    ]


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
