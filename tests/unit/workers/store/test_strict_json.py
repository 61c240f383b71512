"""Strict JSON: whatever numbers hold, any reader takes it."""

import json
import math
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.store import strict_json


class Colour(StrEnum):
    RED = "red"


class Place(NamedTuple):
    x: int
    y: float


@dataclass(frozen=True, slots=True)
class Row:
    name: Colour
    place: Place
    values: tuple[float, ...]


class Record(msgspec.Struct):
    row: Row | None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float64("nan"), np.float32("inf")])
def test_numbers_that_are_not_finite_are_null_at_any_depth(value: float) -> None:
    assert strict_json.dumps(value) == "null"
    assert strict_json.dumps({"a": [value, {"b": (value, 1.5)}]}) == '{"a": [null, {"b": [null, 1.5]}]}'


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (
            Row(Colour.RED, Place(1, 2.5), (math.nan, 1.0)),
            {"name": "red", "place": [1, 2.5], "values": [None, 1.0]},
        ),
        (Record(None), {"row": None}),
        (MappingProxyType({"a": MappingProxyType({})}), {"a": {}}),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array([[1.0, np.nan]]), [[1.0, None]]),
        ([True, None, "text"], [True, None, "text"]),
    ],
)
def test_values_become_plain_ones(value: object, plain: object) -> None:
    assert strict_json.to_plain(value) == plain
    assert json.loads(strict_json.dumps(value)) == plain


def test_text_that_is_not_unicode_is_escaped() -> None:
    """Paths may hold any bytes, and commands print them."""
    assert strict_json.dumps({"path": "a\udcff"}) == '{"path": "a\\udcff"}'


def test_what_json_cannot_hold_is_refused() -> None:
    with pytest.raises(TypeError, match="object cannot be written as JSON"):
        strict_json.dumps({"a": object()})


_NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**70), 2**70)


@given(st.recursive(_NUMBERS | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_plain_values_come_back_as_they_are(value: Any) -> None:
    assert strict_json.dumps(value) == json.dumps(value)
