"""A dry run says what would be written; the dump is asked once."""

from pathlib import Path

import pytest

from ingest.repairing.work import Mended
from tests.repairs import work_on


@pytest.mark.parametrize("apply", [False, True])
def test_only_a_repair_that_may_writes(lone_store: Path, *, apply: bool) -> None:
    work = work_on(lone_store, apply=apply)
    work.put("rank_0/object", b"content", "the dump")
    assert work.repair.mended == [Mended("rank_0/object", "the dump")]
    assert work.objects.get("rank_0/object") == (b"content" if apply else None)


def test_a_dump_that_is_gone_is_looked_for_once(lone_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = work_on(lone_store)
    (step,) = work.catalog.select(rank=0, step=1)
    assert work.remade(step.commit) is None
    monkeypatch.delattr(type(work.dumps), "remake")
    assert work.remade(step.commit) is None
