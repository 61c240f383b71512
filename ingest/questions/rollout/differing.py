"""What became of a stretch of fibres that are not the trainer's: nearly equal to some, or to none."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from ingest.questions.rollout.fibres import COLUMNS, ROWS, SHORTEST, Array, fibres_of, rounded
from ingest.questions.rollout.parameters import HeldParameter

#: Numbers by which fibres that are nearly equal are found, and fibres of a stretch that are looked for.
_PROJECTIONS, _SAMPLES = 8, 64
#: Stretches that correlate less have nothing in common: that of a thousand unrelated elements is 0.03.
_ALIKE = 0.5
#: An element that differs by less than this share is a factor or an offset away.
SAME = 1e-2


class Likeness(NamedTuple):
    """Where in the trainer a stretch may come from."""

    tensor: int
    axis: int
    first: int
    """The fibre of the trainer at the first fibre of the stretch; may be negative."""
    begin: int
    end: int
    """The fibres of the stretch, from and to."""


class StretchDifference(NamedTuple):
    """How a stretch of the rollout differs from that of the trainer."""

    unequal: int
    size: int
    relative: float
    largest: float
    how: str
    """In words, what kind of difference it is; "" if none is known."""


class TrainerProjections:
    """Projections of all fibres of a trainer, by which nearly equal ones are found; reads it once."""

    def __init__(self, tensors: Sequence[HeldParameter]) -> None:
        """Read nothing yet."""
        self._tensors = tensors

    @cached_property
    def _known(self) -> dict[int, list[tuple[int, int, Array]]]:
        """By length of fibres the tensor, its axis and the projections of its fibres."""
        known: dict[int, list[tuple[int, int, Array]]] = {}
        for place, each in enumerate(self._tensors):
            values = each.read()
            for axis in (ROWS, COLUMNS)[: max(values.ndim, 1)]:
                fibres = fibres_of(values, axis)
                known.setdefault(fibres.shape[1], []).append((place, axis, _projected(fibres)))
        return known

    def nearest(self, stretch: Array) -> list[Likeness]:
        """Return what of the trainer a stretch of fibres (fibre, element) is similar to, in their order."""
        places = np.unique(np.linspace(0, len(stretch) - 1, min(len(stretch), _SAMPLES)).astype(int))
        known = self._known.get(stretch.shape[1], [])
        if not known or stretch.shape[1] < SHORTEST:
            return []
        wanted = _projected(stretch[places])
        distances = np.stack([_distances(wanted, points) for _, _, points in known])
        best = distances[..., 0].argmin(axis=0)
        votes: dict[Likeness, list[int]] = {}
        for column, (place, of) in enumerate(zip(places.tolist(), best.tolist(), strict=True)):
            tensor, axis, points = known[of]
            first = int(distances[of, column, 1]) - place
            votes.setdefault(Likeness(tensor, axis, first, -first, len(points) - first), []).append(place)
        enough = [each for each in votes.items() if len(each[1]) > 1 or len(places) == 1]
        found: list[Likeness] = []
        for number, (likeness, of_votes) in enumerate(enough):
            end = min(likeness.end, enough[number + 1][1][0] if number + 1 < len(enough) else len(stretch))
            begin = max(likeness.begin, found[-1].end if found else 0)
            if begin <= of_votes[0] and of_votes[-1] < end:
                if number + 1 < len(enough):  # the next may begin before the first of it that was looked for
                    end = max(min(end, enough[number + 1][0].begin), of_votes[-1] + 1)
                found.append(likeness._replace(begin=begin, end=end))
        return found


def _distances(wanted: Array, points: Array) -> Array:
    """Return by wanted point the distance of the nearest point, and its place."""
    nearest = np.array([np.abs(points - point).sum(axis=1).argmin() for point in wanted])
    return np.stack([np.abs(points[nearest] - wanted).sum(axis=1), nearest], axis=1)


@lru_cache(maxsize=8)
def _signs(length: int) -> Array:
    return np.random.default_rng(length).choice(np.array([-1.0, 1.0], np.float32), (length, _PROJECTIONS))


def _projected(fibres: Array) -> Array:
    with np.errstate(all="ignore"):
        values = np.nan_to_num(fibres.astype(np.float32), posinf=0.0, neginf=0.0)
        norms = np.linalg.norm(values, axis=1, keepdims=True)
        return np.asarray(values @ _signs(fibres.shape[1]) / np.where(norms > 0, norms, 1.0))


def correlation(a: Array, b: Array) -> float:
    """Return the cosine of the angle between two arrays."""
    x, y = (np.nan_to_num(each.astype(np.float64)).reshape(-1) for each in (a, b))
    norm = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / norm if norm else 0.0


def measured(rollout: Array, trainer: Array, dtype: str, same: float = SAME) -> StretchDifference:
    """Return how a stretch differs from that of the trainer, rounded to the type of the rollout.

    `same` is the relative error up to which one factor, or one offset, explains all elements.
    """
    with np.errstate(all="ignore"):
        expected = rounded(trainer, dtype).astype(np.float64)
        x, y, exact = rollout.astype(np.float64), expected, trainer.astype(np.float64)
        unequal = ~((x == y) | (np.isnan(x) & np.isnan(y)))
        distance = np.linalg.norm(x - y)
        relative = float(distance / np.linalg.norm(y)) if y.any() else float(np.inf)
        return StretchDifference(
            int(unequal.sum()),
            x.size,
            relative,
            float(np.abs(x - y).max(initial=0.0)),
            _how(x, y, exact, dtype) or _moved(x, y, same),
        )


def _how(x: Array, y: Array, exact: Array, dtype: str) -> str:
    if not np.isfinite(x).all() and np.isfinite(y).all():
        return f"{int((~np.isfinite(x)).sum())} elements are NaN or infinite"
    if (x == x.flat[0]).all() and x.size > 1:
        return f"all {x.flat[0] + 0.0:.6g}"
    return _rounded_otherwise(x, exact, dtype)


def _rounded_otherwise(x: Array, exact: Array, dtype: str) -> str:
    """Return by which other rounding the values come from the exact ones; "" if by none that is known."""
    toward_zero = np.abs(x) <= np.abs(exact)
    step = np.spacing(np.abs(rounded(exact, "float32"))) * 2.0 ** _DROPPED.get(dtype, 0)
    if dtype in _DROPPED and toward_zero.all() and (np.abs(x - exact) <= step).all():
        return f"rounded toward zero to {dtype}, and not to nearest"
    for narrow in ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"):
        if np.array_equal(rounded(rounded(exact, narrow).astype(np.float64), dtype).astype(np.float64), x):
            return f"rounded to {narrow} on the way"
    return ""


def _moved(x: Array, y: Array, same: float) -> str:
    """Return by which factor or offset values are away; "" if they are only similar."""
    scale = float(np.abs(y).max())
    large = np.abs(y) > scale / 16
    ratios = x[large] / y[large]
    factor = float(np.median(ratios))
    if abs(factor - 1) > same and (np.abs(ratios - factor) <= same * abs(factor)).all():
        return f"{factor:.4g} times the trainer's"
    offset = float(np.median(x - y))
    if abs(offset) > same * scale and (np.abs(x - y - offset) <= same * abs(offset)).all():
        return f"{offset:+.4g} in each element"
    return "unrelated values" if abs(correlation(x, y)) < _ALIKE else ""


#: The bits of the fraction of float32 that a narrower type drops.
_DROPPED = {"bfloat16": 16, "float16": 13}
