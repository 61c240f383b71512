"""Dumps that are deleted after their commit come back out of the store, byte for byte."""

from pathlib import Path

import pytest

from ingest import open_store
from tests.cli import run
from tests.servers.cluster import DaskCluster
from tests.services import Run
from tests.stores import DumpLibrary, unpack

#: One of each family of layouts, and of each container.
DUMPS = (
    "longnames-1rank/dump",
    "nan-sqrt-2rank/dump",
    "mindspore-2.7.1-cpu-sync/types",
    "msprobe-26.2.0-pytorch-cpu/crc",
    "msprobe-26.2.0-mindspore-cpu",
    "cann-bin-synthetic/tf",
    "cann-bin-synthetic/torchair",
    "synthetic-text/torchair-eager",
)


def files_below(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


@pytest.mark.parametrize("name", DUMPS)
def test_what_is_deleted_comes_back_byte_for_byte(name: str, tmp_path: Path) -> None:
    archive, _, below = name.partition("/")
    dump, store, back = unpack(archive, tmp_path) / below, tmp_path / "run.zarr", tmp_path / "back"
    before = files_below(dump)
    report = Run(dump, store).ingest()
    left = files_below(dump)
    assert sum(deletion.files for deletion in report.deleted) == len(before) - len(left)
    for step in open_store(store).select():
        step.export(back)
    assert files_below(back) == before
    again = Run(dump, store).ingest()
    assert (again.commits, again.deleted, files_below(dump)) == ([], [], left)


@pytest.mark.dask
def test_ingest_says_what_it_deleted_and_why_the_rest_stays(
    dumps: DumpLibrary, cluster: DaskCluster, tmp_path: Path
) -> None:
    dump, store = unpack("nan-sqrt-2rank", tmp_path) / "dump", tmp_path / "run.zarr"
    args = ("ingest", dump, "--store", store, "--scheduler", cluster.address, "--after-commit", "delete")
    said = run(*args, "--keep-anomalous").stderr
    assert "Deleted 482 dump files (170.2 KiB) of 2 steps; the store has every byte." in said
    assert "stays: 482 files of 2 steps: an anomaly on a rank of this dump (--keep-anomalous)" in said
    found = run(*args, "--json").json
    assert sorted((row["rank"], row["step"], row["files"]) for row in found["deleted"]) == [
        (0, 2, 241),
        (1, 2, 241),
    ]
    assert [(row["step"], row["reason"]) for row in found["kept"]] == [(3, "newest"), (3, "newest")]
    assert files_below(dump).items() < files_below(dumps["nan-sqrt-2rank"] / "dump").items()
