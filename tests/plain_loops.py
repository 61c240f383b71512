"""Loops of `workers.arrays` as Python runs them."""

from collections.abc import Callable
from typing import Any


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a loop that was not compiled, whether or not its module was by now."""
    uncompiled: Callable[..., Any] = getattr(function, "__wrapped__", None) or vars(function)["py_func"]
    return uncompiled
