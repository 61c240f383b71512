"""Shapes as people read them."""

import pytest

from workers.arrays.shapes import format_shape


@pytest.mark.parametrize(
    ("shape", "text"), [((2, 3), "2x3"), ([7], "7"), ((0, 4), "0x4"), ((), "()"), (iter((1, 2)), "1x2")]
)
def test_axes_are_joined(shape: tuple[int, ...], text: str) -> None:
    assert format_shape(shape) == text
