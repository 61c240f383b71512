"""dump-ingest: tensor dumps of training jobs in one queryable Zarr store.

import ingest
store = ingest.open_store("s3://bucket/run.zarr")
for tensor in store.tensors(step=9, where="nan_count > 0"):
    print(tensor.rank, tensor.name, tensor.statistics.nan_count)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from workers import __version__ as __version__

if TYPE_CHECKING:
    from ingest.api import *  # noqa: F403  (the same names, for type checkers and editors)

#: The home of each public name: a module, and what the module calls it if that is another name.
_HOMES = {
    "Anatomy": "ingest.reader.anatomy",
    "Anomalies": "ingest.findings.anomalies",
    "BrokenLinks": "ingest.questions.divergence.broken_links",
    "Comparison": "ingest.questions.compare",
    "ConsolidatedCubes": "ingest.reader.consolidated",
    "Context": "ingest.reader.context",
    "Divergence": "ingest.questions.divergence",
    "DumpStore": "ingest.reader.dump_store",
    "GcPlan": "ingest.store_gc.plan",
    "GcPolicy": "ingest.store_gc.policy",
    "GcReport": "ingest.store_gc.execute",
    "Neighbour": "ingest.reader.tensor",
    "OriginAnswer": "ingest.questions.origin",
    "RepairReport": "ingest.repairing.result",
    "RuleTest": "ingest.findings.backtest",
    "Snapshot": "ingest.reader.snapshot",
    "SourceLine": "ingest.reader.context",
    "Step": "ingest.reader.step",
    "Tensor": "ingest.reader.tensor",
    "anomalies": "ingest.findings.anomalies",
    "apply_gc": "ingest.store_gc.run",
    "broken_links": "ingest.questions.divergence.broken_links",
    "compare": "ingest.questions.compare",
    "consolidate": "ingest.wiring",
    "context_of": "ingest.reader.context",
    "divergence": "ingest.questions.divergence",
    "heatmap": "ingest.questions.trend",
    "ingest_dump": "ingest.wiring",
    "load_mapping": "ingest.questions.compare",
    "load_thresholds": "ingest.questions.compare",
    "open_store": "ingest.reader.dump_store",
    "origin": "ingest.questions.origin",
    "plan_gc": "ingest.store_gc.run",
    "repair": "ingest.repairing.run",
    "save_npy": "ingest.reader.save",
    "test_rules": "ingest.findings.backtest:backtest",
    "trend": "ingest.questions.trend",
}

__all__ = ["__version__"]
__all__ += list(_HOMES)


def _load(name: str) -> Any:
    """Return a public name, and import its home on first use.

    Opening a store then takes 0.3 s instead of the 2 s of `ingest.api`, and `dump-ingest --help` imports
    neither numpy nor a codec.
    """
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    module, _, attribute = _HOMES[name].partition(":")
    return getattr(import_module(module), attribute or name)


if not TYPE_CHECKING:
    # To a type checker it would mean that the module has every name.
    __getattr__ = _load


def __dir__() -> list[str]:
    return sorted(__all__)
