"""Requests that do not come to an end are given up."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.wrapped_objects import WrappedObjects
from workers import events
from workers.errors import StoreSilent, StoreUnavailable
from workers.events import Event
from workers.store.backends.local import LocalObjects
from workers.store.backends.wrappers import BoundedObjects, Outage
from workers.store.model import StoreAddress
from workers.store.objects import RequestAbandoned

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
    objects = BoundedObjects(hanging, 0.1, outage)
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


def test_what_is_sent_allows_more_time(tmp_path: Path) -> None:
    objects = BoundedObjects(LocalObjects(StoreAddress(str(tmp_path))), 10.0)
    assert objects._for_sent(0) == 10
    assert objects._for_sent(128 * 2**20) == 138


def test_an_object_in_pieces_hangs_no_longer(tmp_path: Path) -> None:
    with_pieces = BoundedObjects(LocalObjects(StoreAddress(str(tmp_path))), 10.0)
    new = with_pieces.create("a/b")
    new.write(b"12")
    new.write(b"3")
    assert with_pieces.get("a/b") is None
    new.close()
    assert with_pieces.get("a/b") == b"123"
