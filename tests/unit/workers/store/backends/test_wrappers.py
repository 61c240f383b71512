"""Requests that do not come to an end are given up."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.wrapped_objects import WrappedObjects
from workers import events
from workers.errors import StoreDenied, StoreSilent, StoreUnavailable
from workers.events import Event
from workers.model import MIB
from workers.store.backends import wrappers
from workers.store.backends.local import LocalObjects
from workers.store.backends.remote import FsspecObjects
from workers.store.backends.wrappers import BoundedObjects, ObservedObjects, Outage
from workers.store.model import StoreAddress
from workers.store.objects import STORE_OPS, RequestAbandoned, StoreRequested

pytestmark = pytest.mark.timeout(60)


class Hanging(WrappedObjects):
    """Does not answer before it is told to."""

    def __init__(self, directory: Path) -> None:
        super().__init__(LocalObjects(StoreAddress(str(directory))))
        self.goes_on = threading.Event()
        self.asked = 0

    def get(self, key: str) -> bytes | None:
        self.asked += 1
        self.goes_on.wait()
        return super().get(key)


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Hanging]:
    hanging = Hanging(tmp_path)
    yield hanging
    hanging.goes_on.set()


def test_a_request_without_an_answer_is_given_up_and_counted(hanging: Hanging, tmp_path: Path) -> None:
    heard: list[Event] = []
    events.subscribe(heard.append)
    try:
        with pytest.raises(StoreSilent, match=f"cannot read {tmp_path}/a: no answer for") as raised:
            BoundedObjects(hanging, 0.1).get("a")
    finally:
        events.unsubscribe(heard.append)
    assert isinstance(raised.value, StoreUnavailable)
    assert "store_timeout_s" in raised.value.hint
    assert [type(event) for event in heard] == [RequestAbandoned]


def test_nothing_is_asked_of_a_store_that_is_away(hanging: Hanging) -> None:
    """So who must not wait waits once, however much there is to ask."""
    outage = Outage()
    objects = BoundedObjects(hanging, 0.5, outage)
    for _ in range(3):
        with pytest.raises(StoreSilent):
            objects.get("a")
    assert hanging.asked == 1
    with pytest.raises(StoreSilent, match="it is still silent"):
        objects.put("a", b"1")
    hanging.goes_on.set()
    outage.end()
    objects.put("a", b"1")
    assert objects.get("a") == b"1"
    assert outage.error is None


def test_what_is_sent_allows_more_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed: list[float] = []

    def call(allowed_s: float, action: Callable[[], Any], **_: object) -> Any:
        allowed.append(allowed_s)
        return action()

    monkeypatch.setattr(wrappers, "call_within", call)
    objects = BoundedObjects(LocalObjects(StoreAddress(str(tmp_path))), 10.0)
    objects.put("a", b"")
    objects.put("b", bytes(3 * MIB))
    with_pieces = objects.create("c")
    with_pieces.write(bytes(MIB))
    with_pieces.close()
    assert allowed == [10, 13, 10, 11, 11]


@pytest.fixture
def requests() -> Iterator[list[StoreRequested]]:
    seen: list[StoreRequested] = []

    def record(event: object) -> None:
        if isinstance(event, StoreRequested):
            seen.append(event)

    events.subscribe(record)
    yield seen
    events.unsubscribe(record)


def directory(tmp_path: Path) -> ObservedObjects:
    return ObservedObjects(LocalObjects(StoreAddress(str(tmp_path))))


def test_every_request_is_one_event(tmp_path: Path, requests: list[StoreRequested]) -> None:
    store = directory(tmp_path)
    calls: list[tuple[str, Callable[[], object]]] = [
        ("put", lambda: store.put("a/b", b"12345")),
        ("get", lambda: store.get("a/b")),
        ("get", lambda: store.get("a/none")),
        ("get", lambda: store.get_range("a/b", 1, 2)),
        ("get_many", lambda: store.get_many(["a/b", "a/none"])),
        ("list", lambda: store.children("a")),
        ("list", store.sizes),
        ("list", store.listed),
        ("delete", lambda: store.delete("a/b")),
        ("delete", lambda: store.delete_many(["a/b", "a/c"])),
    ]
    for op, call in calls:
        requests.clear()
        call()
        assert [(request.op, request.error) for request in requests] == [(op, None)]
        assert requests[0].seconds > 0
    assert {op for op, _ in calls} | {"put_many"} == set(STORE_OPS)


class Failing(WrappedObjects):
    """Raises an error in place of everything."""

    error: Exception = StoreUnavailable("away")

    def get(self, key: str) -> bytes | None:  # noqa: ARG002
        raise self.error

    def put_many(self, objects: object) -> None:  # noqa: ARG002
        raise self.error


def test_a_failure_is_told_with_its_error_and_raised(requests: list[StoreRequested]) -> None:
    failing = Failing(FsspecObjects(StoreAddress("memory://x")))
    failing.error = StoreDenied("no")
    store = ObservedObjects(failing)
    with pytest.raises(StoreDenied):
        store.get("a")
    with pytest.raises(StoreDenied):
        store.put_many({})
    assert [(request.op, request.error) for request in requests] == [
        ("get", failing.error),
        ("put_many", failing.error),
    ]


def test_pieces_that_cannot_be_written_are_a_failed_request(
    tmp_path: Path, requests: list[StoreRequested]
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreUnavailable):
        directory(tmp_path).create("file/below")
    assert [type(request.error) for request in requests] == [StoreUnavailable]
