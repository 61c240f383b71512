"""dump-ingest: tensor dumps of training jobs in one queryable Zarr store.

import ingest
store = ingest.open_store("s3://bucket/run.zarr")
for tensor in store.tensors(step=9, where="nan_count > 0"):
    print(tensor.rank, tensor.name, tensor.statistics.nan_count)
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any


def _require_own_workers() -> None:
    """Check that `workers` is the package that was installed with this one, before anything of it runs.

    Raises:
        ImportError: another package has the name, such as a directory beside the notebook.
    """
    spec = find_spec("workers")
    place = next(iter(spec.submodule_search_locations or ()), spec.origin) if spec else None
    own = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "workers")  # noqa: PTH118, PTH120  (pathlib takes 10 ms)
    if place is not None and os.path.realpath(place) != own:
        raise ImportError(
            f"dump-ingest needs its package `workers` ({own}), but Python finds another of that name first: "
            f"{place}. Rename that one, start Python in another directory, or move its directory behind "
            "site-packages in sys.path before `import ingest`."
        )


_require_own_workers()

if TYPE_CHECKING:
    from ingest.api import *  # noqa: F403  (the same names, for type checkers and editors)
    from workers import __version__ as __version__

#: The home of each public name: a module, and what the module calls it if that is another name.
_HOMES = {
    "AccessDenied": "workers.errors",
    "Anatomy": "ingest.reader.anatomy",
    "Anomalies": "ingest.findings.anomalies",
    "BrokenLinks": "ingest.questions.divergence.broken_links",
    "CheckedConfig": "ingest.dump_configs.checking.check",
    "ClusterError": "workers.errors",
    "Comparison": "ingest.questions.compare",
    "ConsolidatedCubes": "ingest.reader.cubes.consolidated",
    "Context": "ingest.reader.context",
    "DamagedStepWarning": "ingest.reader.damage",
    "DamagedStore": "workers.errors",
    "Divergence": "ingest.questions.divergence",
    "DumpCost": "ingest.questions.next_dump",
    "DumpError": "workers.errors",
    "DumpIngestError": "workers.errors",
    "DumpStore": "ingest.reader.dump_store",
    "ErrorGrowth": "ingest.questions.compare.growth",
    "ExportedWhole": "ingest.reader.files.export_unsharded",
    "GcPlan": "ingest.store_gc.plan",
    "GcPolicy": "ingest.store_gc.policy",
    "GcReport": "ingest.store_gc.execute",
    "Incident": "ingest.findings.incidents",
    "Incidents": "ingest.findings.incidents",
    "LayoutByMarginals": "ingest.questions.placement.by_marginals",
    "LiveWatcher": "ingest.service.live_watcher",
    "Localized": "ingest.questions.localize",
    "Matrix": "ingest.questions.matrix",
    "MissingItem": "ingest.questions.missing",
    "MissingItems": "ingest.questions.missing",
    "Neighbour": "ingest.reader.neighbour",
    "NextDump": "ingest.questions.next_dump",
    "OriginAnswer": "ingest.questions.origin",
    "OutliersAnswer": "ingest.questions.outliers",
    "PrecisionAnswer": "ingest.questions.precision",
    "QuantilesAnswer": "ingest.questions.quantiles",
    "RankValues": "ingest.reader.cubes.rank_statistics",
    "RecompressPlan": "ingest.store_gc.recompress",
    "RecompressReport": "ingest.store_gc.recompress",
    "Recorder": "ingest.recording.recorder",
    "RepairReport": "ingest.repairing.result",
    "RuleTest": "ingest.findings.backtest",
    "RunLayout": "ingest.questions.placement.layout_answer",
    "SketchReport": "ingest.consolidating.sketching",
    "Snapshot": "ingest.reader.snapshot",
    "SourceLine": "ingest.reader.context",
    "Statistics": "workers.arrays.statistics",
    "Step": "ingest.reader.step",
    "StepRemoved": "workers.errors",
    "Steps": "ingest.reader.step",
    "StoreDenied": "workers.errors",
    "StoreError": "workers.errors",
    "StoreFormatError": "workers.errors",
    "StoreUnavailable": "workers.errors",
    "Tensor": "ingest.reader.tensor",
    "Tensors": "ingest.reader.listing",
    "TensorsRemoved": "workers.errors",
    "Trampled": "ingest.questions.trampled",
    "TrampledTensors": "ingest.questions.trampled",
    "UnshardedTensor": "ingest.reader.parallel.unsharded",
    "UsageError": "workers.errors",
    "Waited": "ingest.findings.waiting",
    "__version__": "workers",
    "anomalies": "ingest.findings.anomalies",
    "apply_gc": "ingest.store_gc.run",
    "broken_links": "ingest.questions.divergence.broken_links",
    "check_dump_config": "ingest.dump_configs.checking.check",
    "compare": "ingest.questions.compare",
    "consolidate": "ingest.wiring.consolidation",
    "context_of": "ingest.reader.context",
    "divergence": "ingest.questions.divergence",
    "dump_cost": "ingest.questions.next_dump",
    "error_growth": "ingest.questions.compare.growth",
    "export_unsharded": "ingest.reader.files.export_unsharded",
    "heatmap": "ingest.questions.heatmap",
    "incidents": "ingest.findings.incidents",
    "ingest_dump": "ingest.wiring.services",
    "layout": "ingest.questions.placement.within",
    "layout_by_marginals": "ingest.questions.placement.by_marginals",
    "load_layout_map": "ingest.questions.compare",
    "load_mapping": "ingest.questions.compare",
    "load_thresholds": "ingest.questions.compare",
    "localize": "ingest.questions.localize",
    "matrix": "ingest.questions.matrix",
    "missing": "ingest.questions.missing",
    "next_dump": "ingest.questions.next_dump",
    "open_store": "ingest.reader.dump_store",
    "origin": "ingest.questions.origin",
    "outliers": "ingest.questions.outliers",
    "plan_gc": "ingest.store_gc.run",
    "plan_recompress": "ingest.store_gc.recompress",
    "precision": "ingest.questions.precision",
    "quantiles": "ingest.questions.quantiles",
    "rank_values": "ingest.questions.rank_values",
    "recompress_store": "ingest.store_gc.recompress",
    "record": "ingest.recording.record",
    "repair": "ingest.repairing.run",
    "report": "ingest.page.report",
    "save_npy": "ingest.reader.files.save",
    "should_stop": "ingest.findings.should_stop",
    "sketch": "ingest.wiring.sketching",
    "test_rules": "ingest.findings.backtest:backtest",
    "token": "ingest.page.moment",
    "trampled": "ingest.questions.trampled",
    "trend": "ingest.questions.trend",
    "wait": "ingest.findings.waiting",
    "watchers": "ingest.page.watchers",
    "window": "ingest.page.sheet",
}

__all__ = list(_HOMES)


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
