"""Comparing two stores, runs, ranks, steps or dumps tensor by tensor."""

from ingest.questions.compare.mapping import NameMapping, load_mapping
from ingest.questions.compare.result import (
    ComparedInput,
    ComparedStep,
    ComparedTensor,
    Comparison,
    FirstDifference,
    HeldBy,
    Limits,
    Verdict,
)
from ingest.questions.compare.run import compare
from ingest.questions.compare.thresholds import ThresholdLimits, ThresholdRule, Thresholds, load_thresholds
from ingest.questions.placement.layout_map import LayoutMap, load_layout_map

__all__ = [
    "ComparedInput",
    "ComparedStep",
    "ComparedTensor",
    "Comparison",
    "FirstDifference",
    "HeldBy",
    "LayoutMap",
    "Limits",
    "NameMapping",
    "ThresholdLimits",
    "ThresholdRule",
    "Thresholds",
    "Verdict",
    "compare",
    "load_layout_map",
    "load_mapping",
    "load_thresholds",
]
