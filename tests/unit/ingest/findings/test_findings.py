"""What rules and comparisons of replicas find in steps, and what is kept of it."""

import math
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import ingest
from ingest.api import DumpStore
from ingest.consolidating.consolidator import Consolidator, StepsConsolidated
from ingest.findings import history
from ingest.findings.backtest import backtest
from ingest.findings.history import StepValues, StepWindow
from ingest.findings.series import SeriesRules
from ingest.findings.series_kinds import KINDS
from ingest.findings.stored import SeriesEvaluator, read_series
from ingest.reader.catalog import Catalog
from ingest.reader.step_tables import findings_of
from ingest.store_gc.plan import take_inventory
from tests.cli import run_here
from tests.replicas import Replicas
from tests.rule_sets import consolidated, only, put, steps_that_fire
from tests.stores import DumpLibrary, MadeDump, ingest_and_open, ingest_directly, plan_all, tensor_name
from tests.stores import run as publish
from tests.wrapped_objects import WrappedObjects
from workers.arrays.histogram import Histogram
from workers.arrays.statistics import RunningStatistics
from workers.errors import StoreUnavailable, UsageError
from workers.events import Event
from workers.model import StepKey
from workers.rules.schema import load_rules
from workers.rules.values import Rule, RuleSet, Selector
from workers.store import commit
from workers.store.commit import Tombstone, ensure_tombstones, write_tombstone
from workers.store.consolidated.blocks import TensorKey
from workers.store.model import Evaluated
from workers.store.objects import ObjectStore

# The list of findings: what is in it, in which order, and what is not known.


RULES = load_rules().enabled


def test_findings_come_worst_first_then_in_order(nan: Path) -> None:
    listed = ingest.anomalies(ingest.open_store(str(nan)))
    first = listed.findings[0]
    assert (first.rule, first.rank, first.step) == ("nan", 1, 2)
    assert first.name == "Log.Default_net-LogLoss_Log-op0.output.0"
    orders = [finding.order for finding in listed.findings]
    assert orders == sorted(orders)
    assert listed.totals == {"nan": 10, "loss_not_finite": 4}
    assert listed.by_severity == {"critical": 14}
    assert list(listed.to_pandas()["rule"].unique()) == ["nan", "loss_not_finite"]


def test_a_step_that_nobody_looked_at_says_so(dumps: DumpLibrary, tmp_path: Path) -> None:
    """No finding means nothing there."""
    store = tmp_path / "run.zarr"
    opened = ingest_and_open(dumps["nan-log-2rank"] / "dump", store)
    assert findings_of(opened.step(1, 2)) is None
    listed = ingest.anomalies(opened)
    assert not listed.findings
    assert listed.not_evaluated == (
        "ranks 0-1, steps 1-3: no rules were evaluated when it was committed",
        "steps 1-3: rules over several steps or ranks were not evaluated; `consolidate` does that",
    )


def test_another_set_of_rules_stands_beside_and_takes_nothing_away(tmp_path: Path) -> None:
    dump, store = MadeDump(tmp_path / "dump"), tmp_path / "run.zarr"
    dump.add(np.array([np.nan, 3], np.float32))
    other = only(kind="too_large", max_gt=1)
    for rules in (RULES, other):
        for plan in plan_all(dump.root, store, rules=rules):
            publish(plan)
    (finding,) = ingest.anomalies(ingest.open_store(str(store))).findings
    assert finding.rule == "mine"
    assert len(list(store.glob("rank_0/step_0/*/findings/*"))) == 3  # two sets, and the metadata of the group


@pytest.mark.parametrize(
    ("wanted", "said"),
    [({"severity": "bad"}, "not a severity"), ({"rule": "nam"}, "no rule"), ({"rank": 9}, "no rank 9")],
)
def test_a_wrong_question_is_refused(nan: Path, wanted: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ingest.anomalies(ingest.open_store(str(nan)), **wanted)  # type: ignore[arg-type]


def test_the_command_lists_says_what_it_cannot_know_and_names_mistakes(nan: Path) -> None:
    done = run_here("anomalies", nan, "--rule", "nan", "--step", 3, "--limit", 1, "--json")
    rows = done.json
    assert [(row["rule"], row["rank"], row["step"]) for row in rows] == [("nan", 1, 3)]
    assert done.stderr.startswith("5 findings: 5 critical, the first 1 shown")
    assert list(rows[0]) == [
        "rule", "severity", "rank", "step", "row", "graph", "name", "value", "threshold", "reason",
        "cause", "level", "since",
    ]  # fmt: skip
    tried = run_here("rules", "test", nan, "--rule", "*finite", "--json").json
    assert [rule["rule"] for rule in tried["rules"]] == [
        "loss_not_finite",
        "gradient_not_finite",
        "parameter_not_finite",
    ]


def test_a_rule_that_became_milder_hides_nothing_that_it_found_before() -> None:
    """New rules apply to later steps: what they found before keeps its severity."""
    objects = Replicas().objects
    put(objects, [[1], [1]])
    consolidated(objects, only(kind="unchanged", steps=2, include="*Grad*", severity="critical"))
    put(objects, [[1], [1], [1], [1]])
    consolidated(objects, only(kind="unchanged", steps=2, include="*Grad*", severity="info"))
    store = DumpStore(objects)
    assert ingest.anomalies(store).totals == {"mine": 3}
    critical = ingest.anomalies(store, severity="critical")
    assert ([finding.step for finding in critical.findings], critical.totals) == ([1], {"mine": 1})
    assert critical.severities == {"mine": "critical"}


# A step is evaluated once, and again only when it has become another step.


def documents(objects: ObjectStore) -> dict[str, bytes | None]:
    return {name: objects.get(f"findings/{name}") for name in objects.sizes("findings")}


def test_a_step_is_evaluated_once_also_by_another_process_and_after_a_rebuild(objects: ObjectStore) -> None:
    put(objects, [[1], [1], [1]])
    chosen = only(kind="unchanged", include="*Grad*")
    first = consolidated(objects, chosen)
    assert [step.step for step in first if step.result.findings] == [2]
    written = documents(objects)
    assert len(written) == 1 + 3
    assert consolidated(objects, chosen) == []
    other = Consolidator(objects, evaluator=SeriesEvaluator(objects, only(kind="unchanged", steps=2)))
    assert not other.once(rebuild=True).findings
    assert documents(objects) == written


def test_killed_before_it_was_written_a_step_is_evaluated_again(objects: ObjectStore) -> None:
    put(objects, [[1], [1], [1], [1]])
    chosen = only(kind="unchanged", include="*Grad*")
    killed = Consolidator(objects, evaluator=SeriesEvaluator(objects, chosen))
    assert [step.step for step in killed.once(limit=2).findings] == [0, 1]
    steps = consolidated(objects, chosen)
    assert [(step.step, len(step.result.findings)) for step in steps] == [(2, 1), (3, 1)]


class Busy(WrappedObjects):
    """A store that does not take one object at first."""

    key = ""

    def put(self, key: str, data: bytes | bytearray) -> None:
        if self.key and key.startswith(self.key):
            self.key = ""
            raise StoreUnavailable("busy")
        super().put(key, data)


@pytest.mark.parametrize("key", ["findings/2.", "consolidated/zarr.json"])
def test_every_step_is_reported_once_although_the_store_fails_meanwhile(
    key: str, objects: ObjectStore
) -> None:
    """What was found is told to Prometheus and to people by the process that has found it."""
    busy, heard = Busy(objects), list[Event]()
    evaluator = SeriesEvaluator(busy, only(kind="unchanged", include="*Grad*"))
    consolidator = Consolidator(busy, evaluator=evaluator, observers=[heard.append])
    put(objects, [[1]])
    consolidator.once()
    put(objects, [[1], [1], [1], [1]])
    busy.key = key
    with pytest.raises(StoreUnavailable):
        consolidator.once()
    consolidator.once()
    rounds = [event for event in heard if isinstance(event, StepsConsolidated)]
    assert [step.step for event in rounds for step in event.findings] == [0, 1, 2, 3]
    assert [step for event in rounds for step in event.appended] == [0, 1, 2, 3]


def test_a_step_that_is_dumped_again_is_evaluated_again(objects: ObjectStore) -> None:
    chosen = only(kind="unchanged", include="*Grad*")
    put(objects, [[1], [1], [1]])
    consolidated(objects, chosen)
    assert [finding.step for finding in ingest.anomalies(DumpStore(objects)).findings] == [2]
    put(objects, [[1], [1], [5]])
    assert [step.step for step in consolidated(objects, chosen)] == [2]
    assert not ingest.anomalies(DumpStore(objects)).findings


def remove(objects: ObjectStore, key: StepKey) -> None:
    """Remove a step as `gc` does."""
    record = commit.read_records(objects, [key])[key]
    ensure_tombstones(objects, key.rank)
    tombstone = Tombstone(key.rank, key.step or 0, record.fingerprint, int(record.committed_at_s * 1000))
    write_tombstone(objects, tombstone, removed_at="", why="")
    objects.delete(f"{key.path}/zarr.json")


def test_a_step_of_which_ranks_were_removed_is_evaluated_again_only_if_others_dumped_it_again(
    objects: ObjectStore,
) -> None:
    chosen = only(kind="unchanged", include="*Grad*")
    for rank in range(3):
        put(objects, [[1], [1], [1]], rank=rank)
    consolidated(objects, chosen)
    remove(objects, StepKey(1, 2))
    assert consolidated(objects, chosen) == []
    put(objects, [[1], [1], [5]])
    (step,) = consolidated(objects, chosen)
    assert [finding.rank for finding in step.result.findings] == [2]
    remove(objects, StepKey(2, 2))
    assert consolidated(objects, chosen) == []


# What is kept of earlier steps: bounded, and without what cannot be read.


def test_what_takes_too_much_memory_is_forgotten_and_a_rule_that_needs_it_says_so(
    objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(objects, [[1]] * 6)
    series = SeriesRules(only(kind="unchanged", steps=4, include="*Grad*"))
    steps = {step: str(step) for step in range(6)}

    def evaluated(step: int) -> Evaluated:
        return series.evaluate(Catalog(objects), step, dict(list(steps.items())[:step]), steps[step]).result

    assert [len(evaluated(step).findings) for step in (2, 3)] == [0, 1]
    monkeypatch.setattr(history, "MAX_HISTORY_NBYTES", 1)
    for step in (4, 5, 4):  # the second time step 4, no step before it is kept
        result = evaluated(step)
        assert not result.findings
        assert result.failed["mine"].startswith("it needs 3 steps before, of which 1 fit into ")
        kept = [values for values in series._history._kept.values() if values is not None]
        assert len(kept) == 2


def test_a_step_that_cannot_be_read_is_named_and_the_others_are_evaluated(objects: ObjectStore) -> None:
    put(objects, [[1], [1], [2], [2], [2]])
    chosen = only(kind="unchanged", include="*Grad*")
    evaluator = SeriesEvaluator(objects, chosen)
    # As the view has it, for the consolidator would not take in what is damaged.
    generations = {step: {0: str(step)} for step in (0, 1, 2, 3, 4, 9)}
    for name in [name for name in objects.sizes("rank_0/step_1") if name.endswith("labels/c/0/0")]:
        objects.put(f"rank_0/step_1/{name}", b"damaged")
    steps = list(evaluator.evaluate(generations))
    assert [step.step for step in steps if step.result.failed] == [1, 9]
    assert [step.step for step in steps if step.result.findings] == [4]
    assert any("step 1: rule mine" in line for line in ingest.anomalies(DumpStore(objects)).not_evaluated)


# Rules that compare ranks.


NAMES = [f"AllReduce.net_AllReduce-op{i}.output.0" for i in range(4)]


def replicas_with_faults(lacking: str = "") -> Replicas:
    """Return four ranks of three steps. Rank 0 lacks step 1. In step 2, a tensor of rank 3 is off.

    Args:
        lacking: a tensor that rank 3 does not have in step 2.
    """
    replicas = Replicas()
    for step in range(3):
        for rank in range(4):
            contents = {name: 10 * step + number for number, name in enumerate(NAMES)}
            if (step, rank) == (2, 3):
                contents[NAMES[1]] = 99
                contents.pop(lacking, None)
            if (step, rank) != (1, 0):
                replicas.put(rank, step, contents)
    return replicas


def test_replicas_that_differ_and_what_a_rank_lacks_are_found() -> None:
    replicas = replicas_with_faults()
    steps = consolidated(replicas.objects, load_rules().enabled)
    told = [(finding.rule, finding.rank, finding.step) for step in steps for finding in step.result.findings]
    assert told == [("missing", 0, 1), ("replicas_diverge", 3, 2)]
    (finding,) = steps[2].result.findings
    assert finding.name == NAMES[1]
    assert finding.reason == "collective output: rank 3 differs from ranks 0-2, by digest"
    (missing,) = steps[1].result.findings
    assert missing.reason == "step missing on rank 0, present on ranks 1-3"
    results = ingest.test_rules(replicas.store).rules
    assert {result.rule: result.findings for result in results if result.findings} == {
        "missing": 1,
        "replicas_diverge": 1,
    }


def test_a_condition_chooses_tensors_and_operators_that_fulfil_it_on_any_rank() -> None:
    replicas = replicas_with_faults(lacking=NAMES[3])

    def told(kind: str, where: str) -> list[str]:
        (result,) = ingest.test_rules(replicas.store, only(kind=kind, where=where)).rules
        assert not result.failed
        return [finding.name for finding in result.first]

    assert told("divergence", "op_type == 'AllReduce' and step == 2") == [NAMES[1]]
    assert told("divergence", "op_name == 'net_AllReduce-op0'") == []
    assert told("missing", "io == 'output'") == ["AllReduce.net_AllReduce-op3"]
    assert told("missing", "slot > 0") == []


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ({}, ["", "AllReduce.net_AllReduce-op3"]),
        ({"op_type": "AllReduce", "io": "output"}, ["AllReduce.net_AllReduce-op3"]),
        ({"include": "*op3.output.0"}, ["AllReduce.net_AllReduce-op3"]),
        ({"include": "AllReduce.net_AllReduce-op3"}, ["AllReduce.net_AllReduce-op3"]),
        ({"exclude": "AllReduce.net_AllReduce-op3"}, [""]),
        ({"exclude": "*op3.output.0"}, [""]),
        ({"exclude_op_type": "All*"}, [""]),
        ({"op_type": "MatMul"}, []),
        ({"io": "input"}, []),
        ({"graph": "another"}, []),
    ],
)
def test_what_is_missing_is_chosen_like_any_tensor(selector: dict[str, str], names: list[str]) -> None:
    replicas = replicas_with_faults(lacking=NAMES[3])
    (result,) = ingest.test_rules(replicas.store, only(kind="missing", **selector)).rules
    assert [finding.name for finding in result.first] == names


def test_replicas_are_compared_though_a_step_before_is_gone() -> None:
    replicas = replicas_with_faults()
    series = SeriesRules(only(kind="divergence"))
    gone = {0: "known", 1: "known", -1: "gone"}
    (finding,) = series.evaluate(Catalog(replicas.objects), 2, gone, "now").result.findings
    assert finding.name == NAMES[1]


def test_ranks_that_cannot_be_compared_are_named_also_in_the_first_step() -> None:
    replicas = Replicas()
    replicas.put(0, 0, {NAMES[0]: 1})
    replicas.put(1, 0, {NAMES[0]: 1}, status="partial")
    series = SeriesRules(only(kind="divergence"))

    def not_evaluated(step: int) -> tuple[str, ...]:
        return series.evaluate(Catalog(replicas.objects), step, {}, "now").not_evaluated

    assert not_evaluated(0) == ("rank 1 step 0: partial",)
    replicas.objects.put("rank_1/step_0/zarr.json", b"{}")
    (reason,) = not_evaluated(0)
    assert reason.startswith("rank 1 step 0: damaged: ")
    assert not_evaluated(7) == ()  # the step is gone


# Rules over several steps and ranks, one step after the other.


def test_each_rank_has_a_history_of_its_own(objects: ObjectStore) -> None:
    put(objects, [[1.0]] * 6 + [[100.0]], rank=0)
    put(objects, [[100.0]] * 7, rank=2)
    steps = consolidated(objects, only(kind="outlier", ratio_gt=10, include="*Grad*"))
    assert [(finding.rank, finding.step) for step in steps for finding in step.result.findings] == [(0, 6)]
    store = DumpStore(objects)
    (finding,) = ingest.anomalies(store, rank=0).findings
    assert store.step(0, 6).tables.label("op_name")[finding.row] == "Gradients_net-op0"
    assert not ingest.anomalies(store, rank=2).findings


def test_a_condition_is_about_the_tensor_as_it_is_in_the_step(objects: ObjectStore) -> None:
    put(objects, [[1.0]] * 6 + [[100.0], [1.0], [300.0]])
    rule = {"kind": "outlier", "ratio_gt": 10}

    def steps(where: str) -> list[int]:
        chosen = only(where=where, **rule)
        result = ingest.test_rules(DumpStore(objects), chosen).rules[0]
        assert not result.failed
        return [step for _, step in result.places]

    assert steps("role == 'gradient'") == [6, 8]
    assert steps("role == 'gradient' and max > 200") == [8]
    assert steps("step < 8 and rank == 0 and io == 'output'") == [6]
    assert steps("role == 'weight'") == []


def test_a_condition_that_cannot_be_evaluated_stops_its_own_rule_alone(objects: ObjectStore) -> None:
    put(objects, [[1.0]] * 6 + [[100.0]])
    good = only(kind="outlier", ratio_gt=10, include="*Grad*").rules[0]
    bad = replace(good, name="bad", where="max + 'x' > 1")
    results = ingest.test_rules(DumpStore(objects), RuleSet((good, bad), "0")).rules
    assert [(result.rule, result.findings, len(result.failed)) for result in results] == [
        ("mine", 1, 0),
        ("bad", 0, 7),
    ]
    assert "only numbers can be added" in results[1].failed[0]


# Kinds of rules over several steps: each by its definition.


def test_unchanged_is_the_same_bytes_in_so_many_steps() -> None:
    values: list[list[float]] = [[1], [2], [2], [2], [2], [3], [2]]
    assert steps_that_fire(values, kind="unchanged", steps=3) == [3, 4]
    assert steps_that_fire(values, kind="unchanged", steps=2) == [2, 3, 4]
    assert steps_that_fire([[1], [1], None, [1], [1], [1]], kind="unchanged") == [5]
    assert steps_that_fire([[1], [1], [1]], kind="unchanged", elements_ge=2) == []


def test_change_is_relative_to_the_step_before() -> None:
    values: list[list[float]] = [[3, 4], [3.3, 4.4], [6, 8], [0, 0], [1, 0]]
    assert steps_that_fire(values, kind="change", ratio_gt=0.11) == [2, 3, 4]
    assert steps_that_fire(values, kind="change", ratio_gt=0.11, before_ge=0.1) == [2, 3]
    assert steps_that_fire([[1], None, [9]], kind="change", ratio_gt=0.1) == []
    history = {"kind": "change", "ratio_gt": 0.1, "times_gt": 5, "least": 2}
    assert steps_that_fire([[1], [1.2], [1.4], [1.6], [1.8], [9]], **history) == [5]
    assert steps_that_fire([[1], [1.2], [9]], **history) == []


def test_drift_is_the_distance_of_two_histograms(made: MadeDump, store: Path) -> None:
    """A tensor that doubles, one whose elements change their places and signs, one that is zero at last."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal(5000).astype("<f4")
    for step in range(4):
        tensors = (values * 2.0 ** (step == 3), rng.permutation(values) * (-1) ** step, values * (step < 3))
        for slot, written in enumerate(tensors):
            made.add(written.astype("<f4"), tensor_name(slot=slot, time=slot), step=step)
    ingest_directly(made.root, store, sketches=True)
    (result,) = backtest(ingest.open_store(store), only(kind="drift", distance_gt=0.5)).rules
    assert not result.failed
    ((finding,), place) = result.first, list(result.places)
    assert (finding.step, finding.name[-1], place) == (3, "0", [(0, 3)])
    assert finding.value == pytest.approx(1, rel=1e-5)
    assert "moved by 1 powers of two" in finding.reason
    assert finding.reason.endswith("bounded: they are known to a factor of two, so by 0 to 2")
    far = only(kind="drift", distance_gt=1.01)
    assert not backtest(ingest.open_store(store), far).rules[0].findings


@given(st.integers(0, 2**32 - 1), st.floats(0.01, 4), st.floats(-9, 9))
def test_the_distance_of_magnitudes_is_within_the_bounds_of_drift(
    seed: int, spread: float, by: float
) -> None:
    rng = np.random.default_rng(seed)
    logs = [rng.normal(0, spread, 64), rng.normal(by, spread, 64)]
    cumulative = [histogram_of(np.exp2(log).astype("<f4")).cumulative() for log in logs]
    distance = np.abs(cumulative[0] - cumulative[1]).sum(dtype=np.float64)
    truth = np.abs(np.sort(logs[0]) - np.sort(logs[1])).mean()
    assert abs(distance - truth) <= 1 + 1e-4


def histogram_of(values: np.ndarray) -> Histogram:
    running = RunningStatistics(with_histogram=True)
    running.update(values)
    return Histogram.of_rows(running.histogram_rows(), running.result())


def test_drift_without_histograms_fails_and_says_so(made: MadeDump, store: Path) -> None:
    made.add(np.ones(3, "<f4"), tensor_name(time=1), step=0)
    ingest_directly(made.root, store)
    (result,) = backtest(ingest.open_store(store), only(kind="drift", distance_gt=1)).rules
    assert "no tensor has a histogram" in result.failed[0]


def test_explosion_is_beyond_ratio_and_spread_of_the_history() -> None:
    steady: list[list[float]] = [[1.0], [1.1], [0.9], [1.05], [0.95], [1.0]]
    rule = {"kind": "outlier", "ratio_gt": 10}
    assert steps_that_fire([*steady, [11.0], [1.0]], **rule) == [6]
    assert steps_that_fire([*steady, [9.0]], **rule) == []
    wild = [[1.0], [50.0], [0.02], [30.0], [0.5], [2.0], [20.0]]
    assert steps_that_fire(wild, **rule) == []
    assert steps_that_fire([[1.0]] * 5 + [[11.0]], **rule) == [5]
    assert steps_that_fire([[1.0]] * 4 + [[11.0]], **rule) == []


def test_collapse_is_the_other_way() -> None:
    steady: list[list[float]] = [[1.0], [1.1], [0.9], [1.05], [0.95], [1.0]]
    rule = {"kind": "outlier", "direction": "below", "ratio_gt": 1000}
    assert steps_that_fire([*steady, [1e-4], [1.0], [0.0]], **rule) == [6, 8]
    assert steps_that_fire([*steady, [0.01], [1e9]], **rule) == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1e-3, 1e3), min_size=5, max_size=16), st.floats(1e-6, 1e6))
def test_the_z_score_is_that_of_its_definition(history: list[float], now: float) -> None:
    rule = only(kind="outlier", ratio_gt=1.0001, z_gt=0, history=16).rules[0]

    def step(norm: float) -> StepValues:
        values = {"l2_norm": np.array([[norm]]), "count": np.ones((1, 1))}
        return StepValues(0, (0,), np.zeros((1, 1), np.int32), values, np.zeros((1, 1, 16), "u1"))

    key = TensorKey("", "", "Gradient", "x", "output", 0)
    window = StepWindow(step(now), [step(norm) for norm in history], [key])
    with np.errstate(all="ignore"):
        (hits,) = KINDS["outlier"].evaluate(rule, window)
    logs = np.log2(history)
    median = np.median(logs)
    spread = np.median(np.abs(logs - median))
    assert hits.values[0, 0] == pytest.approx(now / 2**median)
    off = math.log2(now) - median
    z = 0.6745 * off / spread if spread else math.copysign(math.inf, off) if off else math.nan
    described = float(hits.describe(0, 0).rpartition(" ")[2])
    assert described == pytest.approx(z, rel=1e-2, nan_ok=True)
    assert bool(hits.mask[0, 0]) == (hits.values[0, 0] > 1.0001 and z > 0)


# A severity that nothing has is refused at once, wherever somebody chooses by it.


@pytest.mark.parametrize(
    "ask",
    [
        lambda url: ingest.wait(url, severity="crit"),
        lambda url: ingest.should_stop(url, severity="crit"),
        lambda _: ingest.anomalies(Replicas().store, severity="crit"),
        lambda _: ingest.incidents(Replicas().store, severity=""),
    ],
)
def test_a_mistake_is_told_at_once(ask: Callable[[str], object], tmp_path: Path) -> None:
    """Even before the store exists; otherwise a job would never be told to stop."""
    with pytest.raises(UsageError, match="is not a severity") as told:
        ask(str(tmp_path / "later.zarr"))
    assert "info, warning, critical" in told.value.hint


# What rules find stands in the store next to the step.


@pytest.mark.parametrize("name", ["lenet-4rank", "tinybert-2rank", "dtypes-1rank", "longnames-1rank"])
def test_a_healthy_dump_fires_nothing(name: str, dumps: DumpLibrary, tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    root = dumps[name]
    ingest_directly(root / "dump" if (root / "dump").is_dir() else root, store, rules=RULES)
    ingest.consolidate(store)
    listed = ingest.anomalies(ingest.open_store(str(store)))
    assert not listed.findings
    assert not listed.not_evaluated


def test_rules_change_no_fingerprint_and_no_key_of_other_objects(dumps: DumpLibrary, tmp_path: Path) -> None:
    dump = dumps["nan-log-2rank"] / "dump"
    plans = zip(plan_all(dump, tmp_path / "a"), plan_all(dump, tmp_path / "a", rules=RULES), strict=True)
    for without, with_rules in plans:
        assert without.fingerprint == with_rules.fingerprint
        assert replace(with_rules, rules=None) == without


def test_findings_are_plain_zarr_and_nothing_warns(nan: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        root = zarr.open_group(str(nan), mode="r")
        assert sum(1 for _ in root.members(max_depth=None)) > 0
        leaf = zarr.open_group(str(nan / "rank_1/step_2"), mode="r")
        record = leaf.attrs["dump_ingest"]
        assert isinstance(record, dict)
        where = f"{record['fingerprint']}/findings/{record['summary']['rules']}"
        labels = leaf[f"{where}/labels"]
        assert isinstance(labels, zarr.Array)
        assert labels.attrs["fields"] == ["rule", "severity", "graph", "name", "reason"]
        assert labels[0, 0] == "nan"
        series = [root[f"findings/{name}"].attrs["dump_ingest"] for name, _ in root["findings"].groups()]  # type: ignore[union-attr]
        assert len(series) == 3
        rules = leaf[where].attrs["rules"]
        assert isinstance(rules, dict)
        assert rules["nan"]["of"] == ["nan"]


def test_a_broken_rule_never_stops_a_commit(tmp_path: Path) -> None:
    dump, store = MadeDump(tmp_path / "dump"), tmp_path / "run.zarr"
    dump.add(np.array([np.nan, 3], np.float32))
    # As a service of another version might send it.
    broken = Rule("broken", "too_large", "info", Selector(), (("max_gt", 1.0),), where="no_column > 1")
    rules = replace(RULES, rules=(broken, *RULES.rules))
    (summary,) = ingest_directly(dump.root, store, rules=rules)
    assert summary.findings == {"nan": 1}
    assert "no_column" in summary.failed_rules["broken"]
    assert summary.status == "complete"
    listed = ingest.anomalies(ingest.open_store(str(store)))
    assert any("rule broken" in line for line in listed.not_evaluated)


@pytest.mark.parametrize(
    "damaged",
    [
        b'{"attributes": {"dump_ingest": {"findings": 3}}}',
        b"[" * 100_000,
        b"\xff",
        b"",
        None,
    ],
)
def test_a_damaged_document_is_named_and_the_rest_is_listed(damaged: bytes | None) -> None:
    objects = Replicas().objects
    put(objects, [[1], [1], [1], [1]])
    consolidated(objects, only(kind="unchanged", include="*Grad*"))
    (name,) = [name for name in objects.sizes("findings") if name.startswith("2.")]
    written = objects.get(f"findings/{name}") or b""
    endless = re.sub(rb'("totals":\s*\{"[^"]+":\s*)\d+', rb"\g<1>1e999", written)
    assert endless != written
    objects.put(f"findings/{name}", endless if damaged is None else damaged)
    listed = ingest.anomalies(DumpStore(objects))
    assert [finding.step for finding in listed.findings] == [3]
    assert any(name in line for line in listed.not_evaluated)


def test_the_document_of_another_step_or_generation_is_damaged() -> None:
    objects = Replicas().objects
    put(objects, [[1], [1], [1], [1]])
    consolidated(objects, only(kind="unchanged", include="*Grad*"))
    second, third = (
        name for step in "23" for name in objects.sizes("findings") if name.startswith(f"{step}.")
    )
    content = objects.get(f"findings/{third}")
    assert content is not None
    objects.put(f"findings/{second}", content)
    step, _, rest = third.partition(".")
    objects.put(f"findings/{step}.{'0' * 16}{rest[16:]}", content)
    damages: list[str] = []
    assert read_series(objects, None, damages).keys() & {2, 3} == {3}
    assert ["another generation" in damage for damage in damages] == [True, True]
    # What is not known is not deleted for lack of an anomaly.
    assert take_inventory(objects, anomalies=True).anomalous_steps >= {2, 3}
