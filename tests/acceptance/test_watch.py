"""`watch` beside a job: recorded runs are written again, call by call, while it looks."""

import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from tests import checker
from tests.cli import Running, run, start
from tests.replay import Replay, iterations, longest_pause_s, replay, timeline
from tests.servers.cluster import DaskCluster
from tests.stores import DumpLibrary

pytestmark = pytest.mark.dask


def committed(watch: Running) -> Counter[tuple[int, int]]:
    """Count the commits of each rank and step; run files, which change with the job, are left out."""
    events = watch.events("step_committed")
    return Counter((event["rank"], event["step"]) for event in events if event["step"] is not None)


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
