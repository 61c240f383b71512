"""Each check answers one question, and says what to do if it fails."""

from pathlib import Path

import numpy as np
import pytest

from ingest.doctor import checks
from ingest.doctor.checks import Check, run_checks
from ingest.settings import load
from tests import checker
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from tests.wrapped_objects import WrappedObjects
from workers.store.opening import open_objects


def by_name(results: list[Check]) -> dict[str, Check]:
    return {result.check: result for result in results}


def test_without_dump_store_and_scheduler_only_the_software_is_checked() -> None:
    results = run_checks(load(), None)
    assert [result.check for result in results] == ["software", "identity", "settings"]
    assert all(result.ok for result in results)


def test_a_dump_is_counted_and_the_store_left_as_it_was(made: MadeDump, tmp_path: Path) -> None:
    for rank in (0, 1):
        for step in (3, 4, 5):
            made.add(np.ones(3), tensor_name(), rank=rank, step=step)
    store = tmp_path / "run.zarr"
    results = by_name(run_checks(load(store=str(store)), made.root))
    assert "2 ranks, 6 steps" in results["dump"].detail
    assert results["store"].detail == f"{store}: writable, no store there yet"
    assert checker.objects(store) == {}


def test_a_variable_that_is_no_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUMP_INGEST_QUIET", "3")
    settings = by_name(run_checks(load(), None))["settings"]
    assert (settings.ok, settings.detail) == (
        False,
        "environment variables that are not settings: DUMP_INGEST_QUIET",
    )
    assert "config schema" in settings.hint


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
            return data and data[:-1] + b"?"

    monkeypatch.setattr(checks, "open_objects", lambda address: Changing(open_objects(address)))
    store = by_name(run_checks(load(store=str(tmp_path / "run.zarr")), None))["store"]
    assert not store.ok
    assert "did not come back as it was written" in store.detail
    assert "Do not ingest into this store" in store.hint


def test_a_store_of_another_dump_is_not_to_be_used(made: MadeDump, store: Path, tmp_path: Path) -> None:
    made.add(np.zeros(3))
    ingest_directly(made.root, store)
    assert by_name(run_checks(load(store=str(store)), made.root))["dump in store"].ok
    other = MadeDump(tmp_path / "other")
    other.add(np.ones(3), step=9)
    check = by_name(run_checks(load(store=str(store)), other.root))["dump in store"]
    assert not check.ok
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
