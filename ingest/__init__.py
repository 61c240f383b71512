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
    from ingest.gc import apply_gc, plan_gc
    from ingest.gc.execute import GcReport
    from ingest.gc.plan import GcPlan
    from ingest.gc.policy import GcPolicy
    from ingest.reader.compare import Comparison, compare, load_mapping, load_thresholds
    from ingest.reader.consolidated import ConsolidatedView
    from ingest.reader.context import Context, SourceLine, context_of
    from ingest.reader.divergence import Divergence, divergence
    from ingest.reader.origin import OriginAnswer, origin
    from ingest.reader.snapshot import Snapshot
    from ingest.reader.store import DumpStore, Step
    from ingest.reader.tensor import Tensor
    from ingest.reader.trend import heatmap, trend
    from ingest.rules.anomalies import Anomalies, anomalies
    from ingest.rules.rehearse import RuleTest
    from ingest.rules.rehearse import rehearse as test_rules
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
    "Anomalies": "ingest.rules.anomalies",
    "anomalies": "ingest.rules.anomalies",
    "GcPlan": "ingest.gc.plan",
    "GcPolicy": "ingest.gc.policy",
    "GcReport": "ingest.gc.execute",
    "apply_gc": "ingest.gc",
    "plan_gc": "ingest.gc",
    "RuleTest": "ingest.rules.rehearse",
    "test_rules": "ingest.rules.rehearse",
    "Comparison": "ingest.reader.compare",
    "compare": "ingest.reader.compare",
    "load_mapping": "ingest.reader.compare",
    "load_thresholds": "ingest.reader.compare",
    "ConsolidatedView": "ingest.reader.consolidated",
    "Context": "ingest.reader.context",
    "SourceLine": "ingest.reader.context",
    "consolidate": "ingest.wiring",
    "context_of": "ingest.reader.context",
    "Divergence": "ingest.reader.divergence",
    "DumpStore": "ingest.reader.store",
    "divergence": "ingest.reader.divergence",
    "OriginAnswer": "ingest.reader.origin",
    "origin": "ingest.reader.origin",
    "Snapshot": "ingest.reader.snapshot",
    "Step": "ingest.reader.store",
    "Tensor": "ingest.reader.tensor",
    "heatmap": "ingest.reader.trend",
    "ingest_dump": "ingest.wiring",
    "open_store": "ingest.reader.store",
    "trend": "ingest.reader.trend",
}


def __getattr__(name: str) -> Any:
    # Lazy, so that `dump-ingest --help` imports neither numpy nor a codec.
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
