"""Keys of steps sort and name their places; small pickles come back."""

import pickle

import pytest

from workers.model import SourceFile, StepKey


@pytest.mark.parametrize(
    ("key", "path", "text"),
    [
        (StepKey(3, 70), "rank_3/step_70", "rank 3 step 70"),
        (StepKey(0, 0), "rank_0/step_0", "rank 0 step 0"),
        (StepKey(12, None), "rank_12/run", "rank 12 run files"),
    ],
)
def test_a_key_names_its_place_and_itself(key: StepKey, path: str, text: str) -> None:
    assert (key.path, str(key)) == (path, text)


def test_keys_are_ordered_by_step_and_run_files_come_first() -> None:
    keys = [StepKey(1, 10), StepKey(0, 10), StepKey(1, None), StepKey(1, 9), StepKey(0, 0)]
    ordered = sorted(keys, key=lambda key: key.order)
    assert ordered == [StepKey(1, None), StepKey(0, 0), StepKey(1, 9), StepKey(0, 10), StepKey(1, 10)]


def test_a_file_is_pickled_by_position() -> None:
    file = SourceFile("rank_0/a.npy", 128, 1_700_000_000_000_000_000, writable=False)
    data = pickle.dumps(file)
    assert b"mtime_ns" not in data
    copy = pickle.loads(data)  # noqa: S301
    assert (copy, copy.writable) == (file, False)


def test_files_are_the_same_whether_or_not_they_may_be_written() -> None:
    """MindSpore takes the permission away when it has closed a file, without changing it."""
    assert SourceFile("a", 1, 2, writable=True) == SourceFile("a", 1, 2, writable=False)
    assert SourceFile("a", 1, 2) != SourceFile("a", 1, 3)
