"""Whatever a backend raises becomes one error of the store, which names the object."""

import errno
import os

import pytest

from workers.errors import DamagedStore, StoreDenied, StoreError, StoreUnavailable, UsageError
from workers.store.backends.failures import Translated, reason_of
from workers.store.model import StoreAddress

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


@pytest.mark.parametrize("raised", [DamagedStore("wrong"), UsageError("wrong"), KeyboardInterrupt()])
def test_errors_of_ours_and_signals_pass(raised: BaseException) -> None:
    with pytest.raises(type(raised)) as caught, Translated("read", ADDRESS, "a"):
        raise raised
    assert caught.value is raised


def test_a_reason_is_one_bounded_line() -> None:
    assert len(reason_of(OSError("x" * 1000 + "\n"))) == 300


def test_an_endpoint_that_no_attempt_reaches_is_to_be_corrected() -> None:
    with pytest.raises(StoreUnavailable) as caught, Translated("read", ADDRESS, "a"):
        raise ValueError("Invalid endpoint: 127.0.0.1:9000")
    assert "AWS_ENDPOINT_URL" in caught.value.hint


def test_a_store_that_is_out_of_reach_may_be_named_wrongly() -> None:
    with pytest.raises(StoreUnavailable) as caught, Translated("read", ADDRESS, "a"):
        raise OSError("Cannot connect to host 127.0.0.1:1")
    assert "`dump-ingest doctor --store URL` checks the URL" in caught.value.hint
