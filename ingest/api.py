"""Everything that users import: a store, the questions about it, and the services that fill it.

`import ingest` offers the same names and loads each of them on first use; see `ingest.__getattr__`. Importing
this module loads all of them at once, which takes two seconds.
"""

from ingest.dump_configs.check import CheckedConfig, check_dump_config
from ingest.findings.backtest import RuleTest
from ingest.findings.backtest import backtest as test_rules
from ingest.findings.incidents import Incident, Incidents, incidents
from ingest.findings.should_stop import should_stop
from ingest.findings.stored import Anomalies, anomalies
from ingest.findings.tables import export_tables
from ingest.findings.trackers import export_scalars
from ingest.findings.viewers import export_graphs, export_trace
from ingest.findings.waiting import Waited, wait
from ingest.page.library import token
from ingest.page.sheet import window
from ingest.page.views.incidents import report
from ingest.page.watchers import watchers
from ingest.questions.audit import AuditAnswer, audit, audit_budget
from ingest.questions.compare.mapping import load_mapping
from ingest.questions.compare.result import Comparison
from ingest.questions.compare.run import compare
from ingest.questions.compare.thresholds import load_thresholds
from ingest.questions.divergence import Divergence, divergence
from ingest.questions.dump_cost import DumpCost, dump_cost
from ingest.questions.find import find
from ingest.questions.growth import ErrorGrowth, error_growth
from ingest.questions.heatmap import heatmap
from ingest.questions.localize import Localized, localize
from ingest.questions.matrix import Matrix, matrix, rank_values
from ingest.questions.missing import MissingItem, MissingItems, missing
from ingest.questions.next_dump import NextDump, next_dump
from ingest.questions.origin import OriginAnswer, origin
from ingest.questions.outliers import OutliersAnswer, outliers
from ingest.questions.placement.layout_answer import RunLayout
from ingest.questions.placement.layout_map import load_layout_map
from ingest.questions.placement.within import layout
from ingest.questions.precision import PrecisionAnswer, precision
from ingest.questions.quantiles import QuantilesAnswer, quantiles
from ingest.questions.rollout.by_token import TokenComparison, compare_tokens
from ingest.questions.rollout.weights import ArrivedWeights, compare_weights
from ingest.questions.trampled import Trampled, TrampledTensors, trampled
from ingest.questions.trend import trend
from ingest.reader.anatomy import Anatomy
from ingest.reader.catalog import DamagedStepWarning
from ingest.reader.context import Context, SourceLine, context_of
from ingest.reader.cube_conditions import ConsolidatedCubes
from ingest.reader.dump_store import DumpStore, open_store
from ingest.reader.save import ExportedWhole, export_unsharded, save_npy
from ingest.reader.snapshot import Snapshot
from ingest.reader.step import Step, Steps, Tensors
from ingest.reader.step_statistics import RankValues
from ingest.reader.tensor import Neighbour, Tensor
from ingest.reader.unsharded import UnshardedTensor
from ingest.recording.jax_program import record_jax
from ingest.recording.record import record
from ingest.recording.recorder import Recorder
from ingest.recording.training import record_training
from ingest.repairing.run import repair
from ingest.repairing.work import RepairReport
from ingest.service.live_watcher import LiveWatcher
from ingest.store_gc.execute import (
    GcReport,
    RecompressPlan,
    RecompressReport,
    apply_gc,
    plan_gc,
    plan_recompress,
    recompress_store,
)
from ingest.store_gc.plan import GcPlan, GcPolicy
from ingest.wiring.consolidation import SketchReport, consolidate, sketch
from ingest.wiring.services import ingest_dump
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
    "ArrivedWeights",
    "AuditAnswer",
    "CheckedConfig",
    "ClusterError",
    "Comparison",
    "ConsolidatedCubes",
    "Context",
    "DamagedStepWarning",
    "DamagedStore",
    "Divergence",
    "DumpCost",
    "DumpError",
    "DumpIngestError",
    "DumpStore",
    "ErrorGrowth",
    "ExportedWhole",
    "GcPlan",
    "GcPolicy",
    "GcReport",
    "Incident",
    "Incidents",
    "LiveWatcher",
    "Localized",
    "Matrix",
    "MissingItem",
    "MissingItems",
    "Neighbour",
    "NextDump",
    "OriginAnswer",
    "OutliersAnswer",
    "PrecisionAnswer",
    "QuantilesAnswer",
    "RankValues",
    "RecompressPlan",
    "RecompressReport",
    "Recorder",
    "RepairReport",
    "RuleTest",
    "RunLayout",
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
    "TokenComparison",
    "Trampled",
    "TrampledTensors",
    "UnshardedTensor",
    "UsageError",
    "Waited",
    "anomalies",
    "apply_gc",
    "audit",
    "audit_budget",
    "check_dump_config",
    "compare",
    "compare_tokens",
    "compare_weights",
    "consolidate",
    "context_of",
    "divergence",
    "dump_cost",
    "error_growth",
    "export_graphs",
    "export_scalars",
    "export_tables",
    "export_trace",
    "export_unsharded",
    "find",
    "heatmap",
    "incidents",
    "ingest_dump",
    "layout",
    "load_layout_map",
    "load_mapping",
    "load_thresholds",
    "localize",
    "matrix",
    "missing",
    "next_dump",
    "open_store",
    "origin",
    "outliers",
    "plan_gc",
    "plan_recompress",
    "precision",
    "quantiles",
    "rank_values",
    "recompress_store",
    "record",
    "record_jax",
    "record_training",
    "repair",
    "report",
    "save_npy",
    "should_stop",
    "sketch",
    "test_rules",
    "token",
    "trampled",
    "trend",
    "wait",
    "watchers",
    "window",
]
