"""The kinds of requests that metrics count are those that a store can be asked."""

import uuid
from collections.abc import Callable

from workers import events
from workers.events import Event
from workers.store.objects import STORE_OPS, StoreRequested
from workers.store.opening import connect, resolve


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
