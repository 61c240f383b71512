"""The plot for the docs: how many times as fast, with the floors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.measure import Measure, Ratio, shown

_OURS, _BELOW, _FLOOR = "#2a6f97", "#c1666b", "#333333"


def plot(path: Path, measures: Sequence[Measure], words: str) -> None:
    """Draw each measure of time as a bar, on a logarithmic scale, and its floor as a mark."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    bars = [one for one in measures if one.ratio_is is Ratio.TIMES_AS_FAST][::-1]
    figure, axes = plt.subplots(figsize=(9, 0.36 * len(bars) + 1.2), layout="constrained")
    for place, one in enumerate(bars):
        color = _BELOW if one.reached is False else _OURS
        axes.barh(place, one.ratio - 1, left=1, height=0.6, color=color)
        at, align = (one.ratio, "left") if one.ratio >= 1 else (one.ratio, "right")
        axes.annotate(
            f"{shown(one.ratio)}x", (at, place), (4 if align == "left" else -4, 0),
            textcoords="offset points", ha=align, va="center", fontsize=8,
        )  # fmt: skip
        if one.floor is not None:
            axes.plot([one.floor, one.floor], [place - 0.42, place + 0.42], color=_FLOOR, linewidth=1.5)
    axes.set_xscale("log")
    axes.axvline(1, color=_FLOOR, linewidth=0.8)
    axes.set_yticks(range(len(bars)), [f"{one.name}\nagainst {one.against}" for one in bars], fontsize=7)
    low = min([0.5, *(0.4 * one.ratio for one in bars)])
    axes.set_ylim(-0.7, len(bars) - 0.3)
    axes.set_xlim(low, 2.5 * max([2.0, *(one.ratio for one in bars)]))
    axes.set_xlabel("times as fast (bar); what is asked for (mark)", fontsize=8)
    axes.set_title(words, fontsize=6, loc="left", wrap=True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    plt.close(figure)
