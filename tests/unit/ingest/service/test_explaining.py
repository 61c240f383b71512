"""What a watcher would do with each step of a dump: one look, and nothing is written."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingest.dump_retention.policy import RetentionPolicy
from ingest.layouts.detect import find_dump
from ingest.service.offering import ServiceOptions
from ingest.service.one_shot import explain_dump
from ingest.steps.decide import CompletenessPolicy, StepPolicy, StepRow
from ingest.steps.watcher import QuietClock
from ingest.store_gc import apply_gc, plan_gc
from ingest.store_gc.plan import GcPolicy
from tests.npy_files import MadeDump, npy_bytes, tensor_name
from tests.pipeline import ingest_directly
from workers.store.opening import open_objects, resolve

WHOLE = npy_bytes(np.arange(100, dtype="<f4"))


def explained(made: MadeDump, store: Path, **options: Any) -> dict[tuple[int, int | None], StepRow]:
    """Return the rows by rank and step; to them, all of the dump has been quiet for a minute."""
    chosen: dict[str, Any] = {
        "policy": StepPolicy(CompletenessPolicy(10, 1)),
        "quiet_clock": QuietClock(files=lambda _: _newest(made) + 60),
        "host": "test-host",
    } | options
    objects = open_objects(resolve(str(store)))
    rows = explain_dump(find_dump(made.root), objects, ServiceOptions(**chosen))
    return {(row.rank, row.step): row for row in rows}


def _newest(made: MadeDump) -> float:
    return max(path.lstat().st_ctime for path in made.root.rglob("*"))


@pytest.fixture
def filled(made: MadeDump, store: Path) -> MadeDump:
    """A dump of three steps, all in the store."""
    for step in range(3):
        made.add(WHOLE, tensor_name(time=step + 1), step=step)
    ingest_directly(made.root, store)
    return made


def tree(path: Path) -> dict[Path, int]:
    return {below: below.stat().st_mtime_ns for below in path.rglob("*")}


def test_every_step_says_where_it_is_and_neither_dump_nor_store_is_touched(
    filled: MadeDump, store: Path
) -> None:
    filled.add(WHOLE, step=3)
    filled.directory(4)
    short = filled.add(WHOLE[:200], step=5)
    before = tree(store), tree(filled.root)
    rows = explained(filled, store, quiet_clock=QuietClock(files=lambda _: _newest(filled) + 5))
    assert {step: row.phase for (_, step), row in rows.items()} == {
        0: "committed",
        1: "committed",
        2: "committed",
        3: "ready",
        4: "waiting",
        5: "waiting",
    }
    assert (rows[0, 4].waits_for, rows[0, 5].waits_for) == ("files", "time")
    assert (tree(store), tree(filled.root)) == before
    filled.directory(6)
    filled.add(WHOLE, step=6)
    waiting = explained(filled, store, quiet_clock=QuietClock(files=lambda _: _newest(filled) + 5))[0, 5]
    assert (waiting.waits_for, waiting.reason) == (
        "content",
        f"{short.relative_to(filled.root)} is not whole yet",
    )


def test_a_store_that_is_not_there_is_not_made(made: MadeDump, store: Path) -> None:
    made.add(WHOLE, step=0)
    assert explained(made, store)[0, 0].reason == "complete; a watcher takes it now"
    assert not store.exists()


def test_what_gc_removed_and_what_is_kept_although_files_are_gone(filled: MadeDump, store: Path) -> None:
    more = filled.add(WHOLE, tensor_name(slot=1), step=2)
    ingest_directly(filled.root, store)
    assert not apply_gc(store, plan_gc(store, GcPolicy(keep_last=1))).left
    more.unlink()
    rows = explained(filled, store)
    assert [rows[0, step].phase for step in range(3)] == ["removed", "removed", "kept"]
    assert rows[0, 2].reason == "1 of its files are gone from the dump; its commit stays"


def test_why_dump_files_stay_is_told_without_deleting_any(filled: MadeDump, store: Path) -> None:
    filled.add(WHOLE[:200], step=1)
    ingest_directly(filled.root, store)
    rows = explained(filled, store, retention=RetentionPolicy())
    assert {step: row.source for (_, step), row in rows.items()} == {0: "queued", 1: "partial", 2: "newest"}
    assert len(list(filled.root.glob("rank_0/Net/0/*"))) == 3
