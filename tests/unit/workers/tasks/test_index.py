"""The tables of a step, sketches that are added later, and what workers export."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from prometheus_client import CollectorRegistry

from ingest.api import open_store
from tests.metric_values import value
from tests.stores import DumpLibrary, MadeDump, ingest_directly, plan_all, run, tensor_name
from workers import events
from workers.arrays.statistics import COUNT_FIELDS, FIELDS, UNKNOWN, Statistics, summarise
from workers.dump.model import ReportedStatistics, TensorName
from workers.errors import SourceChanged
from workers.model import StepKey
from workers.store import commit
from workers.store.commit import Commit
from workers.store.model import RowKind, StoreAddress
from workers.store.objects import ObjectStore
from workers.store.record import WithoutTensors
from workers.store.step import StoredStep
from workers.store.tables import Tables
from workers.tasks import consolidate as module
from workers.tasks.consolidate import SketchJob, sketch
from workers.tasks.convert import convert
from workers.tasks.metrics import WorkerMetrics
from workers.tasks.model import ConvertFailed, ConvertStarted, EntryColumns, StepPlan
from workers.tasks.publish import build_tables, disagreements

# The tables of a step, from its entries, its receipts and what the dump reports.


VALUES = np.arange(6, dtype="<f4").reshape(2, 3)


@pytest.fixture
def plan(made: MadeDump, store: Path) -> StepPlan:
    """A step of two tensors with the same elements, and a table."""
    for slot in range(2):
        made.add(VALUES, tensor_name(slot=slot))
    made.add(b"a,b\n", "table.csv")
    (plan,) = plan_all(made.root, store)
    return plan


def build(plan: StepPlan, reported: Mapping[int, ReportedStatistics] | None = None) -> Tables:
    receipts = [convert(job) for job in plan.jobs]
    return build_tables(EntryColumns.of(plan.entries), reported or {}, receipts)


def report(statistics: Statistics, shape: tuple[int, ...] = (2, 3)) -> ReportedStatistics:
    return ReportedStatistics("s.csv", TensorName(), "Float32", shape, statistics)


def test_a_row_says_where_its_payload_is(plan: StepPlan) -> None:
    built = build(plan)
    kinds = built.label("kind").tolist()
    assert sorted(kinds) == ["file", "tensor", "tensor"]
    tensors = [row for row, kind in enumerate(kinds) if kind == "tensor"]
    assert built.number("offset")[tensors].tolist() == [0, 0]  # equal payloads are stored once
    assert built.number("size")[tensors].tolist() == [6, 6]
    assert built.label("array")[tensors].tolist() == ["tensors/float32"] * 2
    assert built.shape[tensors, :2].tolist() == [[2, 3]] * 2
    assert built.number("ndim")[kinds.index("file")] == 1
    assert built.shape[kinds.index("file"), 0] == 4


def test_a_report_that_disagrees_is_a_problem_and_one_that_agrees_is_none(plan: StepPlan) -> None:
    true = summarise(VALUES.reshape(-1))
    first, second = (row for row, entry in enumerate(plan.entries) if entry.kind is RowKind.TENSOR)
    built = build(plan, {first: report(true), second: report(replace(true, max=9.0))})
    problems = built.label("problem")
    assert problems[first] == ""
    assert problems[second] == "s.csv disagrees: max: 9 is reported, 5 computed"
    assert built.statistics[second].tolist() == list(true.as_row())


def test_reported_statistics_fill_rows_without_computed_ones(plan: StepPlan) -> None:
    row = next(row for row, entry in enumerate(plan.entries) if entry.kind is RowKind.TENSOR)
    entries = list(plan.entries)
    entries[row] = entries[row]._replace(kind=RowKind.STATISTICS, header=None)
    true = summarise(VALUES.reshape(-1))
    built = build_tables(EntryColumns.of(entries), {row: report(true)}, [])
    assert built.statistics[row].tolist() == list(true.as_row())
    assert built.label("statistics_from")[row] == "s.csv"
    assert (built.label("dtype")[row], built.label("declared_dtype")[row]) == ("float32", "Float32")
    assert built.shape[row, :2].tolist() == [2, 3]


@pytest.mark.parametrize("count", [-1, 2**64 - 1, 1e300, np.inf])
def test_reported_count_that_no_tensor_has_is_unknown(count: float, plan: StepPlan) -> None:
    row = next(row for row, entry in enumerate(plan.entries) if entry.kind is RowKind.TENSOR)
    entries = list(plan.entries)
    entries[row] = entries[row]._replace(kind=RowKind.STATISTICS, header=None)
    told = Statistics(count=6, nan_count=count, min=-count)
    built = build_tables(EntryColumns.of(entries), {row: report(told)}, [])
    assert built.statistics[row].tolist() == pytest.approx(
        Statistics(count=6, min=-count).as_row(), nan_ok=True
    )


def told(statistics: Statistics, digits: int = 6, **told: Any) -> ReportedStatistics:
    """Return what a table with these statistics says."""
    return ReportedStatistics("s.csv", TensorName(), "float32", (), statistics, digits=digits, **told)


def printed(computed: Statistics, digits: int = 6) -> Statistics:
    """Return statistics as a text of that many digits gives them back."""
    return Statistics(**{field: float(f"{getattr(computed, field):.{digits}g}") for field in FIELDS})


@given(
    hnp.arrays(
        st.sampled_from(["f2", "f4", "f8", "i4", "u1", "?"]),
        st.integers(0, 50),
    ),
    st.integers(1, 9),
)
def test_printing_makes_no_disagreement(
    values: np.ndarray[tuple[int], np.dtype[np.float64]], digits: int
) -> None:
    computed = summarise(values)
    assert disagreements(told(printed(computed, digits), digits), computed, "float32") == []


@pytest.mark.parametrize("field", [field for field in FIELDS if field not in COUNT_FIELDS])
@pytest.mark.parametrize("factor", [1.0001, -1.0, 0.0])
def test_another_value_disagrees_and_both_are_told(field: str, factor: float) -> None:
    computed = summarise(np.array([1.0, 2.0, 4.0, -0.5], "f4"))
    wrong = replace(computed, **{field: getattr(computed, field) * factor})
    (difference,) = disagreements(told(wrong), computed, "float32")
    assert difference.startswith(f"{field}: ")
    assert f"{getattr(computed, field):.9g}" in difference


def test_sums_in_narrow_types_may_be_off_by_their_rounding() -> None:
    computed = summarise(np.linspace(-1, 1.1, 1000, dtype="f4"))
    off = replace(computed, l2_norm=computed.l2_norm * 1.02, mean=computed.mean + 0.01, max=computed.max)
    assert disagreements(told(off), computed, "bfloat16") == []
    assert len(disagreements(told(off), computed, "float16")) == 2
    assert len(disagreements(told(off), computed, "float32")) == 2


def test_a_mean_near_zero_is_measured_by_its_terms() -> None:
    computed = summarise(np.array([1.0, -1.0, 1e-9], "f8"))
    assert disagreements(told(replace(UNKNOWN, mean=3e-8)), computed, "float32") == []
    assert len(disagreements(told(replace(UNKNOWN, mean=3e-3)), computed, "float32")) == 1


def test_std_of_a_sample_agrees_with_that_of_all_elements() -> None:
    values = np.array([1.0, 2.0, 4.0, -0.5], "f4")
    computed, sample = summarise(values), replace(UNKNOWN, std=float(values.std(ddof=1)))
    assert disagreements(told(sample, std_is_of_sample=True), computed, "float32") == []
    assert len(disagreements(told(sample), computed, "float32")) == 1


# Adding histograms to steps that were committed without them.


KEY = StepKey(1, 2)
WHY = WithoutTensors("2026-01-02T03:04:05+00:00", "gc", "old")


@pytest.fixture
def plain(dumps: DumpLibrary, tmp_path: Path) -> Path:
    """A store without histograms."""
    ingest_directly(dumps["nan-log-2rank"] / "dump", tmp_path / "run.zarr")
    return tmp_path / "run.zarr"


def job(store: Path) -> SketchJob:
    return SketchJob(StoreAddress(str(store)), KEY)


def _drop_tensors(objects: ObjectStore, committed: Commit) -> None:
    commit.drop_tensors(objects, committed, WHY)
    shutil.rmtree(Path(objects.address.url) / committed.prefix / "tensors")


def _remove(objects: ObjectStore, committed: Commit) -> None:
    shutil.rmtree(Path(objects.address.url) / committed.key.path)


@pytest.mark.parametrize("meddle", [_drop_tensors, _remove])
def test_a_step_that_gc_takes_meanwhile_is_left(
    plain: Path, monkeypatch: pytest.MonkeyPatch, meddle: Callable[[ObjectStore, Commit], None]
) -> None:
    committed = open_store(plain).step(1, 2).commit
    compute = module.sketches_of

    def compute_then_meddle(step: StoredStep) -> object:
        sketches = compute(step)
        meddle(step.objects, committed)
        return sketches

    monkeypatch.setattr(module, "sketches_of", compute_then_meddle)
    assert "meanwhile" in sketch(job(plain)).left


# What workers export, and requests to the store.


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def test_a_conversion_is_counted_from_its_start_to_its_receipt(
    registry: CollectorRegistry, made: MadeDump, store: Path
) -> None:
    made.add(np.arange(100, dtype="<f4"), tensor_name(slot=0))
    made.add(np.arange(100, dtype="<f4"), tensor_name(slot=1))
    metrics = WorkerMetrics(registry)
    (plan,) = plan_all(made.root, store)
    in_progress = []

    def observe(event: events.Event) -> None:
        metrics.observe(event)
        in_progress.append(value(registry, "dump_ingest_convert_in_progress"))

    events.subscribe(observe)
    try:
        run(plan)
    finally:
        events.unsubscribe(observe)
    assert max(number or 0 for number in in_progress) == 1
    assert value(registry, "dump_ingest_convert_in_progress") == 0
    assert value(registry, "dump_ingest_convert_attempts_total") == 1
    assert value(registry, "dump_ingest_convert_files_total") == 2
    assert value(registry, "dump_ingest_convert_duplicate_bytes_total") == 400
    assert value(registry, "dump_ingest_shards_written_total") == 1
    assert value(registry, "dump_ingest_publish_duration_seconds_count") == 1


@pytest.mark.parametrize(
    ("error", "reason"), [(SourceChanged("it changed"), "source_changed"), (ValueError("broken"), "other")]
)
def test_a_failed_conversion_is_counted_by_reason(
    registry: CollectorRegistry, error: Exception, reason: str, made: MadeDump, store: Path
) -> None:
    made.add(np.arange(3, dtype="<f4"))
    metrics = WorkerMetrics(registry)
    (plan,) = plan_all(made.root, store)
    metrics.observe(ConvertStarted(plan.jobs[0]))
    metrics.observe(ConvertFailed(plan.jobs[0], error))
    assert value(registry, "dump_ingest_convert_failures_total", reason=reason) == 1
    assert value(registry, "dump_ingest_convert_in_progress") == 0
