"""Indices as text."""

from typing import Any

import numpy as np
import pytest

from ingest.reader.anatomy import parse_index
from workers.errors import UsageError

VALUES = np.arange(120).reshape(4, 5, 6)


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("1", 1),
        ("-1", -1),
        ("1:3,:", np.s_[1:3, :]),
        ("[0, 1, 2]", np.s_[0, 1, 2]),
        ("...,0", np.s_[..., 0]),
        ("::-1, ::2", np.s_[::-1, ::2]),
        (":100", np.s_[:100]),
    ],
)
def test_an_index_is_that_of_numpy(text: str, index: Any) -> None:
    assert np.array_equal(VALUES[parse_index(text, VALUES.shape)], VALUES[index])


@pytest.mark.parametrize("text", ["a", "1:2:0", "1,2,3,4", "4", "...,6", "...,...", "1:2:3:4", "1.5"])
def test_what_is_wrong_is_named(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_index(text, VALUES.shape)
    assert caught.value.hint
