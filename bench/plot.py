"""A plot for the documentation: how many times as fast we are, with the floors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.measure import Measure, Ratio, shown

_OURS, _BELOW, _FLOOR = "#2a6f97", "#c1666b", "#333333"


def plot(path: Path, measures: Sequence[Measure], words: str) -> None:
    """Draw each measure of time as a bar on a logarithmic scale, and its floor as a mark."""
    # deferred: matplotlib is an optional dependency
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    bars = [measure for measure in measures if measure.ratio_is is Ratio.TIMES_AS_FAST][::-1]
    figure, axes = plt.subplots(figsize=(9, 0.36 * len(bars) + 1.2), layout="constrained")
    for place, measure in enumerate(bars):
        _draw_bar(axes, place, measure)
    axes.set_xscale("log")
    axes.axvline(1, color=_FLOOR, linewidth=0.8)
    labels = [f"{measure.name}\nagainst {measure.against}" for measure in bars]
    axes.set_yticks(range(len(bars)), labels, fontsize=7)
    ratios = [measure.ratio for measure in bars]
    axes.set_ylim(-0.7, len(bars) - 0.3)
    axes.set_xlim(min([0.5, *(0.4 * ratio for ratio in ratios)]), 2.5 * max([2.0, *ratios]))
    axes.set_xlabel("times as fast (bar); required (mark)", fontsize=8)
    axes.set_title(words, fontsize=6, loc="left", wrap=True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_bar(axes: Any, place: int, measure: Measure) -> None:
    """Draw a bar from 1 to the ratio, with the figure at its end, and the mark of its floor."""
    ratio, floor = measure.ratio, measure.floor
    axes.barh(place, ratio - 1, left=1, height=0.6, color=_BELOW if measure.reached is False else _OURS)
    align, offset = ("left", 4) if ratio >= 1 else ("right", -4)
    axes.annotate(
        f"{shown(ratio)}x", (ratio, place), (offset, 0),
        textcoords="offset points", ha=align, va="center", fontsize=8,
    )  # fmt: skip
    if floor is not None:
        axes.plot([floor, floor], [place - 0.42, place + 0.42], color=_FLOOR, linewidth=1.5)
