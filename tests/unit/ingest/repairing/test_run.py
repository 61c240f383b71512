"""Whatever is damaged is named, mended from what is there, and then as it was."""

from pathlib import Path

import pytest

from ingest.api import open_store, repair
from ingest.reader.verifying.verify_view import verify_surroundings
from tests import checker
from tests.damages import DAMAGES
from workers.errors import DamagedStore, UsageError


def damages_of(store: Path) -> list[str]:
    """Return what verifying names; it cannot even open a store without its root."""
    try:
        opened = open_store(store)
    except DamagedStore as exc:
        return [exc.message]
    return [*map(str, opened.verify()), *map(str, verify_surroundings(opened.objects))]


def content(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def is_of_commit_or_view(key: str) -> bool:
    """Return whether an object says when it was written, or may be another one with the same content."""
    return key.startswith("consolidated/") or (key.endswith("zarr.json") and key.count("/") == 2)


@pytest.mark.parametrize("kind", DAMAGES)
def test_every_kind_of_damage_is_named_and_mended(
    kind: str, store: Path, whole: Path, tmp_path: Path
) -> None:
    DAMAGES[kind](store)
    assert damages_of(store)
    damaged = content(store)

    planned = repair(store)

    assert content(store) == damaged  # a dry run
    assert not planned.is_clean
    assert all(outcome.is_whole and outcome.mended for outcome in planned.repairs)
    done = repair(store, apply=True)
    assert done.is_clean, done.to_dict()
    # Copies of commits that are repaired are announced as outdated, which only the plan has to name.
    assert all(outcome.mended in [plan.mended for plan in planned.repairs] for outcome in done.repairs)
    assert damages_of(store) == []
    for step in open_store(store).select():
        step.export(tmp_path / "out")
    assert content(tmp_path / "out") == content(whole / "dump")
    before, after = checker.objects(whole / "run.zarr"), checker.objects(store)
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    assert not {key for key in changed if not is_of_commit_or_view(key)}


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no dump-ingest store"):
        repair(tmp_path)
