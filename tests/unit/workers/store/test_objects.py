"""The contract holds for stores as they are opened, and for the wrapper that other tests use."""

import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.object_store_contract import ObjectStoreContract, memory_url
from tests.wrapped_objects import WrappedObjects
from workers import events
from workers.errors import StoreUnavailable
from workers.events import Event
from workers.store import objects
from workers.store.objects import STORE_OPS, ObjectStore, StoreRequested, Uploads
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


class TestWrapped(ObjectStoreContract):
    @pytest.fixture
    def objects(self, tmp_path: Path) -> ObjectStore:
        return WrappedObjects(connect(resolve(tmp_path / "store")))


def test_every_kind_of_request_occurs_and_no_other() -> None:
    seen: list[Event] = []
    store = connect(resolve(f"memory://{uuid.uuid4().hex}"))
    requests: list[Callable[[], object]] = [
        lambda: store.put("a", b""),
        lambda: store.put_many({"b": b""}),
        lambda: store.create("c").close(),
        lambda: store.get("a"),
        lambda: store.get_range("a", 0, 1),
        lambda: store.get_many(["a"]),
        store.children,
        store.sizes,
        store.listed,
        lambda: store.delete("a"),
        lambda: store.delete_many(["b", "c"]),
    ]
    events.subscribe(seen.append)
    try:
        for request in requests:
            request()
    finally:
        events.unsubscribe(seen.append)
    assert len(seen) == len(requests)
    assert {event.op for event in seen if isinstance(event, StoreRequested)} == set(STORE_OPS)


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


def test_the_task_goes_on_while_an_object_is_written(slow: SlowStore) -> None:
    with Uploads(slow) as running:
        running.put("a", b"")
        assert slow.begun.acquire(timeout=10)
        assert slow.get("a") is None
        slow.go.set()
    assert slow.get("a") == b""


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
