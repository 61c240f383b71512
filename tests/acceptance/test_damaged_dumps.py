"""Dumps that are not as they should be: late, repeated, cut short, or no tensors at all."""

import pickle
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import checker
from tests.cli import run, run_here
from tests.servers.cluster import DaskCluster
from tests.stores import npy_header

pytestmark = pytest.mark.dask


@pytest.fixture
def dump(dump_copy: Callable[[str], Path]) -> Path:
    """Three iterations of one rank, which a test may damage."""
    return dump_copy("lenet-1rank") / "dump"


def tensor_files(dump: Path, step: int) -> list[Path]:
    return sorted((dump / f"rank_0/LeNet/0/{step}").glob("*.npy"))


def relative(files: list[Path], dump: Path) -> frozenset[str]:
    return frozenset(str(path.relative_to(dump)) for path in files)


class Trap:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self._marker,)


def assert_partial(dump: Path, store: Path, bad: list[Path], cluster: DaskCluster, back: Path) -> None:
    """Ingest; the bad files are named and kept, everything else is as if they were not there."""
    names = relative(bad, dump)
    done = run("ingest", dump, "--store", store, "--scheduler", cluster.address, "--json", code=4)
    assert f"{len(bad)} files quarantined" in done.stderr
    assert "ls STORE --problems" in done.stderr
    assert {row["step"] for row in done.json if row["status"] == "partial"} == {2}
    assert sum(row["quarantined"] for row in done.json) == len(bad)

    problems = run_here("ls", store, "--problems", "--json").json
    assert {row["source"] for row in problems} == names
    assert {row["kind"] for row in problems} == {"quarantined"}
    assert all(row["problem"] for row in problems)
    table = run_here("ls", store, "--problems").stdout
    assert all(name in table for name in names)

    leaves = checker.check(store, dump, partial=names)
    assert [leaf.status for leaf in leaves if leaf.step == 2] == ["partial"]
    assert run_here("verify", store, "--json").json == []
    run_here("export", store, back)
    for path in dump.rglob("*"):
        if path.is_file():
            assert (back / path.relative_to(dump)).read_bytes() == path.read_bytes()


def test_killed_writer_and_full_disk_leave_a_partial_step(
    dump: Path, cluster: DaskCluster, tmp_path: Path
) -> None:
    """Short files of mode 0644 and empty ones of mode 0400 will not grow any more: they are set aside."""
    files = tensor_files(dump, 2)
    short, cut_in_the_header, empty, no_disk_left = files[3], files[50], files[100], files[101]
    for path in files:
        path.chmod(0o400)
    for path, length in ((short, 130), (cut_in_the_header, 60), (empty, 0)):
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[:length])
    no_disk_left.chmod(0o600)
    no_disk_left.write_bytes(b"")
    no_disk_left.chmod(0o400)

    bad = [short, cut_in_the_header, empty, no_disk_left]
    assert_partial(dump, tmp_path / "run.zarr", bad, cluster, tmp_path / "back")


def test_files_that_lie_are_set_aside_unopened(dump: Path, cluster: DaskCluster, tmp_path: Path) -> None:
    """Pickled objects, headers of impossible sizes and no npy at all: kept as bytes, never loaded."""
    marker = tmp_path / "was-unpickled"
    objects, huge, too_long, no_npy, nonsense = tensor_files(dump, 2)[10:15]
    objects.write_bytes(npy_header("|O", (1,)) + pickle.dumps([Trap(marker)]))
    huge.write_bytes(npy_header("<f4", (2**40, 2**20)) + bytes(64))
    too_long.write_bytes(npy_header("<f4", (4,)) + bytes(17))
    no_npy.write_bytes(b"PK\x03\x04 is the beginning of a zip archive")
    nonsense.write_bytes(npy_header("__import__('os')", (1,)) + bytes(8))

    bad = [objects, huge, too_long, no_npy, nonsense]
    assert_partial(dump, tmp_path / "run.zarr", bad, cluster, tmp_path / "back")
    assert not marker.exists()


def test_unreadable_iteration_is_left_for_later(
    dump: Path, cluster: DaskCluster, unprivileged: tuple[str, ...], tmp_path: Path
) -> None:
    """Files of another user: what may be read is committed, and the rest once it may be."""
    store = tmp_path / "run.zarr"
    directory, file = dump / "rank_0/LeNet/0/1", tensor_files(dump, 2)[0]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (directory, file)}
    ingest = ("ingest", dump, "--store", store, "--scheduler", cluster.address, "--json")
    for path in modes:
        path.chmod(0)

    done = run(*ingest, code=4, prefix=unprivileged)

    assert {row["step"] for row in done.json} == {None, 0}
    assert "permission denied" in done.stderr
    assert "setfacl" in done.stderr
    for path, mode in modes.items():
        path.chmod(mode)
    assert {row["step"] for row in run(*ingest).json} == {1, 2}
    checker.check(store, dump)
