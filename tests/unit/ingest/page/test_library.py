"""The runs that a page shows, and what the list says of each."""

from __future__ import annotations

import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import ingest
from ingest.page import library as module
from ingest.page.library import Library, Overview
from ingest.page.watchers import Refreshed
from tests.page_server import RunningPage
from workers.errors import DamagedStore, StoreError, UsageError


def test_a_store_that_hangs_keeps_no_other_run_waiting(
    nan_log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many ask for it: API clients wait for its first answer."""
    for name in ("a.zarr", "b.zarr"):
        (tmp_path / name).symlink_to(nan_log)
    go = threading.Event()

    def opened(url: str) -> ingest.DumpStore:
        if url.endswith("a.zarr"):
            go.wait(60)
        return ingest.open_store(url)

    monkeypatch.setattr(module, "open_store", opened)
    with RunningPage(tmp_path) as page, ThreadPoolExecutor(50) as clients:
        answers = [clients.submit(page.get, "/api/v1/runs/a.zarr/steps") for _ in range(50)]
        deadline = time.monotonic() + 60
        while "a.zarr" not in page.library._runs:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert page.get("/api/v1/runs/b.zarr/steps").status == 200
        assert not any(answer.done() for answer in answers)
        go.set()
        assert {answer.result().status for answer in answers} == {200}


def test_runs_beyond_the_longest_list_are_counted_and_open_by_name(
    nan_log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.zarr", "b.zarr", "c.zarr"):
        (tmp_path / name).symlink_to(nan_log)
    (tmp_path / "d").mkdir()
    library = Library(str(tmp_path))
    assert (len(library.names()), library.unlisted) == (3, 0)
    monkeypatch.setattr(module, "MAX_RUNS", 2)
    library = Library(str(tmp_path))
    assert (library.names(), library.unlisted) == (["a.zarr", "b.zarr"], 2)
    assert library.run("c.zarr").moment().numbers == [1, 2, 3]
    for absent in ("d", "..", f"../{tmp_path.name}/c.zarr", "a.zarr/../c.zarr", ""):
        with pytest.raises(UsageError, match="no run"):
            library.run(absent)
    with RunningPage(tmp_path) as page:
        text = page.get("/").text
    assert "2 names after the last of these were not looked at" in text


def test_a_store_that_has_lost_its_root_is_named(nan_log: Path, tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    shutil.copytree(nan_log, store)
    (store / "zarr.json").unlink()
    with pytest.raises(DamagedStore, match=r"its zarr\.json is missing") as raised:
        Library(str(store)).names()
    assert "repair" in (raised.value.hint or "")


def of(store: Path) -> Overview:
    return Overview.of(ingest.open_store(store))


def test_a_run_is_told_by_its_last_step_and_what_is_not_finite_even_without_rules(nan_log: Path) -> None:
    seen = of(nan_log)
    assert (seen.ranks, seen.steps, seen.examined_steps, seen.last_step) == ((0, 1), 3, 3, 3)
    assert (seen.severity, seen.rules, seen.rule_ranks) == ("critical", ("NaN or Inf",), (1,))
    assert seen.rule_steps == (2, 3)
    assert seen.committed_at == max(
        step.commit.record.committed_at for step in ingest.open_store(nan_log).select(step=3)
    )


def test_what_fails_is_read_again_and_the_value_before_stays_if_a_store_is_away() -> None:
    now = [100.0]
    outcomes: list[int | Exception] = [MemoryError(), 1, StoreError("away"), 2]

    def read(_: int | None) -> int:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    value = Refreshed(read, 5, lambda: now[0])
    with pytest.raises(MemoryError):
        value.now()
    seen = []
    for _ in range(3):
        now[0] += 11
        seen.append((value.now(), value.trouble))
    assert seen == [(1, ""), (1, "away"), (2, "")]
