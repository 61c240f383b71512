"""Comparing two stores, runs, ranks, steps or dumps tensor by tensor."""

from ingest.questions.compare.mapping import NameMapping, load_mapping
from ingest.questions.compare.result import (
    ComparedInput,
    ComparedStep,
    ComparedTensor,
    Comparison,
    FirstDifference,
    Verdict,
)
from ingest.questions.compare.run import compare
from ingest.questions.compare.thresholds import ThresholdLimits, ThresholdRule, Thresholds, load_thresholds

__all__ = [
    "ComparedInput",
    "ComparedStep",
    "ComparedTensor",
    "Comparison",
    "FirstDifference",
    "NameMapping",
    "ThresholdLimits",
    "ThresholdRule",
    "Thresholds",
    "Verdict",
    "compare",
    "load_mapping",
    "load_thresholds",
]
