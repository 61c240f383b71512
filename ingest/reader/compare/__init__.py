"""Comparing two stores, runs, ranks, steps or dumps tensor by tensor."""

from ingest.reader.compare.mapping import NameMapping, load_mapping
from ingest.reader.compare.result import (
    ComparedStep,
    ComparedTensor,
    Comparison,
    FirstDifference,
    Verdict,
)
from ingest.reader.compare.run import compare
from ingest.reader.compare.thresholds import Limits, Rule, Thresholds, load_thresholds

__all__ = [
    "ComparedStep",
    "ComparedTensor",
    "Comparison",
    "FirstDifference",
    "Limits",
    "NameMapping",
    "Rule",
    "Thresholds",
    "Verdict",
    "compare",
    "load_mapping",
    "load_thresholds",
]
