"""Objects in pieces: nothing of them is there before they are closed, and nothing after an error."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from workers import events
from workers.errors import StoreError, StoreUnavailable
from workers.store.events import StoreRequested
from workers.store.model import ArraySpec
from workers.store.opening import connect, resolve
from workers.store.shards import ShardPacker
from workers.store.uploads import Uploads


def test_file_has_its_name_when_it_is_closed(tmp_path: Path) -> None:
    objects = connect(resolve(str(tmp_path)))
    objects.put("a/b", b"before")
    new = objects.create("a/b")
    new.write(b"one ")
    new.write(bytearray(b"two"))
    assert objects.get("a/b") == b"before"
    new.close()
    new.drop()
    assert objects.get("a/b") == b"one two"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


def test_dropped_file_leaves_nothing(tmp_path: Path) -> None:
    new = connect(resolve(str(tmp_path))).create("a/b")
    new.write(b"one")
    new.drop()
    assert list((tmp_path / "a").iterdir()) == []


def test_object_elsewhere_is_there_when_it_is_closed() -> None:
    objects = connect(resolve("memory://test-pieces"))
    for begin in (objects.create, None):
        with Uploads(objects) as uploads:
            new = (begin or uploads.create)("a")
            new.write(b"one ")
            assert objects.get("a") is None
            new.write(b"two")
            new.close()
        assert objects.get("a") == b"one two"
        objects.delete("a")


@pytest.fixture
def requests() -> Iterator[list[StoreRequested]]:
    seen: list[StoreRequested] = []

    def note(event: object) -> None:
        if isinstance(event, StoreRequested):
            seen.append(event)

    events.subscribe(note)
    yield seen
    events.unsubscribe(note)


def test_all_pieces_are_one_request(tmp_path: Path, requests: list[StoreRequested]) -> None:
    new = connect(resolve(str(tmp_path))).create("a")
    for _ in range(3):
        new.write(b"piece")
    new.close()
    assert [(one.op, one.error) for one in requests] == [("put", None)]


def test_full_disk_is_an_error_that_names_the_object(
    tmp_path: Path, requests: list[StoreRequested], monkeypatch: pytest.MonkeyPatch
) -> None:
    new = connect(resolve(str(tmp_path))).create("a/b")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StoreUnavailable, match=r"cannot write .*/a/b: .*No space left"):
        new.write(b"piece")
    new.drop()
    assert [type(one.error) for one in requests] == [StoreUnavailable]
    assert list((tmp_path / "a").iterdir()) == []


def test_error_within_a_shard_leaves_nothing_of_it(tmp_path: Path) -> None:
    objects = connect(resolve(str(tmp_path)))
    spec = ArraySpec("tensors/uint8", "uint8", 1, big_endian=False, chunk=8, chunks_per_shard=2)

    def pack() -> None:
        with ShardPacker(spec, 0, lambda shard: objects.create(f"c/{shard}")) as packer:
            packer.append(memoryview(bytes(24)))
            raise StoreError("an error of somebody else")

    with pytest.raises(StoreError):
        pack()
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["0"]


def test_a_disk_that_refuses_twice_leaves_nothing_and_the_first_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Network file systems say ENOSPC of a write, and again when the file is closed."""
    new = connect(resolve(str(tmp_path))).create("a/b")
    really_close = os.close

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def close(fd: int) -> None:
        really_close(fd)
        refuse()

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", refuse)
        patched.setattr(os, "close", close)
        with pytest.raises(StoreUnavailable, match="No space left"):
            new.write(b"one")
        new.drop()
    assert list((tmp_path / "a").iterdir()) == []
