"""Conditions over what is known between two bounds, against the same conditions over values between them."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.arrays.filter import BoundedColumn, Decided, Filter

_COLUMNS = frozenset(["a", "b", "known"])
_NUMBERS = st.sampled_from(
    [-math.inf, -3.0, -1.0, -0.5, 0.0, 1e-308, 0.5, 1.0, 2.0, 1e308, math.inf, math.nan]
)
_LITERALS = st.sampled_from(["0", "1", "-1", "2.5", "1e308", "inf", "-nan"])
_TERMS = st.recursive(
    st.sampled_from(sorted(_COLUMNS)) | _LITERALS,
    lambda term: (
        st.tuples(term, st.sampled_from("+-*/"), term).map(lambda parts: f"({' '.join(parts)})")
        | term.map("abs({})".format)
        | term.map("(-{})".format)
    ),
    max_leaves=5,
)
_COMPARED = st.tuples(_TERMS, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), _TERMS).map(" ".join) | (
    st.tuples(_TERMS, st.sampled_from(["in", "not in"]), _LITERALS, _LITERALS).map(
        lambda parts: f"{parts[0]} {parts[1]} [{parts[2]}, {parts[3]}]"
    )
)
_CONDITIONS = st.recursive(
    _COMPARED,
    lambda condition: (
        st.tuples(condition, st.sampled_from(["and", "or"]), condition).map(
            lambda parts: f"({' '.join(parts)})"
        )
        | condition.map("not ({})".format)
    ),
    max_leaves=3,
)


def decide(text: str, a: BoundedColumn, b: BoundedColumn | None = None, known: float = 0.0) -> Decided:
    columns = {"a": a, "b": a if b is None else b, "known": np.array([known])}
    return Filter(text, _COLUMNS).decide(columns)


def between(*ends: float) -> BoundedColumn:
    return BoundedColumn(np.array([min(ends)]), np.array([max(ends)]))


@settings(max_examples=300, deadline=None)
@given(
    _CONDITIONS, st.tuples(_NUMBERS, _NUMBERS, _NUMBERS), st.tuples(_NUMBERS, _NUMBERS, _NUMBERS), _NUMBERS
)
def test_what_is_certain_holds_and_what_holds_is_possible(
    text: str, a: tuple[float, ...], b: tuple[float, ...], known: float
) -> None:
    """The bounds and the value between them are any three numbers."""
    (a_low, a_value, a_high), (b_low, b_value, b_high) = sorted_or_unknown(a), sorted_or_unknown(b)
    decided = decide(text, between(a_low, a_high), between(b_low, b_high), known)
    truth = Filter(text, _COLUMNS).evaluate(
        {"a": np.array([a_value]), "b": np.array([b_value]), "known": np.array([known])}
    )
    assert truth.all() or not decided.certain.any()
    assert decided.possible.all() or not truth.any()


def sorted_or_unknown(numbers: tuple[float, ...]) -> list[float]:
    """Return numbers in order, or three NaN if one is."""
    return [math.nan] * 3 if any(map(math.isnan, numbers)) else sorted(numbers)


def test_unknown_values_fulfil_nothing_but_inequality() -> None:
    unknown = between(math.nan, math.nan)
    assert not decide("a > 1 or a <= 1 or abs(a) >= 0 or a / known > 0", unknown).possible.any()
    assert decide("a != 1 and a - b != 0", unknown).certain.all()
