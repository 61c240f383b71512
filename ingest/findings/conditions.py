"""The conditions `where` of rules over several steps or ranks, evaluated over one step of all ranks.

A condition is about the step that is evaluated, not about those before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.reader.block_filter import BlockFilter
from workers.errors import UsageError
from workers.rules.values import Rule
from workers.store.consolidated.blocks import Block, TensorAxis, TensorKey

Mask: TypeAlias = npt.NDArray[np.bool_]
Tensor: TypeAlias = tuple[str, str]
"""Graph and name of a tensor, or of an operator."""


def conditions_of(rules: Iterable[Rule]) -> frozenset[str]:
    """Return the conditions of rules, each once."""
    return frozenset(rule.where for rule in rules if rule.where)


def fulfilled(conditions: Iterable[str], block: Block, axis: TensorAxis) -> dict[str, Mask | UsageError]:
    """Evaluate each condition on a step, (rank, tensor), or return why it cannot be evaluated."""
    masks: dict[str, Mask | UsageError] = {}
    for text in conditions:
        try:
            masks[text] = BlockFilter({"where": text}, axis).mask(block)
        except UsageError as exc:
            masks[text] = exc
    return masks


def names_of(mask: Mask, axis: TensorAxis) -> frozenset[Tensor]:
    """Return the tensors that fulfil a condition on any rank, and the operators that they belong to.

    Args:
        mask: (rank, tensor), as `fulfilled` returns it.
        axis: of the tensors.
    """
    names: set[Tensor] = set()
    for place in np.flatnonzero(mask.any(axis=0)).tolist():
        key = axis[place]
        names |= {(key.graph, key.name), (key.graph, _operator_name(key))}
    return frozenset(names)


def _operator_name(key: TensorKey) -> str:
    """Return the name of the operator of a tensor, as `divergence` names an operator that is missing."""
    return f"{key.op_type}.{key.op_name}" + (f"#{key.occurrence}" if key.occurrence else "")
