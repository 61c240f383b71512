"""The label `problem` of a row, and the one part of it that code asks for: that statistics disagree.

The index has no column for that. Whoever builds an index knows these rows; for an index that was read from a
store, `disagreeing` finds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

#: Stands between the file that reports statistics and how they differ from the computed ones.
_DISAGREES = " disagrees: "


def with_disagreement(problem: str, source: str, differences: Sequence[str]) -> str:
    """Return the label of a row whose reported and computed statistics differ.

    Args:
        problem: the label without that.
        source: the file that reports the statistics.
        differences: how they differ, for people.
    """
    disagreement = f"{source}{_DISAGREES}{', '.join(differences)}"
    return f"{problem}; {disagreement}" if problem else disagreement


def disagreeing(problems: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return a mask of the labels that `with_disagreement` made, (row,) of str."""
    mask = np.asarray(problems != "")
    mask[mask] = [_DISAGREES in problem for problem in problems[mask]]
    return mask
