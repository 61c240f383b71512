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
    copy = pickle.loads(pickle.dumps(cls("what happened", hint="what to do")))  # noqa: S301
    assert type(copy) is cls
    assert (str(copy), copy.message, copy.hint) == (
        "what happened\nwhat to do",
        "what happened",
        "what to do",
    )


@pytest.mark.parametrize("cls", [errors.UnreadableFile, errors.PoisonedFile])
def test_the_file_to_blame_survives_pickling(cls: type[errors.FileError]) -> None:
    """By it, the step is planned again without reading that file."""
    copy = pickle.loads(pickle.dumps(cls("what happened", path="rank_0/a.npy")))  # noqa: S301
    assert (type(copy), copy.path, copy.hint) == (cls, "rank_0/a.npy", cls.hint)


def test_other_exceptions_become_errors_that_name_the_step() -> None:
    known = errors.StoreDenied("no")
    assert errors.as_error("rank 0 step 1", known) is known
    assert type(errors.as_error("rank 0 step 1", MemoryError())) is errors.WorkerDied
    other = errors.as_error("rank 0 step 1", ValueError("x" * 1000))
    assert other.message.startswith("rank 0 step 1: ValueError: xxx")
    assert len(other.message) == 500
