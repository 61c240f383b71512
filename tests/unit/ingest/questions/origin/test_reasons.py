"""Why something bad began, from the elements of inputs and outputs."""

import numpy as np
import pytest

from tests.made_runs import MadeRun, Values, numbers
from tests.origin_runs import INF, NAN, Ask


@pytest.mark.parametrize(
    ("op", "inputs", "output", "reason"),
    [
        ("Log.log", [numbers(1, -2, 3)], numbers(0, NAN, 1.0986123), "logarithm of a"),
        ("RealDiv.div", [numbers(1, 2, 3), numbers(1, 0, 3)], numbers(1, INF, 1), "division"),
    ],
)
def test_the_definition_of_the_operator_says_why(
    run: MadeRun, ask: Ask, op: str, inputs: list[Values], *, output: Values, reason: str
) -> None:
    run.op(op, inputs, [output])
    why = ask().why
    assert why is not None
    assert reason in why.reasons[0].reason
    assert [element.index for element in why.elements] == [(1,)]


def test_of_several_outputs_the_one_with_nan_is_explained(run: MadeRun, ask: Ask) -> None:
    """Infinity may be a mask."""
    run.op("Log.log", [numbers(1, -2, 3)], [numbers(-INF, 0, 0), numbers(0, NAN, 1.0986123)])
    why = ask().why
    assert why is not None
    assert [element.index for element in why.elements] == [(1,)]
    assert np.isnan(why.elements[0].value)


def test_where_infinity_is_searched_for_nan_beside_it_is_not_explained(run: MadeRun, ask: Ask) -> None:
    run.op("RealDiv.div", [numbers(0, 1, 2), numbers(0, 0, 1)], [numbers(NAN, INF, 2)])
    reasons = {cause: ask(cause=cause).why for cause in ("nan", "inf")}
    assert {cause: why.summary for cause, why in reasons.items() if why is not None} == {
        "nan": "zero divided by zero (1 of 3 elements)",
        "inf": "division by zero (1 of 3 elements)",
    }


def test_infinity_that_came_in_is_not_explained_by_the_operator_that_read_it(run: MadeRun, ask: Ask) -> None:
    run.op("MatMul.product", [numbers(1, INF), numbers(1, 1)], [numbers(INF)])
    answer = ask()
    assert (answer.how, answer.came_in) == ("came in", "MatMul.product.input.0")
    assert answer.why is not None
    assert answer.why.summary == ""
