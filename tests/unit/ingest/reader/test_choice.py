"""Ranks, steps and names that a question is about."""

from typing import Any

import numpy as np
import pytest

from ingest.reader.choice import as_names, as_set
from workers.errors import UsageError


def test_one_several_or_all() -> None:
    assert as_set(None) is None
    assert as_set(3) == {3}
    assert as_set(np.array([1, 2, 1])) == {1, 2}


def test_a_number_in_quotes_is_told_from_a_name() -> None:
    with pytest.raises(UsageError, match="'1' is not a rank or a step") as raised:
        as_set(["1"])
    assert raised.value.hint == "Without quotes: 1."


@pytest.mark.parametrize("number", [1.5, float("nan"), None, np.arange(2)])
def test_a_number_is_not_rounded(number: Any) -> None:
    assert as_set([np.float64(1)]) == {1}  # type: ignore[list-item]
    with pytest.raises(UsageError, match="is not a rank or a step"):
        as_set([number])


def test_one_name_is_not_a_list_of_letters() -> None:
    assert as_names("e4m3") == ["e4m3"]
    assert as_names(("e4m3", "e5m2")) == ["e4m3", "e5m2"]


def test_a_name_is_not_a_rank() -> None:
    with pytest.raises(UsageError, match=r"'Log\*' is not a rank or a step") as raised:
        as_set("Log*")
    assert raised.value.hint == "A name: store.tensors(name='Log*')."
