"""Faults that are an edit of the model: one line each in the table of a program."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from proving.case import Cause, Fault

Edit = Callable[[Any], None]
UNKNOWN = "nothing in one run says what the user meant"


def mistake(edit: Edit | None, places: str, *causes: Cause, lag: int = 0, hidden: str = UNKNOWN) -> Fault:
    """Return a fault that an edit makes; places are separated by spaces."""
    return Fault(tuple(places.split()), causes, lag, hidden, edit=edit)


def visible(edit: Edit | None, places: str, *causes: Cause, lag: int = 0) -> Fault:
    """Return a fault that the values of one run show."""
    return mistake(edit, places, *causes, lag=lag, hidden="")


def setting(path: str, **values: Any) -> Edit:
    """Return what sets attributes of a module."""

    def edit(model):
        for name, value in values.items():
            setattr(model.get_submodule(path), name, value)

    return edit


def returning(path: str, change: Callable[[Any], Any]) -> Edit:
    """Return what makes a module return something else."""

    def edit(model):
        module = model.get_submodule(path)
        forward = module.forward
        module.forward = lambda *inputs, **options: change(forward(*inputs, **options))

    return edit


def loading(name: str, change: Callable[[Any], Any]) -> Edit:
    """Return what loads another value of a parameter or buffer."""

    def edit(model):
        with torch.no_grad():
            value = model.get_parameter(name)
            value.copy_(change(value.clone()))

    return edit


def evaluating(path: str) -> Edit:
    """Return what leaves a module in eval mode."""
    return lambda model: model.get_submodule(path).eval()
