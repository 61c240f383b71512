"""Files that the user has named are complete, or not there."""

from pathlib import Path

import numpy as np
import pytest

from ingest.reader.output_file import output_file
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly
from workers.errors import StoreDenied, UsageError


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_bytes(b"old")
    with output_file(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("error", [StoreDenied("no"), KeyboardInterrupt()])
def test_after_an_error_the_older_file_is_there_and_nothing_else(
    error: BaseException, tmp_path: Path
) -> None:
    """Errors of the store keep their class, although some are errors of the operating system, too."""
    path = tmp_path / "page.html"
    path.write_bytes(b"old")

    def write_and_fail() -> None:
        with output_file(path) as file:
            file.write(b"new")
            raise error

    with pytest.raises(type(error)):
        write_and_fail()
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == {"page.html": b"old"}


def test_a_file_in_a_store_is_refused(store: Path, made: MadeDump) -> None:
    """`gc` would delete it; and it could replace the root of the store."""
    made.add(np.ones(3))
    ingest_directly(made.root, store)
    root = (store / "zarr.json").read_bytes()
    for path in (store / "zarr.json", store / "rank_0/report.html"):
        with pytest.raises(UsageError, match=f"{path} would lie in the store {store}"), output_file(path):
            pass
    assert (store / "zarr.json").read_bytes() == root
