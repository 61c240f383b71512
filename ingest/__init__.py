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
    from ingest.api import (
        Anomalies as Anomalies,
    )
    from ingest.api import (
        Comparison as Comparison,
    )
    from ingest.api import (
        ConsolidatedCubes as ConsolidatedCubes,
    )
    from ingest.api import (
        Context as Context,
    )
    from ingest.api import (
        Divergence as Divergence,
    )
    from ingest.api import (
        DumpStore as DumpStore,
    )
    from ingest.api import (
        GcPlan as GcPlan,
    )
    from ingest.api import (
        GcPolicy as GcPolicy,
    )
    from ingest.api import (
        GcReport as GcReport,
    )
    from ingest.api import (
        OriginAnswer as OriginAnswer,
    )
    from ingest.api import (
        RuleTest as RuleTest,
    )
    from ingest.api import (
        Snapshot as Snapshot,
    )
    from ingest.api import (
        SourceLine as SourceLine,
    )
    from ingest.api import (
        Step as Step,
    )
    from ingest.api import (
        Tensor as Tensor,
    )
    from ingest.api import (
        anomalies as anomalies,
    )
    from ingest.api import (
        apply_gc as apply_gc,
    )
    from ingest.api import (
        compare as compare,
    )
    from ingest.api import (
        consolidate as consolidate,
    )
    from ingest.api import (
        context_of as context_of,
    )
    from ingest.api import (
        divergence as divergence,
    )
    from ingest.api import (
        heatmap as heatmap,
    )
    from ingest.api import (
        ingest_dump as ingest_dump,
    )
    from ingest.api import (
        load_mapping as load_mapping,
    )
    from ingest.api import (
        load_thresholds as load_thresholds,
    )
    from ingest.api import (
        open_store as open_store,
    )
    from ingest.api import (
        origin as origin,
    )
    from ingest.api import (
        plan_gc as plan_gc,
    )
    from ingest.api import (
        test_rules as test_rules,
    )
    from ingest.api import (
        trend as trend,
    )


def __getattr__(name: str) -> Any:
    # On first use: `dump-ingest --help` needs neither numpy nor a codec, and imports neither (0.4 s).
    if name.startswith("_") and name != "__all__":
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module("ingest.api"), name)


def __dir__() -> list[str]:
    return sorted([*import_module("ingest.api").__all__, "__version__"])
