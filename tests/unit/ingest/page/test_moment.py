"""A store at one moment, and the statistics that are kept from one to the next."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ingest
from bench.steps import CountingStore, commit_tables, make_tables
from ingest.page import moment as module
from ingest.page.asking import Arguments, matrix_asked
from ingest.page.moment import Moment, StatisticsCache
from ingest.reader.dump_store import open_store
from workers.model import StepKey
from workers.store import commit
from workers.store.announcements import CHANGED
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


def test_the_mesh_that_the_user_gave_counts(nan_log: Path) -> None:
    moment = Moment.of(open_store(nan_log, mesh="tp=1,dp=2"))
    assert [opened.key.rank for opened in moment.store.select("dp=1", 2)] == [1]
    assert moment.later().store.coordinates(1)[1] == {"tp": (0, 1), "dp": (1, 2)}


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


def test_a_commit_that_took_the_place_of_another_is_seen_at_once(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_READ_AGAIN", 1)
    objects = commit_steps(store, *range(4))
    moment = Moment.of(ingest.DumpStore(objects))
    commit_steps(store, 2, seed=1)
    later = moment.later()
    assert later.token != moment.token
    before, now = (at.store.step(0, 2).fingerprint for at in (moment, later))
    assert now != before
    objects.requests = 0
    assert later.later() is later
    assert objects.requests == 2  # the announcement does not make it read it again


def drop_tensors(objects: CountingStore, moment: Moment) -> None:
    committed = moment.store.step(1, 2).commit
    commit.drop_tensors(objects, committed, WithoutTensors("2026-01-01T00:00:00+00:00", "gc", "old"))


def test_tensors_that_gc_removes_are_missed_at_once(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_READ_AGAIN", 1)
    objects = commit_steps(store, *range(3))
    moment = Moment.of(ingest.DumpStore(objects))
    drop_tensors(objects, moment)
    later = moment.later()
    assert (later.store.step(1, 2).has_tensors, later.token == moment.token) == (False, False)
    assert later.later() is later


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


def test_the_token_of_a_store_is_that_of_its_moment(nan_log: Path) -> None:
    assert module.token(open_store(nan_log)) == Moment.of(open_store(nan_log)).token


def test_what_the_consolidator_finds_is_news(store: Path) -> None:
    objects = commit_steps(store, 0)
    moment = Moment.of(ingest.DumpStore(objects))
    objects.put("findings/0.made.rules/zarr.json", b"{}")
    assert moment.later().token != moment.token


def test_incidents_are_searched_for_once(nan_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moment = Moment.of(open_store(nan_log))
    moment.prepare(None)
    monkeypatch.setattr(module, "take_snapshot", None)
    assert [incident.rank for incident in moment.incidents().incidents] == [1]
    assert moment.incidents(step=1).incidents == ()
    with pytest.raises(ingest.UsageError):
        moment.incidents(rank=9)


def test_steps_that_are_gone_are_forgotten(store: Path) -> None:
    objects = commit_steps(store, 0, 1)
    moment = Moment.of(ingest.DumpStore(objects))
    (store / "rank_1" / "step_1").rename(store.parent / "gone")
    later = moment.later()
    assert [str(opened.key) for opened in later.steps] == ["rank 0 step 0", "rank 1 step 0", "rank 0 step 1"]
    with pytest.raises(ingest.UsageError, match="not in the store"):
        later.opened(1, 1)


def test_indexes_that_nobody_asked_for_are_let_go(nan_log: Path) -> None:
    moment = Moment.of(open_store(nan_log))
    asked, other = moment.opened(0, 2), moment.store.step(1, 2)
    _ = asked.tables, other.tables
    moment.let_go()
    assert (asked._tables is None, other._tables is None) == (False, True)


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
