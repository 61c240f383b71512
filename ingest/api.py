"""Everything that users import: a store, the questions about it, and the services that fill it.

`import ingest` offers the same names and loads each of them on first use; see `ingest.__getattr__`. Importing
this module loads all of them at once, which takes two seconds.
"""

from ingest.consolidating.sketching import SketchReport
from ingest.findings.anomalies import Anomalies, anomalies
from ingest.findings.backtest import RuleTest
from ingest.findings.backtest import backtest as test_rules
from ingest.findings.incidents import Incident, Incidents, incidents
from ingest.page.report import report
from ingest.questions.compare import Comparison, compare, load_mapping, load_thresholds
from ingest.questions.divergence import Divergence, divergence
from ingest.questions.divergence.broken_links import BrokenLinks, broken_links
from ingest.questions.localize import Localized, localize
from ingest.questions.origin import OriginAnswer, origin
from ingest.questions.precision import PrecisionAnswer, precision
from ingest.questions.quantiles import QuantilesAnswer, quantiles
from ingest.questions.trend import heatmap, trend
from ingest.reader.anatomy import Anatomy
from ingest.reader.consolidated import ConsolidatedCubes
from ingest.reader.context import Context, SourceLine, context_of
from ingest.reader.damage import DamagedStepWarning
from ingest.reader.dump_store import DumpStore, open_store
from ingest.reader.listing import Tensors
from ingest.reader.save import save_npy
from ingest.reader.snapshot import Snapshot
from ingest.reader.step import Step, Steps
from ingest.reader.tensor import Neighbour, Tensor
from ingest.repairing.result import RepairReport
from ingest.repairing.run import repair
from ingest.store_gc.execute import GcReport
from ingest.store_gc.plan import GcPlan
from ingest.store_gc.policy import GcPolicy
from ingest.store_gc.run import apply_gc, plan_gc
from ingest.wiring import consolidate, ingest_dump, sketch
from workers.arrays.statistics import Statistics
from workers.errors import (
    AccessDenied,
    ClusterError,
    DamagedStore,
    DumpError,
    DumpIngestError,
    StepRemoved,
    StoreDenied,
    StoreError,
    StoreFormatError,
    StoreUnavailable,
    TensorsRemoved,
    UsageError,
)

__all__ = [
    "AccessDenied",
    "Anatomy",
    "Anomalies",
    "BrokenLinks",
    "ClusterError",
    "Comparison",
    "ConsolidatedCubes",
    "Context",
    "DamagedStepWarning",
    "DamagedStore",
    "Divergence",
    "DumpError",
    "DumpIngestError",
    "DumpStore",
    "GcPlan",
    "GcPolicy",
    "GcReport",
    "Incident",
    "Incidents",
    "Localized",
    "Neighbour",
    "OriginAnswer",
    "PrecisionAnswer",
    "QuantilesAnswer",
    "RepairReport",
    "RuleTest",
    "SketchReport",
    "Snapshot",
    "SourceLine",
    "Statistics",
    "Step",
    "StepRemoved",
    "Steps",
    "StoreDenied",
    "StoreError",
    "StoreFormatError",
    "StoreUnavailable",
    "Tensor",
    "Tensors",
    "TensorsRemoved",
    "UsageError",
    "anomalies",
    "apply_gc",
    "broken_links",
    "compare",
    "consolidate",
    "context_of",
    "divergence",
    "heatmap",
    "incidents",
    "ingest_dump",
    "load_mapping",
    "load_thresholds",
    "localize",
    "open_store",
    "origin",
    "plan_gc",
    "precision",
    "quantiles",
    "repair",
    "report",
    "save_npy",
    "sketch",
    "test_rules",
    "trend",
]
