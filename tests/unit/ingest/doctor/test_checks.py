"""Each check answers one question, and says what to do if it fails."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingest.consolidating.lease import VIEW_LEASE
from ingest.doctor import checks
from ingest.doctor.checks import Check, check_clock, run_checks
from ingest.settings import load
from ingest.store_gc.execute import record_run
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from tests.wrapped_objects import WrappedObjects
from workers.errors import ClockSkewed, StoreSilent, StoreUnavailable
from workers.store.opening import open_objects, resolve


def by_name(results: list[Check]) -> dict[str, Check]:
    return {result.check: result for result in results}


def test_a_dump_that_is_not_there_fails_with_a_hint_and_the_rest_is_checked(tmp_path: Path) -> None:
    results = by_name(run_checks(load(store=str(tmp_path / "run.zarr")), tmp_path / "nowhere"))
    assert not results["dump"].ok
    assert results["dump"].hint
    assert not results["store"].ok  # nobody can tell whether the store would lie in the dump


def test_a_store_that_changes_what_is_written_is_not_to_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Changing(WrappedObjects):
        def get(self, key: str) -> bytes | None:
            data = super().get(key)
            return data and data[:-1] + bytes([data[-1] ^ 1])

    monkeypatch.setattr(checks, "open_objects", lambda address: Changing(open_objects(address)))
    store = by_name(run_checks(load(store=str(tmp_path / "run.zarr")), None))["store"]
    assert not store.ok
    assert "did not come back as it was written" in store.detail
    assert "Do not ingest into this store" in store.hint


@pytest.mark.parametrize(
    ("url", "error", "remedy"),
    [
        ("s3://bucket/run.zarr", StoreUnavailable, "AWS_ENDPOINT_URL"),
        ("s3://bucket/run.zarr", StoreSilent, "firewall"),
        ("s3://bucket/run.zarr", ClockSkewed, "clock"),
        ("run.zarr", StoreUnavailable, "mounted read-only"),
    ],
)
def test_a_store_that_does_not_answer_is_to_be_looked_for(
    url: str, error: type[StoreUnavailable], remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Away(WrappedObjects):
        def get(self, key: str) -> bytes | None:
            message = f"cannot read {key}"
            raise error(message)

    monkeypatch.setattr(checks, "open_objects", lambda _: Away(open_objects(resolve(tmp_path))))
    store = by_name(run_checks(load(store=url), None))["store"]
    assert (store.ok, store.detail) == (False, "cannot read zarr.json")
    assert remedy in store.hint


def test_a_store_of_another_dump_is_not_to_be_used(made: MadeDump, store: Path, tmp_path: Path) -> None:
    made.add(np.zeros(3))
    ingest_directly(made.root, store)
    assert by_name(run_checks(load(store=str(store)), made.root))["dump in store"].ok
    other = MadeDump(tmp_path / "other")
    other.add(np.ones(3), step=9)
    results = by_name(run_checks(load(store=str(store)), other.root))
    check = results["dump in store"]
    assert not check.ok
    assert "backlog" not in results  # a step of the same number is another step
    assert str(made.root) in check.detail
    assert f"--continues {made.root}" in check.hint
    told = load(store=str(store), continues=str(made.root))
    assert by_name(run_checks(told, other.root))["dump in store"].ok


def test_directories_that_look_like_ranks_and_are_none_fail(made: MadeDump) -> None:
    made.add(np.zeros(3))
    assert "names" not in by_name(run_checks(load(), made.root))
    made.add(np.zeros(3), rank=4294967296)
    check = by_name(run_checks(load(), made.root))["names"]
    assert not check.ok
    assert "rank_4294967296" in check.detail
    assert "Rename" in check.hint


class TestBrokenStates:
    """Each state that raises an alert is named by one failing check, with the one thing to do."""

    @pytest.fixture
    def store(self, made: MadeDump, tmp_path: Path) -> Path:
        """A store with two ranks of one step, without a consolidated view."""
        for rank in (0, 1):
            made.add(np.ones(3), tensor_name(), rank=rank, step=3)
        ingest_directly(made.root, tmp_path / "run.zarr")
        return tmp_path / "run.zarr"

    def failing(self, made: MadeDump, store: Path, **flags: Any) -> Check:
        results = run_checks(load(store=str(store), **flags), made.root)
        [failed] = [result for result in results if not result.ok]
        assert failed.hint
        return failed

    def test_fewer_ranks_than_expected(self, made: MadeDump, store: Path) -> None:
        failed = self.failing(made, store, expected_ranks=4)
        assert (failed.check, failed.detail) == ("ranks", "2 of 4 ranks, by expected_ranks")
        assert "Ranks 2-3 have no dump here" in failed.hint
        results = by_name(run_checks(load(store=str(store), expected_ranks=0), made.root))
        assert "ranks" not in results

    def test_ranks_by_the_rank_table_are_told(self, made: MadeDump, store: Path) -> None:
        devices = [{"device_id": str(rank), "rank_id": str(rank)} for rank in range(4)]
        (made.root / "hccl.json").write_text(json.dumps({"server_list": [{"device": devices}]}))
        ranks = by_name(run_checks(load(store=str(store)), made.root))["ranks"]
        assert ranks.ok  # the others may be on other hosts
        assert ranks.detail == "2 of 4 ranks, by the rank table"

    def test_steps_that_nobody_takes(self, made: MadeDump, store: Path) -> None:
        path = made.add(np.ones(3), tensor_name(), rank=1, step=4)
        results = by_name(run_checks(load(store=str(store)), made.root))
        assert results["backlog"].ok  # it was written a moment ago
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checks, "MAX_LAG_S", -1.0)
            failed = self.failing(made, store)
        assert failed.check == "backlog"
        assert failed.detail.startswith("1 step (")
        assert "dump-ingest ingest DUMP" in failed.hint
        assert path.exists()

    def test_the_newest_step_of_many_is_not_taken(
        self, made: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However many steps before it are in the store, it is one that nobody takes."""
        monkeypatch.setattr(checks, "_READ", 1)
        monkeypatch.setattr(checks, "MAX_LAG_S", -1.0)
        complete = by_name(run_checks(load(store=str(store)), made.root))["backlog"]
        assert (complete.ok, complete.detail) == (True, "all 2 steps of 2 ranks are in the store")
        made.add(np.ones(3), tensor_name(), rank=1, step=4)
        assert self.failing(made, store).detail.startswith("1 step (")
        (store / "rank_1" / "step_4").mkdir()  # left by a writer that was killed
        assert self.failing(made, store).detail.startswith("1 step (")

    def test_a_consolidator_that_has_died(self, made: MadeDump, store: Path) -> None:
        objects = open_objects(resolve(str(store)))
        view = by_name(run_checks(load(store=str(store)), made.root))["view"]
        assert view.ok
        assert "consolidate STORE --follow" in view.hint
        objects.put(VIEW_LEASE, b'{"owner": "host-9:77:x", "renewed_at": 1000.0}')
        failed = self.failing(made, store)
        assert failed.check == "view"
        assert "step 3 is not in the consolidated view" in failed.detail
        assert "process 77 on host-9" in failed.detail

    def test_a_gc_that_fails(self, made: MadeDump, store: Path) -> None:
        objects = open_objects(resolve(str(store)))
        record_run(objects, "it may not delete")
        failed = self.failing(made, store)
        assert failed.check == "gc"
        assert "failed 0 min ago: it may not delete" in failed.detail
        record_run(objects)
        assert by_name(run_checks(load(store=str(store)), made.root))["gc"].ok

    def test_another_store_than_that_of_the_watchers(self, made: MadeDump, store: Path) -> None:
        other = by_name(run_checks(load(store=f"{store}-2"), made.root))["store"]
        assert other.ok
        assert "compare the setting `store` of all processes" in other.hint

    def test_a_clock_that_is_off(self) -> None:
        assert check_clock(1000.0, 1060.0).ok
        failed = check_clock(1000.0, 400.0)
        assert (failed.ok, failed.detail) == (False, "600 s behind the store's")
        assert "timedatectl" in failed.hint
