"""A comparison as one HTML page that works without a network and without other files."""

from __future__ import annotations

import math
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from ingest.questions.compare.result import GOOD, ComparedTensor, Comparison, Verdict
from ingest.reader.choice import format_ranges
from ingest.reader.text import shape_text
from workers.arrays.comparison import METRICS

#: The most rows of the page: a browser sorts this many in a moment.
MAX_ROWS = 5000
_SHOWN = tuple(name for name in METRICS if name not in {"count", "bit_equal"})


def to_html(comparison: Comparison) -> str:
    """Return the page: the first difference, counts by step, and a sortable table of the worst tensors.

    Names come from dumps and may hold anything, so everything is escaped.
    """
    template = files(__package__).joinpath("page.html.j2").read_text("utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    worst = comparison.worst(MAX_ROWS)
    return environment.from_string(template).render(
        comparison=comparison,
        counts=[(verdict, comparison.counts[verdict]) for verdict in Verdict if comparison.counts[verdict]],
        verdicts=[verdict for verdict in Verdict if comparison.counts[verdict]],
        good=GOOD,
        metrics=_SHOWN,
        rows=[_row(tensor) for tensor in worst],
        more=len(comparison.tensors) - len(worst),
        first=comparison.first,
        across=any(tensor.held for tensor in worst),
        bounded=any(tensor.bound for tensor in worst),
    )


def _row(tensor: ComparedTensor) -> dict[str, Any]:
    bound = tensor.bound
    figures = []
    for name in _SHOWN:
        value = getattr(tensor.metrics, name) if tensor.metrics else math.nan
        # Unknown values are sorted last.
        figures.append(
            ("" if math.isnan(value) else f"{value:.6g}", "" if math.isnan(value) else repr(float(value)))
        )
    return {
        "tensor": tensor,
        "where": _ranks(tensor),
        "layout": f"{tensor.held.placement} ({tensor.held.certainty})" if tensor.held else "",
        "step": _both(f"{tensor.key_a.step}", f"{tensor.key_b.step}"),
        "dtype": _both(tensor.dtype_a, tensor.dtype_b),
        "shape": _both(shape_text(tensor.shape_a), shape_text(tensor.shape_b)),
        "other": tensor.name_b if tensor.name_a and tensor.name_b != tensor.name_a else "",
        "class": "good" if tensor.verdict in GOOD else "bad",
        "figures": figures,
        "limit": _figure(bound.limit if bound else None),
        "times": _figure(bound.times if bound else None),
        "explained": "" if bound is None else "yes" if bound.explained else "no",
    }


def _figure(value: float | None) -> tuple[str, str]:
    return ("", "") if value is None else (f"{value:.3g}", repr(value))


def _ranks(tensor: ComparedTensor) -> str:
    if tensor.held is None:
        return _both(f"{tensor.key_a.rank}", f"{tensor.key_b.rank}")
    return _both(format_ranges(tensor.held.ranks_a), format_ranges(tensor.held.ranks_b))


def _both(a: str, b: str) -> str:
    return a if a == b or not b else b if not a else f"{a} | {b}"
