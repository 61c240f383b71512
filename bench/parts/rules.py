"""The cost of anomaly rules: ingesting the large profile with the built-in rules and without rules."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from bench.measure import Measure, Ratio, Table, in_turns, seconds, seconds_each, shown
from bench.setting import WORKERS, Setting, ingest, workers
from bench.stages import Stages, ingest_here
from bench.steps import make_tables
from workers.arrays.statistics import FIELDS
from workers.model import StepKey
from workers.rules.schema import load_rules
from workers.rules.step import evaluate
from workers.rules.values import RuleSet

_LARGEST_SHARE = 1.05


def measure(setting: Setting) -> Iterator[Measure | Table]:
    """Yield the ratio of both, and the time to evaluate one step, by the number of its tensors."""
    rules = load_rules().enabled
    with workers() as client:

        def timed(chosen: RuleSet | None) -> float:
            with setting.target(setting.fast) as target:
                return seconds(lambda: ingest(client, setting.load.directory, target, rules=chosen))

        timed(rules)  # warm-up, not measured
        # A ratio of a few hundredths needs more rounds than others.
        rounds = 3 * setting.rounds
        times = in_turns(rounds, {"with": lambda: timed(rules), "without": lambda: timed(None)})
    yield Measure(
        f"ingest with the built-in rules, {WORKERS} workers",
        "without rules",
        "s",
        times["with"],
        times["without"],
        Ratio.SHARE,
        floor=_LARGEST_SHARE,
    )
    alone = in_turns(
        rounds,
        {"with": lambda: _alone(setting, rules), "without": lambda: _alone(setting, None)},
    )
    yield Measure(
        "processor time of it, one process, no Dask",
        "without rules",
        "s",
        alone["with"],
        alone["without"],
        Ratio.SHARE,
        floor=_LARGEST_SHARE,
        note="hardly depends on what else the machine does",
    )
    yield _by_size(rules)


def _alone(setting: Setting, rules: RuleSet | None) -> float:
    with setting.target(setting.fast) as target:
        started = time.process_time()
        ingest_here(setting.load.directory, target, Stages(), rules=rules)
        return time.process_time() - started


def _by_size(rules: RuleSet) -> Table:
    rows = []
    for tensors, anomalous in ((1000, 0), (5000, 0), (100_000, 0), (100_000, 100_000)):
        names = [f"Default_net-Model_layer{i}-Block_MatMul-op{i}" for i in range(tensors)]
        key = StepKey(0, 1)
        tables = make_tables(key, names, range(anomalous))
        # As in healthy tensors: no zeros, nothing vanishing.
        tables.statistics[:, FIELDS.index("l2_norm")] = np.abs(tables.statistic("l2_norm")) + 1
        step_s = seconds_each(lambda tables=tables, key=key: evaluate(rules, tables, key))  # type: ignore[misc]
        rows.append((str(tensors), str(anomalous), shown(step_s * 1000)))
    return Table(
        f"Evaluating {len(rules.step_rules)} rules over the tables of a step",
        ("tensors", "with NaN", "milliseconds"),
        tuple(rows),
    )
