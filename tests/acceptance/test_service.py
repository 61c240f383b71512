"""A service beside a job, from the first look to deletion, on a disk and in a real object store."""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ingest import open_store
from tests import checker
from tests.cli import Running, run, start
from tests.replay import Replay, iterations, longest_pause_s, replay, timeline
from tests.servers.ceph import S3Bucket
from tests.servers.cluster import DaskCluster
from tests.services import Run
from tests.stores import DumpLibrary, unpack

# `watch` beside a job: recorded runs are written again, call by call, while it looks.


def committed(watch: Running) -> Counter[tuple[int, int]]:
    """Count the commits of each rank and step; run files, which change with the job, are left out."""
    events = watch.events("step_committed")
    return Counter((event["rank"], event["step"]) for event in events if event["step"] is not None)


@pytest.mark.dask
@pytest.mark.parametrize(
    ("name", "speed"),
    [
        pytest.param("lenet-4rank", 4, marks=pytest.mark.campaign),
        ("longnames-1rank", 0.2),
    ],
)
def test_each_iteration_is_committed_once_and_whole(
    name: str, speed: float, dumps: DumpLibrary, cluster: DaskCluster, tmp_path: Path
) -> None:
    """However fast a job dumps: no iteration is taken too early, none twice, none is left."""
    recorded, dump, store = dumps[name], tmp_path / "dump", tmp_path / "run.zarr"
    # Longer than the job ever pauses within an iteration, and than this machine may stop the replay.
    quiet_s = 2 + 2 * longest_pause_s(timeline(recorded)) / speed
    env = {"DUMP_INGEST_QUIET_S": f"{quiet_s:.3f}", "DUMP_INGEST_SETTLE_S": "1.5"}
    expected = Counter(iterations(recorded / "dump"))
    with start("watch", dump, "--store", store, "--scheduler", cluster.address, env=env) as watch:
        watch.wait_until(lambda: watch.events("waiting_for_dump"))
        replay(recorded, dump, speed=speed)
        watch.wait_until(lambda: committed(watch).keys() >= expected.keys())
        time.sleep(0.5)
        assert watch.terminate() == 0
        assert committed(watch) == expected
        assert watch.events("step_failed") == watch.events("trouble") == []
    for leaf in checker.leaves(store):
        assert leaf.status == "complete"

    # What is left to a last run are files of the whole run; no iteration has changed.
    rest = run("ingest", dump, "--store", store, "--scheduler", cluster.address, "--json")
    assert [row["step"] for row in rest.json if row["step"] is not None] == []
    checker.check(store, recorded / "dump")


@pytest.mark.dask
def test_an_iteration_is_not_taken_while_a_file_is_short(
    dumps: DumpLibrary, cluster: DaskCluster, tmp_path: Path
) -> None:
    """With a later iteration begun and no quiet period over, content decides: half a file holds it back."""
    recorded, dump, store = dumps["lenet-1rank"], tmp_path / "dump", tmp_path / "run.zarr"
    calls = timeline(recorded)
    last_open = max(
        i for i, c in enumerate(calls) if c.op == "close" and c.path.startswith("rank_0/LeNet/0/0/")
    )
    held_back = calls[last_open : last_open + 2]  # close, which writes the second half, and chmod
    env = {"DUMP_INGEST_QUIET_S": "60", "DUMP_INGEST_SETTLE_S": "0.3"}
    writer = Replay(recorded / "dump", dump)
    with start("watch", dump, "--store", store, "--scheduler", cluster.address, env=env) as watch:
        for call in calls:
            if call not in held_back:
                writer.do(call)
        watch.wait_until(lambda: (0, 1) in committed(watch))
        time.sleep(1)
        assert set(committed(watch)) == {(0, 1)}  # of 0 a file is short, and after 2 there is nothing yet

        for call in held_back:
            writer.do(call)
        watch.wait_until(lambda: (0, 0) in committed(watch))
        assert watch.terminate() == 4  # step 2 has begun
    assert committed(watch) == {(0, 0): 1, (0, 1): 1}
    assert {leaf.status for leaf in checker.leaves(store)} == {"complete"}


@pytest.mark.dask
def test_two_watchers_of_one_dump_do_no_harm(
    dumps: DumpLibrary, cluster: DaskCluster, tmp_path: Path
) -> None:
    """Whoever is first commits; what both commit is the same."""
    recorded, dump, store = dumps["lenet-1rank"], tmp_path / "dump", tmp_path / "run.zarr"
    words = ("watch", dump, "--store", store, "--scheduler", cluster.address)
    env = {"DUMP_INGEST_QUIET_S": "2", "DUMP_INGEST_SETTLE_S": "1"}
    with start(*words, env=env) as first, start(*words, env=env) as second:
        first.wait_until(lambda: first.events("waiting_for_dump"))
        second.wait_until(lambda: second.events("waiting_for_dump"))
        job = threading.Thread(target=replay, args=(recorded, dump), kwargs={"speed": 2})
        job.start()
        expected = set(iterations(recorded / "dump"))
        first.wait_until(lambda: {*committed(first), *committed(second)} >= expected)
        job.join()
        # 4: it has not seen yet what the other one committed.
        assert {first.terminate(), second.terminate()} <= {0, 4}
    found = checker.leaves(store)
    assert {(leaf.rank, leaf.step) for leaf in found if leaf.step is not None} == expected
    assert all(leaf.record["previous"] == [] for leaf in found if leaf.step is not None)
    run("ingest", dump, "--store", store, "--scheduler", cluster.address)
    checker.check(store, recorded / "dump")


# Dumps that are deleted after their commit come back out of the store, byte for byte.


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


# The same as on a disk, in a real S3 object store.


@pytest.mark.dask
@pytest.mark.s3
def test_a_bucket_answers_as_a_directory_does(
    s3_bucket: S3Bucket,
    s3_cluster: DaskCluster,
    s3_environment: dict[str, str],
    dumps: DumpLibrary,
    tmp_path: Path,
) -> None:
    """Ingest, verify, find, show and export, with credentials from the environment alone."""
    dump, store, back = dumps["nan-log-2rank"] / "dump", s3_bucket.url, tmp_path / "back"
    ingest = ("ingest", dump, "--store", store, "--scheduler", s3_cluster.address, "--json")
    run(*ingest, env=s3_environment)

    checker.check(checker.download(s3_bucket, tmp_path / "copy"), dump)
    questions = (
        ("verify", store, "--json"),
        ("find", store, "--where", "nan_count > 0", "--limit", 1, "--json"),
        ("show", store, "Log.*.output.0", "--rank", 1, "--step", 2, "--json"),
        ("export", store, back),
    )
    with ThreadPoolExecutor(2) as pool:
        verified, found, shown, _ = pool.map(lambda words: run(*words, env=s3_environment), questions)
    assert verified.json == []
    [tensor] = found.json
    assert {name: shown.json[name] for name in tensor} == tensor
    assert shown.json["source_line"]["line"] == 45  # graphs are read from the store, too
    assert (shown.json["op_type"], shown.json["nan_count"]) == ("Log", 2)
    files = [path for path in dump.rglob("*") if path.is_file()]
    assert len(files) == len([path for path in back.rglob("*") if path.is_file()])
    assert all((back / path.relative_to(dump)).read_bytes() == path.read_bytes() for path in files)

    before = checker.versions(s3_bucket)
    assert run(*ingest, env=s3_environment).json == []
    assert checker.versions(s3_bucket) == before


@pytest.mark.dask
@pytest.mark.s3
def test_own_workers_find_the_credentials_of_the_command(
    s3_bucket: S3Bucket, s3_environment: dict[str, str], dumps: DumpLibrary, tmp_path: Path
) -> None:
    """No credential is on a command line, in a setting or in a task."""
    dump = dumps["longnames-1rank"] / "dump"
    run("ingest", dump, "--store", s3_bucket.url, env=s3_environment)
    checker.check(checker.download(s3_bucket, tmp_path), dump)
    secret = s3_environment["AWS_SECRET_ACCESS_KEY"].encode()
    assert not any(secret in data for data in checker.objects(s3_bucket).values())
