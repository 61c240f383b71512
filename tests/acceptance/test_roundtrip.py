"""From a dump to a store and back, for each kind of dump. `tests/test_store_page.py` rebuilds all."""

from pathlib import Path

import pytest

from ingest import open_store
from ingest.reader.step import summary_row
from tests import checker
from tests.cli import run
from tests.replay import iterations
from tests.servers.cluster import DaskCluster
from tests.stores import DumpLibrary, ingest_directly

pytestmark = pytest.mark.dask

DUMPS = (
    "dtypes-1rank/dump",
    "lenet-4rank/dump",
    "longnames-1rank/dump",
    "mindspore-2.0.0-cpu-sync/lenet",
    "mindspore-2.7.1-cpu-sync/bfloat16",
    "mindspore-2.7.1-cpu-sync/control-flow",
    "mindspore-2.7.1-cpu-sync/types",
)


#: Those that go by the command and a cluster; the others are taken in within this process.
BY_COMMAND = ("dtypes-1rank/dump", "lenet-4rank/dump")


def path_of(name: str, dumps: DumpLibrary) -> Path:
    archive, _, below = name.partition("/")
    return dumps[archive] / below


def files_below(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


@pytest.mark.parametrize("name", DUMPS)
def test_a_dump_comes_back_byte_for_byte(
    name: str, dumps: DumpLibrary, cluster: DaskCluster, tmp_path: Path
) -> None:
    """What was ingested is whole for a reader of plain Zarr, for `verify`, and for `Step.export`."""
    dump, store, back = path_of(name, dumps), tmp_path / "run.zarr", tmp_path / "back"
    if name in BY_COMMAND:
        ingested = run("ingest", dump, "--store", store, "--scheduler", cluster.address, "--json").json
    else:
        ingested = [summary_row(summary) for summary in ingest_directly(dump, store)]

    found = {(leaf.rank, leaf.step) for leaf in checker.check(store, dump)}
    assert found >= set(iterations(dump))
    assert {(row["rank"], row["step"]) for row in ingested} == found
    assert {row["status"] for row in ingested} == {"complete"}

    opened = open_store(store)
    assert list(opened.verify()) == []
    exported = [file for step in opened.select() for file in step.export(back)]
    assert {file.source for file in exported if not file.problem} == files_below(dump).keys()
    assert files_below(back) == files_below(dump)


def test_ingesting_again_writes_nothing(dumps: DumpLibrary, cluster: DaskCluster, tmp_path: Path) -> None:
    """The store is the truth: what it holds is not even written again with the same bytes."""
    dump, first, second = dumps["lenet-1rank"] / "dump", tmp_path / "first", tmp_path / "second"
    run("ingest", dump, "--store", first, "--scheduler", cluster.address)
    before = checker.versions(first)

    again = run("ingest", dump, "--store", first, "--scheduler", cluster.address, "--json")

    assert again.json == []
    assert checker.versions(first) == before

    # Nor would it matter: keys and bytes below the commits depend on the source alone.
    run("ingest", dump, "--store", second, "--scheduler", cluster.address)
    assert below_the_commits(second) == below_the_commits(first)


def below_the_commits(store: Path) -> dict[str, bytes]:
    return {key: data for key, data in checker.objects(store).items() if key.count("/") > 2}


def test_own_workers_do_as_well_as_a_cluster(dumps: DumpLibrary, tmp_path: Path) -> None:
    """Nothing has to run before a first use: the command starts its own workers."""
    dump, store, back = dumps["longnames-1rank"] / "dump", tmp_path / "run.zarr", tmp_path / "back"
    done = run("ingest", dump, "--store", store)
    assert "complete" in done.stdout
    checker.check(store, dump)

    # And what it brought is not exported over anything that is there.
    mine = back / "rank_0/Net/0/1/mapping.csv"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    assert "--overwrite" in run("export", store, back, "--step", 1, code=2).stderr
    assert mine.read_text() == "mine"
