"""A store at one moment, and the statistics that are kept from one to the next."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ingest
from bench.steps import CountingStore, commit_tables, make_tables
from ingest.page import library as module
from ingest.page.asking import Arguments, matrix_asked
from ingest.page.library import Moment
from workers.model import StepKey
from workers.store import commit
from workers.store.commit import CHANGED
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects, resolve
from workers.store.record import WithoutTensors

NAMES = ("op0", "op1")


def commit_steps(store: Path, *steps: int, seed: int = 0) -> CountingStore:
    """Commit steps of two ranks; return the store, which counts what is asked of it from now on."""
    objects = open_objects(resolve(str(store)))
    for step in steps:
        for rank in range(2):
            commit_tables(objects, StepKey(rank, step), make_tables(StepKey(rank, step), NAMES, seed=seed))
    return CountingStore(objects)


def test_later_reads_what_is_new_and_some_of_the_rest(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_READ_AGAIN", 1)
    objects = commit_steps(store, *range(4))
    moment = Moment.of(ingest.DumpStore(objects))
    objects.requests = 0
    assert moment.later() is moment
    assert objects.requests == 2  # the root, and one commit
    commit_steps(store, 4)
    objects.requests = 0
    later = moment.later()
    assert objects.requests == 4
    assert (later.numbers[-1], later.token == moment.token) == (4, False)
    assert later.store.step(1, 4).catalog is later.store
    assert [opened.key for opened in later.steps[:8]] == [opened.key for opened in moment.steps]


def drop_tensors(objects: CountingStore, moment: Moment) -> None:
    committed = moment.store.step(1, 2).commit
    commit.drop_tensors(objects, committed, WithoutTensors("2026-01-01T00:00:00+00:00", "gc", "old"))


def test_a_change_that_nobody_announced_is_noticed_within_a_round(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may change the store by hand, or with a version that did not announce this."""
    monkeypatch.setattr(module, "_READ_AGAIN", 2)
    objects = commit_steps(store, *range(3))
    moment = Moment.of(ingest.DumpStore(objects))
    drop_tensors(objects, moment)
    objects.delete_many([f"{CHANGED}/{name}" for name in objects.children(CHANGED)])
    assert moment.later() is moment
    assert moment.later() is moment
    later = moment.later()
    assert (later.store.step(1, 2).has_tensors, later.token == moment.token) == (False, False)


def commit_values(objects: ObjectStore, *steps: int, seed: int = 0) -> None:
    for step in steps:
        for rank in range(2):
            key = StepKey(rank, step)
            commit_tables(objects, key, make_tables(key, ["op0", "op1"], seed=seed))


def test_only_new_steps_are_read(store: Path) -> None:
    objects = CountingStore(open_objects(resolve(str(store))))
    commit_values(objects, 0, 1)
    moment = Moment.of(ingest.DumpStore(objects))
    first = matrix_asked(moment, Arguments({"stat": "max"}))
    objects.requests = 0
    closer = matrix_asked(moment, Arguments({"stat": "max", "ranks": "1", "steps": "1"}))
    assert objects.requests == 0
    assert closer.values.tolist() == [[first.values[1, 1]]]
    commit_values(objects, 2)
    commit_values(objects, 1, seed=1)
    later = moment.later()
    second = matrix_asked(later, Arguments({"stat": "max"}))
    assert later.fields is moment.fields
    np.testing.assert_array_equal(second.values[:, 0], first.values[:, 0])
    assert (second.values[:, 1] != first.values[:, 1]).all()
    whole = ingest.heatmap(ingest.open_store(store), "*", "max")
    np.testing.assert_array_equal(second.values, whole.values)
