"""Which fibre of the trainer each fibre of the rollout is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.questions.rollout.fibres import COLUMNS, ROWS, FibreIndex, Fibres
from ingest.questions.rollout.parameters import HeldParameter

Places: TypeAlias = npt.NDArray[np.int64]
#: Fibres with more equals in the trainer than this are taken for the first of them.
_MOST_EQUAL = 16


@dataclass(slots=True, eq=False)
class FibreOrigin:
    """Where the fibres of a tensor of the rollout come from, along the axis by which most are found."""

    axis: int
    """The axis of the rollout's tensor."""
    of_axis: int
    """The axis of the trainer's tensors: another one if they were transposed."""
    tensor: Places
    """By fibre the trainer's tensor, by place; -1: not found."""
    fibre: Places
    alone: npt.NDArray[np.bool_]
    """By fibre, whether no other one of the trainer is equal: then its place is certain."""

    @property
    def is_found(self) -> npt.NDArray[np.bool_]:
        """By fibre, whether it is one of the trainer's."""
        return self.tensor >= 0

    def runs(self) -> list[tuple[int, int, int, int]]:
        """Return stretches of fibres: first, behind the last, the trainer's tensor (-1), its first fibre."""
        follows = (np.diff(self.tensor) == 0) & ((np.diff(self.fibre) == 1) | (self.tensor[1:] < 0))
        begins = np.flatnonzero(np.concatenate([[True], ~follows]))
        ends = [*begins[1:].tolist(), len(self.tensor)]
        return [
            (begin, end, int(self.tensor[begin]), int(self.fibre[begin]))
            for begin, end in zip(begins.tolist(), ends, strict=True)
        ]


class Trainer:
    """The tensors of one step of the trainer, rounded to the types of the rollout, and an index of each."""

    def __init__(self, parameters: Sequence[HeldParameter], dtypes: set[str]) -> None:
        """Read the tensors. Replicas of a tensor on several ranks count once.

        Raises:
            DamagedStore: elements are damaged.
        """
        self.tensors: list[HeldParameter] = []
        self.fibres: list[dict[str, Fibres]] = []
        seen: set[tuple[str, bytes]] = set()
        for each in parameters:
            fibres = each.fibres(dtypes | {each.dtype})
            content = each.name, fibres[each.dtype].rows.tobytes()
            if content not in seen:
                seen.add(content)
                self.tensors.append(each)
                self.fibres.append(fibres)
        self._indexes = {dtype: FibreIndex([each[dtype] for each in self.fibres]) for dtype in dtypes}
        self._whole: dict[tuple[str, bytes], list[int]] = defaultdict(list)
        for place, of_tensor in enumerate(self.fibres):
            for dtype in dtypes:
                self._whole[dtype, of_tensor[dtype].rows.tobytes()].append(place)
        self._taken: dict[tuple[int, str, bytes], int] = defaultdict(int)

    def origin(self, name: str, rank: int, fibres: Fibres) -> FibreOrigin:
        """Return where a tensor of the rollout comes from."""
        same = self._whole.get((fibres.dtype, fibres.rows.tobytes()), ())
        if same:
            # Equal tensors, such as norms of ones, follow one another in the same order, unless names tell.
            taken = self._taken[rank, fibres.dtype, fibres.rows.tobytes()]
            self._taken[rank, fibres.dtype, fibres.rows.tobytes()] += 1
            place = next(
                (place for place in same if self.tensors[place].name == name), same[min(taken, len(same) - 1)]
            )
            count = len(fibres.rows)
            is_alone = np.full(count, len(same) == 1)
            return FibreOrigin(ROWS, ROWS, np.full(count, place), np.arange(count), is_alone)
        found = [
            self._along(axis, of_axis, fibres) for axis in (ROWS, COLUMNS) for of_axis in (ROWS, COLUMNS)
        ]
        return max(found, key=lambda each: float(each.is_found.mean()) if len(each.tensor) else -1.0)

    def _along(self, axis: int, of_axis: int, fibres: Fibres) -> FibreOrigin:
        index = self._indexes[fibres.dtype]
        begins, ends = index.places(fibres.along(axis))
        count = len(begins)
        offsets = np.arange(_MOST_EQUAL)[:, None]
        entries = np.minimum(begins + offsets, max(len(index.tensor) - 1, 0))
        if not len(index.tensor):
            return FibreOrigin(axis, of_axis, np.full(count, -1), np.full(count, -1), np.zeros(count, bool))
        is_one = (begins + offsets < ends) & (index.axis[entries] == of_axis)
        alone = is_one.sum(axis=0) == 1
        first = entries[is_one.argmax(axis=0), np.arange(count)]
        votes = np.bincount(index.tensor[first[alone]], minlength=len(self.tensors))
        shifts = np.zeros(len(self.tensors), np.int64)
        for tensor in np.flatnonzero(votes):
            of_tensor = alone & (index.tensor[first] == tensor)
            moved, counts = np.unique(
                index.fibre[first[of_tensor]] - np.flatnonzero(of_tensor), return_counts=True
            )
            shifts[tensor] = moved[counts.argmax()]
        # Of several equal fibres, the one that most others of the tensor speak for, best in line with them.
        in_line = index.fibre[entries] - np.arange(count) == shifts[index.tensor[entries]]
        scores = np.where(is_one, votes[index.tensor[entries]] + 0.5 * in_line, -1.0)
        best = entries[scores.argmax(axis=0), np.arange(count)]
        is_found = is_one.any(axis=0)
        return FibreOrigin(
            axis,
            of_axis,
            np.where(is_found, index.tensor[best], -1),
            np.where(is_found, index.fibre[best], -1),
            alone,
        )
