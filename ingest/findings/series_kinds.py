"""The kinds of rules that compare a tensor of a rank with itself in earlier steps.

To add a kind, add a function here and a model in `workers.rules.schema`.

The modified z-score is that of Iglewicz and Hoaglin (1993, "How to detect and handle outliers", section 3.3),
0.6745 (x - median) / MAD, here of log2 of the statistic: norms vary by factors, and a norm that halves is as
far off as one that doubles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.findings.history import MAX_HISTORY_NBYTES, StepWindow, Values
from ingest.units import human_bytes
from workers.errors import UsageError
from workers.rules.values import Rule
from workers.store.consolidated.blocks import TensorKey
from workers.store.sketch_columns import HINT

#: To normal quantiles: the MAD of a normal distribution is 0.6745 of its standard deviation.
_Z = 0.6745
#: Smaller norms are replaced by this one, so that their logarithm is finite.
_TINY = 2.0**-1022


@dataclass(frozen=True, slots=True)
class TensorHits:
    """The tensors for which a threshold is exceeded, before the selector of the rule is applied."""

    mask: npt.NDArray[np.bool_]
    """(rank, tensor)."""
    values: Values
    """(rank, tensor)."""
    threshold: float
    describe: Callable[[int, int], str]
    """Returns a sentence about a tensor, by its places: rank, tensor."""
    cause: str = ""
    """What is the matter, if that is more than likely."""
    level: str = "open"
    """How certain the cause is: `shown`, `likely` or `open`."""
    since: int | None = None
    """The step in which it began, if that is not the step of the window."""
    compared: npt.NDArray[np.bool_] | None = None
    """(rank, tensor): what could be compared, of which a rule may ask that a share is a hit."""


Evaluator: TypeAlias = Callable[[Rule, StepWindow], Iterator[TensorHits]]


@dataclass(frozen=True, slots=True)
class SeriesKind:
    """How the rules of a kind are evaluated, and what they need."""

    evaluate: Evaluator
    steps_before: Callable[[Rule], int]
    """How many steps before a step a rule looks at."""
    reads: Callable[[TensorKey], bool] = lambda _: False
    """Whether a rule needs a tensor that its selector does not choose."""
    needs_histograms: bool = False


def _unchanged(rule: Rule, window: StepWindow) -> Iterator[TensorHits]:
    steps = int(rule["steps"])
    _refuse_if_cut(window, steps - 1)
    elements = window.value("count")
    if len(window.before) < steps - 1:
        mask = np.zeros(elements.shape, bool)
    else:
        now = window.digest(window.now)
        mask = now.any(axis=2) & (elements >= rule["elements_ge"])
        for step in window.before[-(steps - 1) :]:
            mask &= (window.digest(step) == now).all(axis=2)
    values = np.full(elements.shape, float(steps))
    yield TensorHits(mask, values, float(steps), lambda _rank, _tensor: f"the same in {steps} steps in a row")


def _change(rule: Rule, window: StepWindow) -> Iterator[TensorHits]:
    name = rule["statistic"]
    now, elements = window.value(name), window.value("count")
    past = window.values_before(name, int(rule["history"]) + 1)
    before = past[-1] if len(past) else np.full(now.shape, np.nan)
    ratio = np.abs(now - before) / (np.abs(before) + rule["epsilon"])
    ratios = np.abs(np.diff(past, axis=0)) / (np.abs(past[:-1]) + rule["epsilon"])
    usual = np.nanmax(ratios, axis=0, initial=0.0)
    mask = (ratio > rule["ratio_gt"]) & (ratio > rule["times_gt"] * usual)
    mask &= (np.isfinite(ratios).sum(axis=0) >= rule["least"]) & (np.abs(before) >= rule["before_ge"])
    mask &= elements >= rule["elements_ge"]

    def describe(rank: int, tensor: int) -> str:
        return (
            f"{name} went from {before[rank, tensor]:.6g} to {now[rank, tensor]:.6g}, "
            f"by {ratio[rank, tensor]:.3g} of what it was"
            + (f", and by at most {usual[rank, tensor]:.3g} in a step before" if len(ratios) else "")
        )

    yield TensorHits(mask, ratio, rule["ratio_gt"], describe)


def _drift(rule: Rule, window: StepWindow) -> Iterator[TensorHits]:
    """Compare the histograms of two steps by Wasserstein's metric; see `Histogram.cumulative`."""
    now, elements = window.cumulative(window.now), window.value("count")
    if (elements >= rule["elements_ge"]).any() and np.isnan(now).all():
        raise UsageError("no tensor has a histogram", hint=HINT)
    distance = np.full(elements.shape, np.nan)
    if window.before:
        distance = np.abs(now - window.cumulative(window.before[-1])).sum(axis=2, dtype=np.float64)
    mask = (distance > rule["distance_gt"]) & (elements >= rule["elements_ge"])

    def describe(rank: int, tensor: int) -> str:
        moved = distance[rank, tensor]
        return (
            f"magnitudes moved by {moved:.3g} powers of two on average since the step before; "
            f"bounded: they are known to a factor of two, so by {max(moved - 1, 0):.3g} to {moved + 1:.3g}"
        )

    yield TensorHits(mask, distance, rule["distance_gt"], describe)


def _outlier(rule: Rule, window: StepWindow) -> Iterator[TensorHits]:
    name, above = rule["statistic"], rule["direction"] == "above"
    _refuse_if_cut(window, int(rule["least"]))
    now = window.value(name)
    past = window.values_before(name, int(rule["history"]))
    known = np.isfinite(past).sum(axis=0)
    median, z = _median_and_z(now, past, (known >= rule["least"]) & np.isfinite(now))
    ratio = now / median if above else median / now
    mask = (ratio > rule["ratio_gt"]) & ((z if above else -z) > rule["z_gt"])

    def describe(rank: int, tensor: int) -> str:
        return (
            f"{name} {now[rank, tensor]:.6g} is {ratio[rank, tensor]:.3g} times "
            + ("the" if above else "less than the")
            + f" median {median[rank, tensor]:.6g} of {known[rank, tensor]} steps before, "
            + f"z {z[rank, tensor]:.3g}"
        )

    yield TensorHits(mask, ratio, rule["ratio_gt"], describe, compared=np.isfinite(ratio))


def _refuse_if_cut(window: StepWindow, needed: int) -> None:
    """Raise `UsageError` if fewer steps before are known than a rule needs, for want of memory."""
    if window.is_cut and len(window.before) < needed:
        raise UsageError(
            f"it needs {needed} steps before, of which {len(window.before)} fit into "
            f"{human_bytes(MAX_HISTORY_NBYTES)}; rules over several steps must choose fewer tensors"
        )


def _median_and_z(now: Values, past: Values, comparable: npt.NDArray[np.bool_]) -> tuple[Values, Values]:
    """Return the median of the past and the modified z-score of now, (rank, tensor); NaN if not comparable.

    Args:
        now: (rank, tensor).
        past: (step, rank, tensor).
        comparable: which tensors to compare: medians of all of them would take most of the time.
    """
    rows, columns = np.nonzero(comparable)
    median, z = np.full(now.shape, np.nan), np.full(now.shape, np.nan)
    if rows.size:
        chosen = past[:, rows, columns]
        logs = np.log2(np.maximum(np.abs(chosen), _TINY))
        logs[~np.isfinite(chosen)] = np.nan
        middle = np.nanmedian(logs, axis=0)
        spread = np.nanmedian(np.abs(logs - middle), axis=0)
        off = np.log2(np.maximum(np.abs(now[rows, columns]), _TINY)) - middle
        median[rows, columns] = np.exp2(middle)
        # If it never varied, any change is beyond its spread; the ratio decides.
        z[rows, columns] = np.where(spread > 0, _Z * off / spread, np.sign(off) * np.inf)
    return median, z


#: By kind.
KINDS: Mapping[str, SeriesKind] = {
    "unchanged": SeriesKind(_unchanged, steps_before=lambda rule: int(rule["steps"]) - 1),
    "change": SeriesKind(_change, steps_before=lambda rule: int(rule["history"]) + 1),
    "drift": SeriesKind(_drift, steps_before=lambda _: 1, needs_histograms=True),
    "outlier": SeriesKind(_outlier, steps_before=lambda rule: int(rule["history"])),
}
