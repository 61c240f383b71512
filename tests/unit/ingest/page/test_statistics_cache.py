"""Statistics over ranks and steps that are kept."""

from pathlib import Path

import numpy as np
import pytest

import ingest
from bench.steps import CountingStore, commit_tables, make_tables
from ingest.page import statistics_cache as module
from ingest.page.arguments import Arguments
from ingest.page.cells import matrix_asked
from ingest.page.moment import Moment
from ingest.page.statistics_cache import StatisticsCache
from workers.model import StepKey
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects, resolve


def commit_steps(objects: ObjectStore, *steps: int, seed: int = 0) -> None:
    for step in steps:
        for rank in range(2):
            key = StepKey(rank, step)
            commit_tables(objects, key, make_tables(key, ["op0", "op1"], seed=seed))


def test_only_new_steps_are_read(store: Path) -> None:
    objects = CountingStore(open_objects(resolve(str(store))))
    commit_steps(objects, 0, 1)
    moment = Moment.of(ingest.DumpStore(objects))
    first = matrix_asked(moment, Arguments({"stat": "max"}))
    objects.requests = 0
    closer = matrix_asked(moment, Arguments({"stat": "max", "ranks": "1", "steps": "1"}))
    assert objects.requests == 0
    assert closer.values.tolist() == [[first.values[1, 1]]]
    commit_steps(objects, 2)
    commit_steps(objects, 1, seed=1)
    later = moment.later()
    second = matrix_asked(later, Arguments({"stat": "max"}))
    assert later.fields is moment.fields
    np.testing.assert_array_equal(second.values[:, 0], first.values[:, 0])
    assert (second.values[:, 1] != first.values[:, 1]).all()
    whole = ingest.heatmap(ingest.open_store(store), "*", "max")
    np.testing.assert_array_equal(second.values, whole.values)


def test_what_was_not_asked_for_the_longest_is_dropped(
    nan_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields, moment = StatisticsCache(), Moment.of(ingest.open_store(nan_log))
    fields.of(moment.snapshot, moment.generations, "Log.*", "max")
    monkeypatch.setattr(module, "_MOST_NBYTES", 2 * fields._nbytes() + 1)
    for name in ("min", "max", "mean"):
        fields.of(moment.snapshot, moment.generations, "Log.*", name)
    assert [name for _, name in fields._by_key] == ["max", "mean"]


def test_many_long_patterns_are_bounded_too(nan_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_NBYTES", 20_000)
    fields, moment = StatisticsCache(), Moment.of(ingest.open_store(nan_log))
    for number in range(10):
        fields.of(moment.snapshot, moment.generations, "*" * (4000 + number), "max")
    assert 1 <= len(fields._by_key) <= 4


def test_names_that_nothing_has_are_an_error(nan_log: Path) -> None:
    moment = Moment.of(ingest.open_store(nan_log))
    with pytest.raises(ingest.UsageError, match="no tensor"):
        moment.fields.of(moment.snapshot, moment.generations, "absent", "max")
