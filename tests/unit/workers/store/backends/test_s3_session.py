"""What the answers of S3 tell besides."""

import time
from email.utils import formatdate

import pytest

from workers import events
from workers.errors import ClockSkewed, StoreDenied
from workers.events import Event
from workers.store.backends.failures import Translated, seconds_ahead
from workers.store.backends.remote import S3Listener
from workers.store.model import StoreAddress
from workers.store.objects import StoreClockSeen


@pytest.mark.parametrize(("ahead_s", "least", "most"), [(0, 0, 0), (7200, 7198, 7202), (-600, -602, -598)])
def test_the_date_of_an_answer_tells_how_far_the_clocks_are_apart(
    ahead_s: float, least: float, most: float
) -> None:
    seen = seconds_ahead({"date": formatdate(time.time() - ahead_s, usegmt=True)})
    assert seen is not None
    assert least <= seen <= most


@pytest.mark.parametrize("headers", [{}, {"date": "yesterday"}])
def test_an_answer_need_not_tell_the_time(headers: dict[str, str]) -> None:
    assert seconds_ahead(headers) is None


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


def test_other_refusals_stay_refusals() -> None:
    with pytest.raises(StoreDenied):
        _raise_as_s3fs(_ClientError("403", 0))
    with pytest.raises(StoreDenied):
        _raise_as_s3fs(_ClientError("AccessDenied", 7200))
