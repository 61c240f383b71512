"""Which ranks are replicas of one another: those that hold the same parameters.

Norms and biases are the same on all ranks also where weights are cut, and a replica may drift in some. So two
ranks are replicas if they share more than half of their parameters, and more than half of the elements.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

#: The share of parameters, and of their elements, that two replicas have in common.
MOST = 0.5


class ReplicaCounts:
    """Counts what ranks have in common, tensor by tensor."""

    def __init__(self, ranks: Sequence[int]) -> None:
        """Begin with ranks that have nothing in common."""
        self._ranks = list(ranks)
        shape = (2, len(self._ranks), len(self._ranks))  # tensors, elements
        self._equal: npt.NDArray[np.float64] = np.zeros(shape)
        self._shared: npt.NDArray[np.float64] = np.zeros(shape)

    def add(self, contents: dict[int, Hashable], size: int) -> None:
        """Count a parameter that is not constant: what each rank holds that has it, and its elements."""
        numbers: dict[Hashable, int] = {}
        labels = np.full(len(self._ranks), -1)
        for place, rank in enumerate(self._ranks):
            if rank in contents:
                labels[place] = numbers.setdefault(contents[rank], len(numbers))
        has = labels >= 0
        both = has[:, None] & has[None, :]
        weights = np.array([1.0, float(size)])[:, None, None]
        self._shared += weights * both
        self._equal += weights * (both & (labels[:, None] == labels[None, :]))

    def groups(self) -> list[tuple[int, ...]]:
        """Return the groups of ranks that are replicas, of two and more, in order."""
        alike = np.asarray((self._equal > MOST * self._shared) & (self._shared > 0))
        are_replicas: npt.NDArray[np.bool_] = np.asarray(alike.all(axis=0))
        groups: list[list[int]] = []
        for place in range(len(self._ranks)):
            for group in groups:
                if are_replicas[group[0], place]:
                    group.append(place)
                    break
            else:
                groups.append([place])
        return [tuple(self._ranks[place] for place in group) for group in groups if len(group) > 1]

    def grid(self) -> list[list[int]]:
        """Return the groups if they are those of a mesh: several, as large as each other, with all ranks."""
        groups = self.groups()
        is_whole = sum(map(len, groups)) == len(self._ranks)
        is_mesh = len(groups) > 1 and is_whole and len({len(group) for group in groups}) == 1
        return [list(group) for group in groups] if is_mesh else []
