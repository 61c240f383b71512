"""Files that no store has are named, some of them."""

import pytest

from ingest.steps.difference import FilesNotTaken
from workers.errors import UsageError
from workers.model import StepKey


@pytest.mark.parametrize(
    ("count", "text"), [(1, "1 file is in the dump"), (20, "20 files are in the dump"), (21, " and 1 more")]
)
def test_the_error_names_up_to_twenty_files_and_has_all(count: int, text: str) -> None:
    files = [f"a{number}.npy" for number in range(count)]
    error = FilesNotTaken.of(StepKey(3, 7), files, gone=2)
    assert isinstance(error, UsageError)
    assert error.message.startswith("rank 3 step 7: ")
    assert text in error.message
    assert "2 of its files are gone" in error.message
    assert ("a20.npy" in error.message) is False
    assert error.files == tuple(files)
    assert "--replace" in error.hint
