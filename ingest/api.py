"""Everything that users import: a store, the questions over it, and the services that fill it.

`ingest` offers all of it under its own name, and imports this module when a name is first used.
"""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from typing import Any

from ingest.findings.anomalies import Anomalies, anomalies
from ingest.findings.backtest import RuleTest
from ingest.findings.backtest import backtest as test_rules
from ingest.questions.compare import Comparison, compare, load_mapping, load_thresholds
from ingest.questions.divergence import Divergence, divergence
from ingest.questions.origin import OriginAnswer, origin
from ingest.questions.trend import heatmap, trend
from ingest.reader.catalog import Catalog, Choice, Damage, open_catalog
from ingest.reader.consolidated import ConsolidatedCubes, open_cubes
from ingest.reader.context import Context, SourceLine, context_of
from ingest.reader.snapshot import Snapshot, take_snapshot
from ingest.reader.step import Step
from ingest.reader.tensor import Tensor
from ingest.reader.verify import verify
from ingest.reader.zarr_view.store import TensorView
from ingest.store_gc.execute import GcReport
from ingest.store_gc.plan import GcPlan
from ingest.store_gc.policy import GcPolicy
from ingest.store_gc.run import apply_gc, plan_gc
from ingest.wiring import consolidate, ingest_dump
from workers.errors import UsageError

__all__ = [
    "Anomalies",
    "Comparison",
    "ConsolidatedCubes",
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


class DumpStore(Catalog):
    """All committed steps of a run, keyed by rank and step. A step that is not committed is not here.

    Nothing is listed or read before it is asked for, and then no more than what was asked for; what was read
    is kept.
    """

    def snapshot(
        self, rank: Choice = None, step: Choice = None, *, include_partial: bool = False
    ) -> Snapshot:
        """Note which of these steps are complete now; see `ingest.reader.snapshot.take_snapshot`."""
        return take_snapshot(self, rank, step, include_partial=include_partial)

    def consolidated(self) -> ConsolidatedCubes:
        """Return the consolidated view: statistics and digests of all tensors over steps and ranks.

        Raises:
            UsageError: there is none yet.
            DamagedStore: it is damaged.
        """
        view = open_cubes(self.objects)
        if view is None:
            raise UsageError(
                f"{self.url}: no consolidated view", hint=f"Make it: dump-ingest consolidate {self.url}"
            )
        return view

    def as_zarr(self, *, include_partial: bool = False) -> TensorView:
        """Return a read-only zarr-python store in which every tensor is an array of its own.

        `zarr.open_group(store.as_zarr(), mode="r")["rank_1/step_2/Log.Default_net-Log-op0/output.0"]` reads
        the ranges that it needs, and no list of anything. See `ingest.reader.zarr_view.store.TensorView`.

        Args:
            include_partial: show steps with quarantined or missing files, too.
        """
        return TensorView(self, include_partial=include_partial)

    def verify(self, rank: Choice = None, step: Choice = None) -> Iterator[Damage]:
        """Read these steps back, or all, and yield what is not as it was written; see `ingest.reader.verify`."""
        if rank is None and step is None:
            return verify(self)
        damages: list[Damage] = []
        chosen = self.select(rank, step, damages=damages)
        return verify(self, [*(one.key for one in chosen), *(one.key for one in damages)])


def open_store(url: str | PathLike[str], **storage_options: Any) -> DumpStore:
    """Open a store for reading.

    Args:
        url: a directory or any fsspec URL.
        storage_options: passed to fsspec; no credentials, which come from the environment.

    Raises:
        UsageError: there is no store.
        StoreFormatError: a newer version of dump-ingest wrote it.
        StoreError: it cannot be reached.
    """
    return DumpStore(open_catalog(url, **storage_options).objects)
