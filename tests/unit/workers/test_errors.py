"""Errors cross process boundaries whole."""

import pickle

import pytest

from workers import errors
from workers.errors import DumpIngestError


def tree(cls: type[DumpIngestError]) -> list[type[DumpIngestError]]:
    return [cls, *(below for sub in cls.__subclasses__() for below in tree(sub))]


@pytest.mark.parametrize("cls", tree(DumpIngestError))
def test_error_survives_pickling(cls: type[DumpIngestError]) -> None:
    """Dask sends what a task raised by pickle; a lost hint or type changes what happens next."""
    found = pickle.loads(pickle.dumps(cls("what happened", hint="what to do")))  # noqa: S301
    assert type(found) is cls
    assert (str(found), found.message, found.hint) == ("what happened", "what happened", "what to do")


def test_permission_errors_are_caught_as_such() -> None:
    assert issubclass(errors.AccessDenied, PermissionError)
    assert issubclass(errors.StoreDenied, PermissionError)


def test_every_reason_is_listed_for_metrics() -> None:
    assert {cls.reason for cls in tree(DumpIngestError) if cls.__module__ == errors.__name__} <= set(
        errors.REASONS
    )
