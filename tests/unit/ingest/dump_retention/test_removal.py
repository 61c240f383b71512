"""Unlinking: only what was compared, only as it was, and never outside of the dump."""

import os
import threading
from pathlib import Path

import pytest

from ingest.dump_retention.retention import Proven, Removed, remove, step_directories
from ingest.layouts.detect import find_dump
from tests.dumps import DumpLibrary
from tests.npy_files import MadeDump
from workers.errors import DumpError
from workers.model import SourceFile

STEP = "rank_0/net/3"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A step of three files."""
    step = tmp_path / "dump" / STEP
    step.mkdir(parents=True)
    for name in "abc":
        (step / name).write_text(name)
    return tmp_path / "dump"


def proven(root: Path) -> list[Proven]:
    files = []
    for path in sorted(root.rglob("[abc]")):
        stat = path.stat()
        file = SourceFile(str(path.relative_to(root)), stat.st_size, stat.st_mtime_ns)
        files.append(Proven(file, stat.st_ctime_ns))
    return files


def run(root: Path, files: list[Proven], stop: threading.Event | None = None) -> Removed:
    listed = {member.file.path for member in files}
    return remove(root, files, listed=listed, directories=[STEP], stop=stop or threading.Event())


def test_a_directory_with_anything_left_in_it_stays(root: Path) -> None:
    (root / STEP / "below").mkdir()
    assert run(root, proven(root)).files == 3
    assert (root / STEP / "below").exists()


@pytest.mark.parametrize("what", ["step", "above", "file"])
def test_a_link_in_the_place_of_a_file_or_directory_is_not_followed(root: Path, what: str) -> None:
    """Whoever can write into the dump could else have files deleted that only this process may delete."""
    files = proven(root)
    outside = root.parent / "outside"
    swapped = {"step": root / STEP, "above": root / "rank_0", "file": root / STEP / "b"}[what]
    swapped.rename(outside)
    swapped.symlink_to(outside)
    removed = run(root, files)
    assert removed.changed
    assert removed.files == (2 if what == "file" else 0)
    assert outside.exists()
    assert what == "file" or len(list(outside.rglob("[abc]"))) == 3


def test_what_grew_or_is_no_file_any_more_stays(root: Path) -> None:
    files = proven(root)
    (root / STEP / "a").write_text("longer")
    (root / STEP / "b").unlink()
    os.mkfifo(root / STEP / "b")
    removed = run(root, files)
    assert (removed.files, len(removed.changed)) == (1, 2)
    assert sorted(path.name for path in (root / STEP).iterdir()) == ["a", "b"]


def test_a_file_that_was_not_listed_keeps_all_others(root: Path) -> None:
    files = proven(root)
    (root / STEP / "late").write_text("x")
    removed = run(root, files)
    assert (removed.files, removed.changed) == (0, [f"{STEP}/late"])


def test_hard_links_are_only_unlinked(root: Path) -> None:
    """Of two names in the step, the first unlinked changes the time of the other."""
    os.link(root / STEP / "a", root.parent / "kept")
    (root / STEP / "b").unlink()
    os.link(root / STEP / "a", root / STEP / "b")
    assert run(root, proven(root)).files == 3
    assert (root.parent / "kept").read_text() == "a"


def test_a_path_that_leaves_the_dump_is_refused(root: Path) -> None:
    (root.parent / "a").write_text("x")
    with pytest.raises(DumpError):
        run(root, [Proven(SourceFile("../a", 1, 0), 0)])
    assert (root.parent / "a").exists()


def test_the_directory_of_a_step_above_its_ranks_goes_with_them(dumps: DumpLibrary, made: MadeDump) -> None:
    """`step0/rank1`: it is empty when all of its ranks are. Where the place is the step, there is none."""
    made.add(b"x", step=4)
    (listing,) = find_dump(made.root).scan({}).listings
    assert list(step_directories(listing.places)) == []
    name = "msprobe-26.2.0-pytorch-cpu"
    tree = find_dump(next(path for path in sorted(dumps[name].iterdir()) if path.is_dir()))
    listing = next(step for step in tree.scan({}).listings if step.key.step is not None)
    above = set(step_directories(listing.places))
    assert above
    assert all(directory.rpartition("/")[2].startswith("step") for directory in above)
    assert all((tree.root / directory).is_dir() for directory in above)
