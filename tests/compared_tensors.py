"""Rows of a comparison with chosen verdicts and metrics."""

from typing import Any

from ingest.questions.compare import ComparedTensor, Verdict
from workers.arrays.comparison import METRICS, Metrics
from workers.model import StepKey


def compared(verdict: Verdict, **metrics: float) -> ComparedTensor:
    """Return a tensor of step 0 with this verdict."""
    figures: dict[str, Any] = dict.fromkeys(METRICS, 0.0) | metrics
    key = StepKey(0, 0)
    shape = (2, 3)
    return ComparedTensor(
        key,
        key,
        0,
        "a",
        "a",
        "",
        "Add",
        "output",
        "f",
        "f",
        shape,
        shape,
        verdict,
        metrics=Metrics(**figures),
    )
