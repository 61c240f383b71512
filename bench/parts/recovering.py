"""How soon the service is back at work after an outage of its store, and after a restart of its watcher.

All parts of the service are separate processes. The first needs Ceph, whose gateway is killed; the second is
measured with a directory, and with Ceph if it is installed.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from bench.load import npy_header
from bench.measure import Measure, Ratio, Table, shown
from bench.running import Job, Processes, cluster, processor_s, service
from bench.setting import Setting, object_storage, store_for
from ingest.layouts.base import Listing
from ingest.layouts.detect import find_dump
from ingest.planning.inspection import inspect
from ingest.planning.plan import fingerprint, plan_step
from tests.cli import start
from tests.servers.ceph import PROGRAMS
from tests.servers.cluster import DaskCluster
from workers.store.model import Grid, Origin
from workers.store.opening import open_objects, resolve
from workers.store.record import LEAF
from workers.tasks.convert import convert
from workers.tasks.publish import publish

#: After an outage, a backlog may take at most 1 / 0.9 times as long as the same backlog takes otherwise.
DRAIN_FLOOR = 0.9
#: Limit from the start of a watcher to the first commit of a new step.
RESTART_LIMIT_S = 5.0
_FILES_OF_A_STEP = 20
_AWAY_S = 15.0


def measure(setting: Setting) -> Iterator[Measure | Table]:
    """Yield times after an outage of the store, and after a restart of the watcher."""
    has_ceph = all(shutil.which(name) for name in PROGRAMS)
    if has_ceph:
        yield from _store_away(setting)
    else:
        yield Table("recovering: the store away: not measured", ("why",), (("Ceph is not installed",),))
    for in_ceph in (False, True) if has_ceph else (False,):
        yield from _restart(replace(setting, in_ceph=in_ceph))


def _store_away(setting: Setting) -> Iterator[Measure | Table]:
    count = 60 if setting.quick else 100
    ours, other, waits = [], [], []
    with ExitStack() as stack:
        ceph, variables = stack.enter_context(object_storage(on_disk=True))
        url = ceph.make_bucket("recovering").url
        job = Job(stack.enter_context(setting.target()))
        job.write()
        dask = stack.enter_context(cluster(variables))
        running = stack.enter_context(service(dask, job.dump, url, variables))
        running.wait_for_commits(1)
        job.write(count)  # warm-up: kernels are compiled, modules imported
        running.wait_for_commits(job.steps)
        for _ in range(setting.rounds):
            job.write(count)
            other.append(_drained(running, job.steps - count, count))
            ceph.kill_gateway()
            job.write(count)
            time.sleep(_AWAY_S)
            ceph.start_gateway()
            back = time.monotonic()
            waits.append(running.wait_for_commits(job.steps - count + 1) - back)
            ours.append(_drained(running, job.steps - count, count))
    yield Measure(
        f"a backlog of {count} steps, after the store was away for {_AWAY_S:.0f} s",
        "the same backlog otherwise",
        "s",
        tuple(ours),
        tuple(other),
        floor=DRAIN_FLOOR,
    )
    rows = tuple((str(number), f"{shown(wait)} s") for number, wait in enumerate(waits, 1))
    yield Table("from the return of the store to the next commit", ("round", "time"), rows)


def _drained(running: Processes, before: int, count: int) -> float:
    """Return the time from a tenth of a backlog to its end, scaled to the whole backlog."""
    running.wait_for_commits(before + count // 10)
    first, started = running.commits, time.monotonic()
    last = running.wait_for_commits(before + count)
    return (last - started) * count / max(before + count - first, 1)


def _restart(setting: Setting) -> Iterator[Measure]:
    count = 1000 if setting.quick else 10_000
    times, processor_times = [], []
    with ExitStack() as stack:
        store, variables = stack.enter_context(store_for(setting))
        dump = stack.enter_context(setting.target(setting.fast)) / "dump"
        _write_steps(dump, 0, count)
        _commit_all(dump, store)
        with cluster(variables) as dask:
            for number in range(setting.rounds + 1):
                _write_steps(dump, count + number, 1)
                wall_s, processor_time_s = _seconds_to_commit(dask, dump, store, variables)
                if number:  # not the first time: workers import modules
                    times.append(wall_s)
                    processor_times.append(processor_time_s)
    where = "Ceph" if setting.in_ceph else "a directory"
    # Other processes on the machine make the first longer, and not the second.
    for what, figures in (("", times), (", processor time of the watcher", processor_times)):
        yield Measure(
            f"start of a watcher to the commit of a new step, {count} committed, {where}{what}",
            f"{RESTART_LIMIT_S:g} s",
            "s",
            tuple(figures),
            (RESTART_LIMIT_S,) * len(figures),
            Ratio.SHARE,
            floor=1.0,
        )


def _seconds_to_commit(
    dask: DaskCluster, dump: Path, store: str, variables: dict[str, str]
) -> tuple[float, float]:
    """Return the time to the first commit, and the processor time of the watcher, in seconds."""
    env = {**variables, "DUMP_INGEST_QUIET_S": "0", "DUMP_INGEST_SETTLE_S": "0"}
    started = time.monotonic()
    with start("watch", dump, "--store", store, "--scheduler", dask.address, env=env) as watcher:
        watcher.wait_until(lambda: watcher.events("step_committed"), timeout_s=300)
        return time.monotonic() - started, processor_s(watcher.pid)


def _write_steps(dump: Path, first: int, count: int) -> None:
    content = npy_header("<f4", (4,)) + bytes(16)
    names = [
        f"MatMul.op{n}.0.0.{1000 + n}.output.0.DefaultFormat.Float32.npy" for n in range(_FILES_OF_A_STEP)
    ]
    for step in range(first, first + count):
        directory = dump / "rank_0" / "Net" / "0" / str(step)
        directory.mkdir(parents=True)
        for name in names:
            (directory / name).write_bytes(content)


def _commit_all(dump: Path, store: str) -> None:
    """Commit every step of a dump: the first completely, the others with their commit only."""
    detected, address = find_dump(dump), resolve(store)
    first, *others = detected.scan({}).listings
    inspected = inspect(detected.root, first, detected.describe(first))
    plan = plan_step(inspected, Origin(first.layout, "bench", str(detected.root)), address, Grid())
    publish(plan, [convert(job) for job in plan.jobs])
    objects = open_objects(address)
    leaf = objects.get(f"{first.key.path}/{LEAF}")
    assert leaf is not None
    for start_at in range(0, len(others), 1000):
        batch = others[start_at : start_at + 1000]
        objects.put_many(
            {f"{listing.key.path}/{LEAF}": _leaf_of(listing, leaf, plan.fingerprint) for listing in batch}
        )


def _leaf_of(listing: Listing, leaf: bytes, fingerprint_of_leaf: str) -> bytes:
    """Return the commit of a step, made from the commit of another step."""
    own = fingerprint(listing.files, listing.naming, Grid())
    document = json.loads(leaf.replace(fingerprint_of_leaf.encode(), own.encode()))
    document["attributes"]["dump_ingest"]["step"] = listing.key.step
    return json.dumps(document).encode()
