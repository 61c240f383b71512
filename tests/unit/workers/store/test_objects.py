"""The contract holds for stores as they are opened, and for the wrapper that other tests use."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.object_store_contract import ObjectStoreContract, memory_url
from tests.wrapped_objects import WrappedObjects
from workers.errors import StoreUnavailable
from workers.store import objects
from workers.store.objects import ObjectStore, Uploads
from workers.store.opening import connect, resolve


class TestOpenedDirectory(ObjectStoreContract):
    @pytest.fixture
    def objects(self, tmp_path: Path) -> ObjectStore:
        return connect(resolve(f"file://{tmp_path}/store"))


class TestOpenedUrl(ObjectStoreContract):
    @pytest.fixture
    def objects(self) -> Iterator[ObjectStore]:
        with memory_url() as url:
            yield connect(resolve(url))


class SlowStore(WrappedObjects):
    """A directory whose writes wait until they are let go; it counts those that wait at once."""

    def __init__(self, root: Path) -> None:
        super().__init__(connect(resolve(str(root))))
        self.go = threading.Event()
        self.begun = threading.Semaphore(0)
        self.at_once = self.most_at_once = self.most_nbytes = self.nbytes = 0
        self.fail = ""
        self._lock = threading.Lock()

    def put(self, key: str, data: bytes | bytearray) -> None:
        with self._lock:
            self.at_once += 1
            self.nbytes += len(data)
            self.most_at_once = max(self.at_once, self.most_at_once)
            self.most_nbytes = max(self.nbytes, self.most_nbytes)
        self.begun.release()
        self.go.wait(10)
        with self._lock:
            self.at_once -= 1
            self.nbytes -= len(data)
        if key == self.fail:
            raise StoreUnavailable(f"cannot write {key}")
        super().put(key, data)


@pytest.fixture
def slow(tmp_path: Path) -> SlowStore:
    return SlowStore(tmp_path)


def fail_after_one(slow: SlowStore) -> None:
    with Uploads(slow) as running:
        running.put("a", b"")
        raise ZeroDivisionError


def test_everything_is_there_when_the_block_has_ended(slow: SlowStore) -> None:
    threading.Timer(0.1, slow.go.set).start()
    with Uploads(slow) as running:
        for number in range(20):
            running.put(f"a/{number}", bytearray([number]))
    assert slow.sizes("a") == {str(number): 1 for number in range(20)}
    assert [slow.get(f"a/{number}") for number in range(20)] == [bytes([number]) for number in range(20)]
    assert slow.most_at_once <= objects.UPLOADS_AT_ONCE


def test_bytes_on_their_way_are_bounded(slow: SlowStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "UPLOADS_NBYTES", 100)
    slow.go.set()
    with Uploads(slow) as running:
        for number, size in enumerate([60, 40, 60, 60, 500, 10, 90]):
            running.put(str(number), bytes(size))
    # The one that is larger than the bound goes alone.
    assert slow.most_nbytes == 500
    assert len(slow.children()) == 7


def test_an_error_of_the_task_goes_first_and_leaves_nothing_running(slow: SlowStore) -> None:
    """A task that is tried again must not race with what it left behind."""
    slow.fail = "a"
    threading.Timer(0.1, slow.go.set).start()
    with pytest.raises(ZeroDivisionError):
        fail_after_one(slow)
    assert slow.at_once == 0
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("dump-ingest-upload")]
