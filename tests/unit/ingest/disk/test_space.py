"""The space of a file system, as programs without privileges have it."""

import os
import shutil
from pathlib import Path

from ingest.disk.space import DiskSpace, space_at


def test_space_is_that_of_the_file_system_of_the_path(tmp_path: Path) -> None:
    space = space_at(tmp_path)
    assert space is not None
    usage = shutil.disk_usage(tmp_path)
    assert space.nbytes == usage.total
    # Others may write meanwhile.
    assert abs(space.free_nbytes - usage.free) < max(usage.total * 0.01, 2**28)
    assert (space.free_inodes, space.inodes) <= (space.inodes, os.statvfs(tmp_path).f_files)


def test_path_that_does_not_exist_has_no_space(tmp_path: Path) -> None:
    assert space_at(tmp_path / "gone") is None


def test_space_is_a_value() -> None:
    """Two looks at an unchanged disk are equal."""
    assert DiskSpace(1, 2, 3, 4) == DiskSpace(1, 2, 3, 4)
