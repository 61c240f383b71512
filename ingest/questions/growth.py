"""How far a rank of two runs is apart, tensor by tensor over the steps: from their indexes alone.

`compare` reads elements, which takes long for many steps. Here, digests tell what is equal, and a statistic
how far apart the rest is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ingest.questions.choosing import statistic_named
from ingest.reader.catalog import Catalog
from ingest.reader.snapshot import LeftOut, Snapshot, take_snapshot
from ingest.reader.step import Step
from workers.arrays.statistics import FIELDS
from workers.errors import DamagedStore, UsageError
from workers.model import StepKey
from workers.rules.names import fits
from workers.store.consolidated.blocks import TensorKey, tensors_of
from workers.store.prefetch import prefetch

if TYPE_CHECKING:
    import pandas as pd

#: What stands for a difference that the statistic does not show: that of a float64 next to 1.
LEAST = 2.0**-52
_NON_FINITE = tuple(FIELDS.index(name) for name in ("nan_count", "pos_inf_count", "neg_inf_count"))
#: Steps of both runs that are read ahead.
_AHEAD = 2


@dataclass(frozen=True, slots=True, eq=False)
class ErrorGrowth:
    """How far a rank of A is from the same rank of B, by tensor and step."""

    a: str
    b: str
    rank: int
    statistic: str
    tensors: tuple[TensorKey, ...]
    """What both runs have, in order of execution in A."""
    steps: tuple[int, ...]
    errors: npt.NDArray[np.float64]
    """(tensor, step): |a - b| / max(|a|, |b|) of the statistic. 0 if all bytes are equal; `LEAST` if they are
    known not to be and the statistic does not show it; infinite if only one of the two has NaN or Inf; NaN if
    unknown, or if one has NaN or Inf and it is not known whether the other has."""
    left_out: tuple[LeftOut, ...] = ()
    """Steps of the rank that cannot be read in one of the runs, and in which."""

    def by_onset(self) -> list[tuple[int, int]]:
        """Return the places of the tensors that differ, each with that of the first such step, in that order.

        Of tensors that begin to differ in the same step, the one that was executed first comes first.
        """
        is_different = self.errors > 0
        begin = np.where(is_different.any(axis=1), is_different.argmax(axis=1), len(self.steps))
        order = np.lexsort((np.arange(begin.size), begin))
        return [(place, int(begin[place])) for place in order.tolist() if begin[place] < len(self.steps)]

    @property
    def unknown(self) -> int:
        """How many tensors have no error that is known in any step."""
        return int(np.isnan(self.errors).all(axis=1).sum())

    def rows(self) -> list[dict[str, Any]]:
        """Return a flat row of plain values for each tensor and step that both runs have."""
        return [
            {
                "rank": self.rank,
                "step": step,
                "name": key.name,
                "graph": key.graph,
                "error": float(self.errors[place, column]),
            }
            for place, key in enumerate(self.tensors)
            for column, step in enumerate(self.steps)
            if not np.isnan(self.errors[place, column])
        ]

    def to_pandas(self) -> pd.DataFrame:
        """Return a table of the tensors by their names, with a column for each step."""
        import pandas as pd  # deferred: takes 0.4 s to import

        return pd.DataFrame(self.errors, index=[key.name for key in self.tensors], columns=list(self.steps))


def error_growth(a: Catalog, b: Catalog, rank: int, stat: str = "l2_norm", *, name: str = "*") -> ErrorGrowth:
    """Measure the error of a rank of A against its reference B, by tensor and step.

    Reads the index of each step of the rank in both runs, and no elements: about 20 ms for a step of 5000
    tensors. Memory: 16 bytes for each tensor and step. Tensors are the same if net, graph, operator, input or
    output, and occurrence have the same names. Steps with quarantined or missing files are included.

    Args:
        a: what is looked at.
        b: what it is compared with.
        rank: the rank, in both.
        stat: the statistic, or another name for it, such as `norm`.
        name: a glob for the names of tensors.

    Raises:
        UsageError: they have no step or no tensor in common, the statistic does not exist, or it is not
            known of any tensor.
        DamagedStore: no step can be read.
    """
    statistic = statistic_named(stat)
    if statistic not in FIELDS:
        raise UsageError(f"{stat!r} is a sum of statistics", hint=f"One of {', '.join(FIELDS)}.")
    sides = [take_snapshot(side, rank, include_partial=True) for side in (a, b)]
    steps = [step for step in sides[0].steps if sides[1].step(rank, step) is not None]
    if not steps:
        raise UsageError(f"{a.url} and {b.url} have no step of rank {rank} in common")
    is_wanted, column = fits(name), FIELDS.index(statistic)
    left_out = [_in_run(left, side) for side in sides for left in side.left_out]
    places: dict[TensorKey, int] = {}
    columns: dict[int, tuple[list[int], npt.NDArray[np.float64]]] = {}

    def load(step: int) -> list[_Side] | LeftOut:
        loaded: list[_Side] = []
        for side in sides:
            key = StepKey(rank, step)
            try:
                loaded.append(_side_of(side.chosen[key], column))
            except DamagedStore as exc:
                return _in_run(LeftOut.damaged(key, exc.message), side)
        return loaded

    for step, loaded in zip(
        steps, prefetch(steps, load, ahead=_AHEAD, threads=2, name="dump-ingest-growth"), strict=True
    ):
        if isinstance(loaded, LeftOut):
            left_out.append(loaded)
            continue
        keys, of_step = _errors(is_wanted, *loaded)
        columns[step] = [places.setdefault(key, len(places)) for key in keys], of_step
    if not columns:
        raise DamagedStore(f"no step that can be read ({left_out[0]})")
    if not places:
        raise UsageError(f"{a.url} and {b.url} have no tensor like {name!r} in common on rank {rank}")
    return ErrorGrowth(
        a=a.url,
        b=b.url,
        rank=rank,
        statistic=statistic,
        tensors=tuple(places),
        steps=tuple(columns),
        errors=_table([*columns.values()], len(places), statistic),
        left_out=tuple(left_out),
    )


def _table(
    columns: Sequence[tuple[list[int], npt.NDArray[np.float64]]], tensors: int, statistic: str
) -> npt.NDArray[np.float64]:
    errors = np.full((tensors, len(columns)), np.nan)
    for number, (places, of_step) in enumerate(columns):
        errors[places, number] = of_step
    if np.isnan(errors).all():
        raise UsageError(
            f"the {statistic} of no tensor is known on both sides",
            hint=f"Name another statistic: one of {', '.join(FIELDS)}.",
        )
    return errors


def _in_run(left: LeftOut, side: Snapshot) -> LeftOut:
    return LeftOut(left.key, f"{left.reason} ({side.store.url})")


class _Side(NamedTuple):
    keys: list[TensorKey]
    digests: npt.NDArray[np.uint8]
    statistic: npt.NDArray[np.float64]
    non_finite: npt.NDArray[np.float64]
    """(tensor, 3): the counts of NaN, +Inf and -Inf; NaN if not known."""


def _side_of(step: Step, column: int) -> _Side:
    tables = step.tables
    rows, keys = tensors_of(tables)
    step.forget_tables()
    statistics = tables.statistics[rows]
    return _Side(keys, tables.digest[rows], statistics[:, column], statistics[:, _NON_FINITE])


def _errors(
    is_wanted: Callable[[str], bool], a: _Side, b: _Side
) -> tuple[list[TensorKey], npt.NDArray[np.float64]]:
    """Return the tensors that both have, and the errors of those of A, (tensor,)."""
    in_b = {key: number for number, key in enumerate(b.keys)}
    common = [(number, in_b[key]) for number, key in enumerate(a.keys) if key in in_b and is_wanted(key.name)]
    of_a, of_b = np.array(common, np.int64).reshape(-1, 2).T
    first, second = a.statistic[of_a], b.statistic[of_b]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        greatest = np.maximum(np.abs(first), np.abs(second))
        # Divided first: the difference of two large numbers is infinite.
        errors = np.where(greatest > 0, np.abs(first / greatest - second / greatest), 0.0)
    errors[np.isnan(first) | np.isnan(second)] = np.nan
    digests, others = a.digests[of_a], b.digests[of_b]
    is_known = digests.any(axis=1) & others.any(axis=1)
    errors[is_known] = np.fmax(errors[is_known], LEAST)
    counts = a.non_finite[of_a], b.non_finite[of_b]
    bad_a, bad_b = ((of_side > 0).any(axis=1) for of_side in counts)
    clean_a, clean_b = ((of_side == 0).all(axis=1) for of_side in counts)
    errors[bad_a != bad_b] = np.nan
    errors[(bad_a & clean_b) | (bad_b & clean_a)] = np.inf
    errors[is_known & (digests == others).all(axis=1)] = 0.0
    return [a.keys[number] for number in of_a.tolist()], errors
