"""Whatever a backend raises becomes one error of the store, which names the object."""

import errno
import os

import pytest

from workers.errors import StoreDenied, StoreError, StoreUnavailable
from workers.store.backends.failures import Translated
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
