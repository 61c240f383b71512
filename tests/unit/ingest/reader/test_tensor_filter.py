"""Choosing tensors: every condition by itself and together, and what is not one."""

import re
from typing import Any

import numpy as np
import pytest

from ingest.reader.tensor_filter import FilterFields, TensorFilter, checked_role
from workers.errors import UsageError

COLUMNS = {
    "name": np.array(["MatMul.a.output.0", "MatMul.b[0].output.0", "Log.c.input.0"], object),
    "op_type": np.array(["MatMul", "MatMul", "Log"], object),
    "io": np.array(["output", "output", "input"], object),
    "role": np.array(["activation", "gradient", ""], object),
    "max": np.array([1.0, 2.0, 3.0]),
}


@pytest.mark.parametrize(
    ("fields", "chosen"),
    [
        ({}, [0, 1, 2]),
        ({"op_type": "MatMul"}, [0, 1]),
        ({"op_type": "MatMul", "role": "gradient"}, [1]),
        ({"role": "Gradients"}, [1]),
        ({"name": "MatMul.*"}, [0, 1]),
        ({"name": "MatMul.b[0].output.0"}, [1]),
        ({"name": re.compile("put")}, [0, 1, 2]),
        ({"name": "*.output.*", "where": "max > 1"}, [1]),
        ({"where": "role == 'activation' or io == 'input'"}, [0, 2]),
        ({"op_type": None, "io": "input"}, [2]),
    ],
)
def test_all_conditions_count(fields: FilterFields, chosen: list[int]) -> None:
    choice = TensorFilter(fields, frozenset(COLUMNS))
    assert np.flatnonzero(choice.mask(COLUMNS, 3)).tolist() == chosen
    assert choice.names <= COLUMNS.keys()


def test_names_count_for_every_rank() -> None:
    choice = TensorFilter({"name": "MatMul.*", "where": "max > 1"}, frozenset(COLUMNS))
    columns = {**COLUMNS, "max": np.array([[1.0, 2.0, 3.0], [2.0, 1.0, 3.0]])}
    assert choice.evaluate(columns, (2, 3)).tolist() == [[False, True, False], [True, False, False]]
    assert not choice.is_of_names
    assert TensorFilter({"name": "x", "io": "output"}, frozenset(COLUMNS)).is_of_names


@pytest.mark.parametrize(
    ("text", "role"),
    [("LOSS", "loss"), ("losses", "loss"), ("optimizer state", "optimizer_state"), ("weights", "weight")],
)
def test_roles_are_understood_as_people_write_them(text: str, role: str) -> None:
    assert checked_role(text) == role


def test_what_is_not_a_role_is_refused_and_a_similar_one_suggested() -> None:
    with pytest.raises(UsageError, match="'gradeint' is not a role") as error:
        TensorFilter({"role": "gradeint"}, frozenset(COLUMNS))
    assert error.value.hint.startswith("Did you mean gradient?")
    with pytest.raises(UsageError) as error:
        checked_role("xyz")
    assert error.value.hint.startswith("Roles: loss")
    with pytest.raises(UsageError, match="'roel'"):
        TensorFilter({"where": "roel == 'loss'"}, frozenset(COLUMNS))


@pytest.mark.parametrize(
    ("fields", "message"), [({"nme": "Log*"}, "chosen by 'nme'"), ({"graph": 0}, "graph=0 is not text")]
)
def test_what_would_choose_all_tensors_is_refused(fields: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        TensorFilter(fields, frozenset(["name"]))
    assert error.value.hint
