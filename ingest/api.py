"""Everything that users import: a store, the questions about it, and the services that fill it.

`import ingest` offers the same names and loads each of them on first use; see `ingest.__getattr__`. Importing
this module loads all of them at once, which takes two seconds.
"""

from ingest.findings.anomalies import Anomalies, anomalies
from ingest.findings.backtest import RuleTest
from ingest.findings.backtest import backtest as test_rules
from ingest.questions.compare import Comparison, compare, load_mapping, load_thresholds
from ingest.questions.divergence import Divergence, divergence
from ingest.questions.divergence.broken_links import BrokenLinks, broken_links
from ingest.questions.origin import OriginAnswer, origin
from ingest.questions.trend import heatmap, trend
from ingest.reader.anatomy import Anatomy
from ingest.reader.consolidated import ConsolidatedCubes
from ingest.reader.context import Context, SourceLine, context_of
from ingest.reader.dump_store import DumpStore, open_store
from ingest.reader.save import save_npy
from ingest.reader.snapshot import Snapshot
from ingest.reader.step import Step
from ingest.reader.tensor import Neighbour, Tensor
from ingest.repairing.result import RepairReport
from ingest.repairing.run import repair
from ingest.store_gc.execute import GcReport
from ingest.store_gc.plan import GcPlan
from ingest.store_gc.policy import GcPolicy
from ingest.store_gc.run import apply_gc, plan_gc
from ingest.wiring import consolidate, ingest_dump

__all__ = [
    "Anatomy",
    "Anomalies",
    "BrokenLinks",
    "Comparison",
    "ConsolidatedCubes",
    "Context",
    "Divergence",
    "DumpStore",
    "GcPlan",
    "GcPolicy",
    "GcReport",
    "Neighbour",
    "OriginAnswer",
    "RepairReport",
    "RuleTest",
    "Snapshot",
    "SourceLine",
    "Step",
    "Tensor",
    "anomalies",
    "apply_gc",
    "broken_links",
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
    "repair",
    "save_npy",
    "test_rules",
    "trend",
]
