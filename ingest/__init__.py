"""dump-ingest: tensor dumps of training jobs in one queryable Zarr store.

import ingest
store = ingest.open_store("s3://bucket/run.zarr")
for tensor in store.tensors(step=9, where="nan_count > 0"):
    print(tensor.rank, tensor.name, tensor.statistics.nan_count)
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ingest.findings.anomalies import Anomalies, anomalies
    from ingest.findings.backtest import RuleTest
    from ingest.findings.backtest import rehearse as test_rules
    from ingest.questions.compare import Comparison, compare, load_mapping, load_thresholds
    from ingest.questions.divergence import Divergence, divergence
    from ingest.questions.origin import OriginAnswer, origin
    from ingest.questions.trend import heatmap, trend
    from ingest.reader.consolidated import ConsolidatedView
    from ingest.reader.context import Context, SourceLine, context_of
    from ingest.reader.snapshot import Snapshot
    from ingest.reader.store import DumpStore, Step
    from ingest.reader.tensor import Tensor
    from ingest.store_gc import apply_gc, plan_gc
    from ingest.store_gc.execute import GcReport
    from ingest.store_gc.plan import GcPlan
    from ingest.store_gc.policy import GcPolicy
    from ingest.wiring import consolidate, ingest_dump

try:
    __version__ = version("dump-ingest")
except PackageNotFoundError:  # run from a checkout that was not installed
    __version__ = "0"

__all__ = [
    "Anomalies",
    "Comparison",
    "ConsolidatedView",
    "Context",
    "Divergence",
    "DumpStore",
    "GcPlan",
    "GcPolicy",
    "GcReport",
    "OriginAnswer",
    "RuleTest",
    "Snapshot",
    "SourceLine",
    "Step",
    "Tensor",
    "__version__",
    "anomalies",
    "apply_gc",
    "compare",
    "consolidate",
    "context_of",
    "divergence",
    "heatmap",
    "ingest_dump",
    "load_mapping",
    "load_thresholds",
    "open_store",
    "origin",
    "plan_gc",
    "test_rules",
    "trend",
]

_LAZY = {
    "Anomalies": "ingest.findings.anomalies",
    "anomalies": "ingest.findings.anomalies",
    "GcPlan": "ingest.store_gc.plan",
    "GcPolicy": "ingest.store_gc.policy",
    "GcReport": "ingest.store_gc.execute",
    "apply_gc": "ingest.store_gc",
    "plan_gc": "ingest.store_gc",
    "RuleTest": "ingest.findings.backtest",
    "test_rules": "ingest.findings.backtest",
    "Comparison": "ingest.questions.compare",
    "compare": "ingest.questions.compare",
    "load_mapping": "ingest.questions.compare",
    "load_thresholds": "ingest.questions.compare",
    "ConsolidatedView": "ingest.reader.consolidated",
    "Context": "ingest.reader.context",
    "SourceLine": "ingest.reader.context",
    "consolidate": "ingest.wiring",
    "context_of": "ingest.reader.context",
    "Divergence": "ingest.questions.divergence",
    "DumpStore": "ingest.reader.store",
    "divergence": "ingest.questions.divergence",
    "OriginAnswer": "ingest.questions.origin",
    "origin": "ingest.questions.origin",
    "Snapshot": "ingest.reader.snapshot",
    "Step": "ingest.reader.store",
    "Tensor": "ingest.reader.tensor",
    "heatmap": "ingest.questions.trend",
    "ingest_dump": "ingest.wiring",
    "open_store": "ingest.reader.store",
    "trend": "ingest.questions.trend",
}


def __getattr__(name: str) -> Any:
    # Lazy, so that `dump-ingest --help` imports neither numpy nor a codec.
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
