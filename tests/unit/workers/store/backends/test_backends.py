"""Backends keep the contract of object stores, also while they fail."""

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import formatdate
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.object_store_contract import ObjectStoreContract, memory_url
from tests.stores import MadeDump, plan_all, run
from tests.wrapped_objects import WrappedObjects
from workers import events
from workers.errors import ClockSkewed, StoreDenied, StoreError, StoreSilent, StoreUnavailable, UsageError
from workers.events import Event
from workers.model import MIB
from workers.store.backends import failures, wrappers
from workers.store.backends.failures import Translated, made_progress, seconds_ahead, supervised
from workers.store.backends.local import LocalObjects, NewFile
from workers.store.backends.remote import FsspecObjects, S3Listener, S3Objects, _modified_at
from workers.store.backends.wrappers import BoundedObjects, ObservedObjects, Outage
from workers.store.model import StoreAddress
from workers.store.objects import STORE_OPS, ObjectStore, RequestAbandoned, StoreClockSeen, StoreRequested
from workers.tasks.read_back import ReadBackJob, read_back

# A directory as store: nothing is half written, nothing behind a link is touched, and the disk has it.


def objects_in(directory: Path) -> LocalObjects:
    return LocalObjects(StoreAddress(str(directory)))


class TestContract(ObjectStoreContract):
    @pytest.fixture(params=["directory", "directory [odd] *name?"])
    def objects(self, request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
        return objects_in(tmp_path / request.param)


def test_failed_write_leaves_the_old_object_and_no_debris(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader never sees half of an object, not even after a crash."""
    objects = objects_in(tmp_path)
    objects.put("a", b"old")

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full_disk)
    with pytest.raises(StoreUnavailable, match="No space left"):
        objects.put("a", b"new")
    assert objects.get("a") == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_directory_that_may_not_be_read_is_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read everything, so the refusal is made here."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("os.scandir", refuse)
    with pytest.raises(StoreDenied, match=r"cannot list .*/a: .*Permission denied"):
        objects_in(tmp_path).sizes("a")


class TestFlush:
    def test_the_disk_has_a_step_that_was_read_back(
        self, made: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A power cut loses what is in memory only: the objects, and the names in all directories above them.

        Before a dump is deleted, the disk has what the store has of it.
        """
        made.add(np.arange(40, dtype="<f4"))
        (plan,) = plan_all(made.root, store)
        run(plan)
        files = tuple(dict.fromkeys(entry.source for entry in plan.entries))
        flushed: set[Path] = set()
        fsync = os.fsync

        def record(fd: int) -> None:
            flushed.add(Path(f"/proc/self/fd/{fd}").readlink())
            fsync(fd)

        monkeypatch.setattr(os, "fsync", record)
        read_back(ReadBackJob(plan.key, plan.fingerprint, plan.origin.root, plan.store, files))
        step = store / plan.key.path
        above = {store, store / "zarr.json", store / "rank_0", store / "rank_0" / "zarr.json"}
        assert flushed == {*above, step, *step.rglob("*")}

    def test_a_disk_that_refuses_is_an_error_of_the_store(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        objects = objects_in(tmp_path)
        objects.put("a/b", b"1")
        objects.flush("a/none")

        def refuse(_: int) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(os, "fsync", refuse)
        with pytest.raises(StoreUnavailable, match=r"cannot flush .*/a: .*Input/output error"):
            objects.flush("a")


def test_a_directory_that_others_remove_meanwhile_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pruning removes directories that are empty for a moment."""
    makedirs, calls = os.makedirs, 0

    def raced(path: str, *, exist_ok: bool) -> None:
        nonlocal calls
        calls += 1
        makedirs(path, exist_ok=exist_ok)
        if calls < 3:
            Path(path).rmdir()

    monkeypatch.setattr(os, "makedirs", raced)
    file = NewFile(str(tmp_path / "a" / "b"))
    file.close()
    assert (tmp_path / "a" / "b").exists()
    assert calls == 3


def test_a_disk_that_refuses_twice_leaves_nothing_and_the_first_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Network file systems report ENOSPC for a write, and again when the file is closed."""
    file = NewFile(str(tmp_path / "a"))
    really_close = os.close

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def close(fd: int) -> None:
        really_close(fd)
        refuse()

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", refuse)
        patched.setattr(os, "close", close)
        with pytest.raises(OSError, match="No space left"):
            file.write(b"one")
        file.drop()
    assert list(tmp_path.iterdir()) == []


# File systems of fsspec as store: in memory, and the local one, by the same code.


class TestMemory(ObjectStoreContract):
    @pytest.fixture
    def objects(self) -> Iterator[ObjectStore]:
        with memory_url() as url:
            yield FsspecObjects(StoreAddress(url))


class TestLocal(ObjectStoreContract):
    @pytest.fixture
    def objects(self, tmp_path: Path) -> ObjectStore:
        (tmp_path / "store").mkdir()
        return FsspecObjects(StoreAddress(f"file://{tmp_path}/store", '{"auto_mkdir": true}'))


def test_an_unknown_protocol_is_refused_with_an_example() -> None:
    with pytest.raises(UsageError, match="nonsense") as raised:
        FsspecObjects(StoreAddress("nonsense://somewhere"))
    assert "s3://bucket/prefix" in raised.value.hint


@pytest.mark.parametrize(
    "info",
    [
        {"LastModified": datetime(2026, 1, 2, tzinfo=UTC)},
        {"mtime": datetime(2026, 1, 2, tzinfo=UTC).timestamp()},
        {"updated": "2026-01-02T00:00:00+00:00"},
        {"created": datetime(2026, 1, 2)},  # noqa: DTZ001  (some backends leave the zone out; they mean UTC)
    ],
)
def test_the_time_of_an_object_is_known_in_every_form(info: dict[str, Any]) -> None:
    assert _modified_at(info) == datetime(2026, 1, 2, tzinfo=UTC).timestamp()


class Gateway:
    """Answers requests to delete objects: each time, it refuses those that are named for it."""

    def __init__(self, *refused: list[str], code: str = "SlowDown") -> None:
        self.requests: list[list[str]] = []
        self._refused, self._code = list(refused), code

    def __call__(self, _method: str, *, Bucket: str, Delete: dict[str, Any]) -> dict[str, Any]:  # noqa: N803  (of S3)
        assert Bucket == "bucket"
        keys = [entry["Key"] for entry in Delete["Objects"]]
        self.requests.append(keys)
        refused = self._refused.pop(0) if self._refused else []
        return {"Errors": [{"Key": key, "Code": self._code} for key in refused if key in keys]}


def objects_at(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> S3Objects:
    objects = S3Objects(StoreAddress("s3://bucket/run.zarr"))
    monkeypatch.setattr(objects._fs, "call_s3", gateway, raising=False)
    return objects


def test_a_thousand_objects_are_deleted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway()
    objects_at(gateway, monkeypatch).delete_many([str(number) for number in range(2500)])
    assert [len(keys) for keys in gateway.requests] == [1000, 1000, 500]
    assert gateway.requests[2][-1] == "run.zarr/2499"


def test_objects_that_a_busy_gateway_refuses_are_deleted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(["run.zarr/b", "run.zarr/c"], ["run.zarr/c"])
    objects_at(gateway, monkeypatch).delete_many(["a", "b", "c"])
    assert [len(keys) for keys in gateway.requests] == [3, 2, 1]


@pytest.mark.parametrize(("ahead_s", "least", "most"), [(0, 0, 0), (7200, 7198, 7202), (-600, -602, -598)])
def test_the_date_of_an_answer_tells_how_far_the_clocks_are_apart(
    ahead_s: float, least: float, most: float
) -> None:
    seen = seconds_ahead({"date": formatdate(time.time() - ahead_s, usegmt=True)})
    assert seen is not None
    assert least <= seen <= most


def test_the_clocks_are_compared_now_and_then() -> None:
    heard: list[Event] = []
    events.subscribe(heard.append)
    listener = S3Listener()
    try:
        for _ in range(3):
            listener.receive({"headers": {"date": formatdate(time.time() - 3600, usegmt=True)}})
        listener.receive(None)
    finally:
        events.unsubscribe(heard.append)
    (seen,) = heard
    assert isinstance(seen, StoreClockSeen)
    assert 3598 <= seen.ahead_s <= 3602


class _ClientError(Exception):
    """What botocore raises."""

    def __init__(self, code: str, ahead_s: float) -> None:
        super().__init__(code)
        headers = {"date": formatdate(time.time() - ahead_s, usegmt=True)}
        self.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPHeaders": headers}}


def _raise_as_s3fs(error: _ClientError) -> None:
    with Translated("read", StoreAddress("s3://bucket/run.zarr"), "zarr.json"):
        raise PermissionError("None") from error


@pytest.mark.parametrize("code", ["RequestTimeTooSkewed", "403"])
def test_a_refusal_for_the_time_is_said_with_both_times_and_is_no_question_of_credentials(code: str) -> None:
    with pytest.raises(
        ClockSkewed, match=r"here it is .* UTC, at the store .*: the clock of this host"
    ) as raised:
        _raise_as_s3fs(_ClientError(code, 7200))
    assert "7200 s ahead" in raised.value.message or "7201 s ahead" in raised.value.message
    assert "chronyc" in raised.value.hint
    assert not isinstance(raised.value, StoreDenied)


# Requests that do not come to an end are given up.


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


# Calls are waited for as long as they make progress.

call_within = partial(failures.call_within, late=TimeoutError)


def test_what_makes_progress_is_waited_for() -> None:
    def slow() -> str:
        for _ in range(10):
            time.sleep(0.1)
            made_progress()
        return "done"

    assert call_within(0.9, slow) == "done"


def test_what_stops_half_way_is_not() -> None:
    stop = threading.Event()
    made = []

    def stalls() -> None:
        made_progress()
        made.append(1)
        stop.wait()

    started = time.monotonic()
    with pytest.raises(TimeoutError):
        call_within(0.2, stalls)
    stop.set()
    assert made == [1]
    assert time.monotonic() - started >= 0.2


def test_an_abandoned_call_may_come_to_an_end_after_all() -> None:
    stop, ended = threading.Event(), threading.Event()

    def late() -> None:
        stop.wait()
        ended.set()

    with pytest.raises(TimeoutError):
        call_within(0.05, late)
    assert call_within(60, divmod, 7, 2) == (3, 1)  # others do not wait for it
    stop.set()
    assert ended.wait(60)


def test_supervised_work_that_hangs_in_a_call_is_abandoned_and_ends_with_that_call() -> None:
    goes_on, cleaned_up = threading.Event(), threading.Event()
    made: list[str] = []

    def work() -> None:
        try:
            call_within(0.05, goes_on.wait, late=lambda waited_s: OSError(f"silent for {waited_s:g} s"))
            call_within(60, made.append, "what comes after it")
        finally:
            call_within(60, cleaned_up.set)

    with pytest.raises(OSError, match=r"silent for 0.05 s"):
        supervised(work)
    goes_on.set()
    assert cleaned_up.wait(60)
    assert made == []


# Whatever a backend raises becomes one error of the store, which names the object.


ADDRESS = StoreAddress("s3://bucket/run.zarr")


class NoCredentialsError(Exception):
    """Named as in botocore."""


@pytest.mark.parametrize(
    ("raised", "kind", "text"),
    [
        (FileNotFoundError("x"), StoreUnavailable, "no such bucket or directory"),
        (NotADirectoryError("x"), StoreUnavailable, "no such bucket or directory"),
        (PermissionError("403"), StoreDenied, "PermissionError: 403"),
        (NoCredentialsError("none"), StoreDenied, "NoCredentialsError: none"),
        (
            OSError(errno.EROFS, os.strerror(errno.EROFS), "/x/.a.tmp"),
            StoreUnavailable,
            "Read-only file system",
        ),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), StoreUnavailable, "No space left on device"),
        (PermissionError(errno.EACCES, "Permission denied", "/x/.a.tmp"), StoreDenied, "Permission denied"),
        (
            PermissionError(errno.EACCES, "AccessDenied: no"),
            StoreDenied,
            "PermissionError: [Errno 13] AccessDenied: no",
        ),
        (TimeoutError("late"), StoreUnavailable, "TimeoutError: late"),
        (ValueError("two\nlines"), StoreUnavailable, "ValueError: two lines"),
    ],
)
def test_an_exception_becomes_the_error_that_tells_what_to_do(
    raised: Exception, kind: type[StoreError], text: str
) -> None:
    with pytest.raises(kind) as caught, Translated("read", ADDRESS, "rank_0/zarr.json"):
        raise raised
    assert caught.value.message == f"cannot read s3://bucket/run.zarr/rank_0/zarr.json: {text}"
    assert caught.value.__cause__ is raised
    assert caught.value.hint
