"""Tombstones: one listing tells what was removed, and they cover what is left of it."""

import json
from pathlib import Path

import pytest
import zarr

from workers.model import SourceFile
from workers.store import metadata
from workers.store.commit import Tombstone, ensure_tombstones, read_tombstones, write_tombstone
from workers.store.objects import ObjectStore
from workers.store.opening import connect, resolve

TOMBSTONE = Tombstone(3, 7, "abc-_Z", 1_795_000_000_123)


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    return connect(resolve(tmp_path / "run.zarr"))


def test_the_bytes_of_a_tombstone_are_those_of_earlier_versions(objects: ObjectStore) -> None:
    write_tombstone(objects, TOMBSTONE, removed_at="2026-01-02T03:04:05+00:00", why="older than 30 d")
    assert objects.get("rank_3/removed/7.1795000000123.abc-_Z") == (
        b'{"rank": 3, "step": 7, "fingerprint": "abc-_Z", "committed_ms": 1795000000123, '
        b'"removed_at": "2026-01-02T03:04:05+00:00", "why": "older than 30 d"}'
    )


def test_tombstones_are_read_from_their_names(objects: ObjectStore) -> None:
    again = Tombstone(3, 7, "def", 1_795_000_000_999)
    other = Tombstone(3, 70, "abc", 0)
    for tombstone in (TOMBSTONE, again, other, Tombstone(4, 7, "abc", 5)):
        write_tombstone(objects, tombstone, removed_at="", why="")
    ensure_tombstones(objects, 3)
    assert read_tombstones(objects, 3) == {7: [TOMBSTONE, again], 70: [other]}
    assert read_tombstones(objects, 5) == {}


def test_what_was_removed_is_covered_by_its_name_or_by_its_files() -> None:
    """A file that is younger than the removed commit is another dump of the step."""
    ms = TOMBSTONE.committed_ms
    older, younger = SourceFile("a", 1, (ms - 5) * 10**6), SourceFile("b", 1, (ms + 1) * 10**6)
    assert TOMBSTONE.covers("abc-_Z", [younger])
    assert TOMBSTONE.covers("other", [older])
    assert not TOMBSTONE.covers("other", [older, younger])
    assert not TOMBSTONE.covers("other")


def test_tombstones_are_not_part_of_the_hierarchy(objects: ObjectStore) -> None:
    """Readers of Zarr do not stumble over objects without metadata."""
    objects.put("rank_3/zarr.json", metadata.encode(metadata.group()))
    ensure_tombstones(objects, 3)
    write_tombstone(objects, TOMBSTONE, removed_at="", why="")
    group = zarr.open_group(f"{objects.address.url}/rank_3", mode="r")
    assert list(group["removed"].members()) == []  # type: ignore[union-attr]
    document = objects.get("rank_3/removed/zarr.json")
    assert document is not None
    assert json.loads(document)["consolidated_metadata"]["metadata"] == {}
