"""Ranks, steps and names that a question is about."""

import re

import numpy as np
import pytest

from ingest.reader.choice import as_set, matches
from workers.errors import UsageError


def test_one_several_or_all() -> None:
    assert as_set(None) is None
    assert as_set(3) == {3}
    assert as_set(np.array([1, 2, 1])) == {1, 2}


def test_a_name_is_not_a_rank() -> None:
    with pytest.raises(UsageError, match=r"'Log\*' is not a rank or a step") as raised:
        as_set("Log*")  # type: ignore[arg-type]
    assert raised.value.hint == "A name: store.tensors(name='Log*')."


def test_a_glob_fits_all_of_a_name_and_an_expression_any_part() -> None:
    assert matches("Log*", "Log.output.0")
    assert not matches("log*", "Log.output.0")
    assert matches(re.compile("put"), "Log.output.0")
