"""Ranks, steps and names that a question is about."""

import numpy as np
import pytest

from ingest.reader.choice import as_set
from workers.errors import UsageError


def test_one_several_or_all() -> None:
    assert as_set(None) is None
    assert as_set(3) == {3}
    assert as_set(np.array([1, 2, 1])) == {1, 2}


def test_a_name_is_not_a_rank() -> None:
    with pytest.raises(UsageError, match=r"'Log\*' is not a rank or a step") as raised:
        as_set("Log*")
    assert raised.value.hint == "A name: store.tensors(name='Log*')."
