"""How the shape of a tensor is written for people."""

from __future__ import annotations

from collections.abc import Iterable


def format_shape(shape: Iterable[int]) -> str:
    """Return a shape as text; "()" for a tensor without axes.

    >>> format_shape((2, 3))
    '2x3'
    """
    return "x".join(map(str, shape)) or "()"
