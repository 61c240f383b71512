"""The page on a run of 64 ranks, 100 steps and 5000 tensors: first paint, each click, 20 viewers, an outage.

The server is a process of its own; the viewers share the processors with it. The run has statistics and no
values, but a second one has, for the view of a tensor.
"""

from __future__ import annotations

import json
import re
import statistics
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

import numpy as np

from bench.measure import Table, shown
from bench.running import processor_s, sample
from bench.setting import WORKERS, Setting, object_storage
from bench.steps import commit_run
from bench.upload import bucket_client, upload
from bench.viewers import Connection, Viewers, walk
from ingest.consolidating.consolidator import Consolidator
from tests.cli import Running, start
from tests.servers.ceph import CephS3
from tests.servers.process import free_port, http_get, listens
from tests.stores import MadeDump, ingest_directly, tensor_name
from workers.model import MIB
from workers.rules.schema import load_rules
from workers.store.opening import open_objects, resolve

#: Numbers of ranks, steps and tensors; with `--quick`.
SIZE, QUICK_SIZE = (64, 100, 5000), (4, 6, 200)
#: The limits of the page: the first view of a server, and each click, in seconds.
FIRST_PAINT_S, CLICK_S = 1.0, 0.3
PEOPLE = 20
_LARGE, _OTHER, _VALUES = "large.zarr", "other.zarr", "values.zarr"
#: How many clicks of each kind are measured, each on another rank and step.
_CLICKS = 5


@dataclass(frozen=True, slots=True)
class Place(ABC):
    """Where the runs are."""

    kind: ClassVar[str]
    url: str
    variables: Mapping[str, str]
    """The environment of whoever reads them."""
    size: tuple[int, int, int]

    @abstractmethod
    def away(self) -> AbstractContextManager[None]:
        """Make the runs unreachable for the duration of a block."""


@dataclass(frozen=True, slots=True)
class _Directory(Place):
    kind = "directory"

    @contextmanager
    def away(self) -> Iterator[None]:
        root = Path(self.url)
        hidden = root.with_name("hidden")
        root.rename(hidden)
        try:
            yield
        finally:
            hidden.rename(root)


@dataclass(frozen=True, slots=True)
class _Bucket(Place):
    kind = "Ceph"
    ceph: CephS3

    @contextmanager
    def away(self) -> Iterator[None]:
        self.ceph.kill_gateway()
        try:
            yield
        finally:
            self.ceph.start_gateway()


def measure(setting: Setting) -> Iterator[Table]:
    """Yield what was measured: in a directory, or with `--ceph` on Ceph."""
    size = QUICK_SIZE if setting.quick else SIZE
    with setting.target() as root:
        runs = root / "runs"
        started = time.perf_counter()
        make_runs(runs, size)
        made_s = time.perf_counter() - started
        with place(setting, runs, size) as where:
            yield first_paint(where, f"made in {shown(made_s)} s")
            yield clicks(where)
            yield viewers(where, 10 if setting.quick else 120)
            yield requests(where)
            yield outage(where, 5 if setting.quick else 60)


@contextmanager
def place(setting: Setting, runs: Path, size: tuple[int, int, int]) -> Iterator[Place]:
    """Yield the place of these runs: their directory, or with `--ceph` a bucket that has a copy of it."""
    if not setting.in_ceph:
        yield _Directory(str(runs), {}, size)
        return
    with object_storage() as (ceph, variables):
        bucket = ceph.make_bucket("bench")
        upload(runs, bucket_client(ceph, bucket.name), "runs")
        yield _Bucket(f"s3://{bucket.name}/runs", variables, size, ceph)


def make_runs(root: Path, size: tuple[int, int, int]) -> None:
    """Make a large run with NaN in its second half, one to compare it with, and one that has values."""
    ranks, steps, tensors = size
    names = [f"Default_net-Model_layer{i}-Block_MatMul-op{i}" for i in range(tensors)]
    rules = load_rules().enabled
    many, last = range(ranks), [steps - 2, steps - 1]
    for run, wanted, born, seed in (
        (_LARGE, range(steps), steps // 2, 0),
        (_OTHER, last, None, 1),
    ):
        url = str(root / run)
        # Of statistics alone: what claims elements and has none is not compared at all.
        commit_run(
            url,
            many,
            wanted,
            names,
            born=born,
            seed=seed,
            processes=WORKERS,
            rules=rules,
            has_elements=False,
        )
        with Consolidator(open_objects(resolve(url))) as consolidator:
            consolidator.once()
    with tempfile.TemporaryDirectory(prefix="dump-ingest-bench-") as scratch:
        dump = MadeDump(Path(scratch))
        random = np.random.default_rng(0)
        for number, side in enumerate((64, 512, 1024)):
            values = random.standard_normal((side, side), np.float32)
            dump.add(values, tensor_name(f"MatMul.op{number}"), step=0)
        ingest_directly(dump.root, str(root / _VALUES), rules=rules)


@contextmanager
def server(where: Place, run: str = "", refresh_s: float = 5) -> Iterator[tuple[Running, str, int]]:
    """Run the server; yield its process, its URL and its port."""
    port = free_port()
    url = f"{where.url}/{run}" if run else where.url
    words = ("serve", url, "--listen", f"127.0.0.1:{port}", "--refresh", f"{refresh_s:g}")
    with start(*words, env=where.variables) as running:
        running.wait_until(lambda: listens(port), timeout_s=120)
        yield running, f"http://127.0.0.1:{port}", port


def views(where: Place, number: int) -> dict[str, str]:
    """Return one path for each kind of click; another rank and step for each number."""
    ranks, steps, tensors = where.size
    rank, step = 7 * number % ranks, (steps // 2 + 11 * number) % steps
    place = 17 * number % tensors
    name = quote(f"MatMul.Default_net-Model_layer{place}-Block_MatMul-op{place}.output.0")
    stat = ("l2_norm", "max", "mean", "std", "min")[number % 5]
    run, valued = f"/runs/{_LARGE}", "rank=0&step=0&name=MatMul.op2.output.0"
    return {
        "incidents": f"{run}/incidents?step={step}",
        "matrix of a count": f"{run}/matrix?stat=findings&steps={number}-{steps - 1}",
        "matrix of one tensor": f"{run}/matrix?stat={stat}&name={name}",
        "matrix of a thousand tensors": f"{run}/matrix?stat={stat}&name=*layer1*",
        "matrix of all tensors": f"{run}/matrix?stat={stat}",
        "the cell under the pointer": f"/api/v1{run}/matrix?stat=findings&steps={number}-{steps - 1}",
        "operators of a rank and step": f"{run}/cell?rank={rank}&step={step}",
        "operators, coloured by another statistic": f"{run}/cell?rank={rank}&step={step}&stat=max",
        "tensor": f"{run}/tensor?rank={rank}&step={step}&name={name}",
        "tensor over steps and ranks": f"{run}/tensor?rank={rank}&step={step}&name={name}&over=1",
        "tensor with values, 4 MiB": f"/runs/{_VALUES}/tensor?{valued}&stat={stat}",
        "window on values": f"/api/v1/runs/{_VALUES}/values?{valued}&row={number}",
        "two runs, one rank": f"{run}/compare?with={_OTHER}&step={steps - 1}&rank={rank}",
        "two runs, as they are opened": f"{run}/compare?with={_OTHER}&step={steps - 1 - number % 2}",
        "live": f"{run}/live",
        "whether something is new": f"/api/v1{run}/moment",
    }


def first_paint(where: Place, note: str) -> Table:
    """Measure how long a new server takes for its first view, and until the run is shown."""
    rows = []
    for words, run in (("one run", _LARGE), ("a list of runs", "")):
        started = time.perf_counter()
        with server(where, run) as (_, url, _port), Connection(url) as connection:
            up_s = time.perf_counter() - started
            asked = time.perf_counter()
            status, _, seconds = connection.get(f"/runs/{_LARGE}/incidents")
            while status == 503:
                time.sleep(0.1)
                status = connection.get(f"/runs/{_LARGE}/incidents")[0]
            whole_s = time.perf_counter() - asked
            again_s = connection.get(f"/runs/{_LARGE}/matrix")[2]
            assert status == 200, status
        rows.append((words, shown(up_s), shown(seconds), shown(whole_s), shown(again_s)))
    size = " x ".join(map(str, where.size))
    return Table(
        f"First paint, {size}, {where.kind}",
        (
            "serving",
            "s until it listens",
            f"s, first answer (≤ {FIRST_PAINT_S:g})",
            "s until the incidents show",
            "s, next view",
        ),
        tuple(rows),
        note,
    )


def clicks(where: Place) -> Table:
    """Measure each kind of click: the first answer, and the same one from the cache."""
    rows = []
    # The server does not refresh the runs meanwhile, so that the processor time is that of the click.
    with server(where, refresh_s=3600) as (process, url, _port), Connection(url) as connection:
        wait_until_read(url, _LARGE, _OTHER, _VALUES)
        for kind in views(where, 0):
            paths = [views(where, number)[kind] for number in range(_CLICKS)]
            first_s, cached_s, used_processor_s, nbytes = [], [], [], 0
            for path in paths:
                before_s = processor_s(process.pid)
                status, body, seconds = connection.get(path)
                used_processor_s.append(processor_s(process.pid) - before_s)
                assert status == 200, (path, status, body)
                first_s.append(seconds)
                cached_s.append(connection.get(path)[2])
                nbytes = max(nbytes, len(body))
            worst_s = max(first_s)
            figures = (
                statistics.median(first_s),
                worst_s,
                statistics.median(used_processor_s),
                statistics.median(cached_s),
            )
            is_fast = "yes" if worst_s <= CLICK_S else "NO"
            rows.append(
                (kind, *(shown(1000 * figure) for figure in figures), f"{nbytes / 1024:.0f}", is_fast)
            )
    return Table(
        f"Clicks, {where.kind}",
        (
            "view",
            "ms, median",
            "ms, worst",
            "ms of processor",
            "ms, from the cache",
            "KiB",
            f"≤ {CLICK_S * 1000:g} ms",
        ),
        tuple(rows),
    )


def viewers(where: Place, seconds: float) -> Table:
    """Measure 20 viewers, each of whom opens a random view every half second."""
    paths = sorted({path for number in range(_CLICKS) for path in views(where, number).values()})
    with server(where) as (process, url, port):
        wait_until_read(url, _LARGE, _OTHER, _VALUES)
        peak, until = 0, time.monotonic() + seconds
        with Viewers(url, paths).looking(PEOPLE) as people:
            while time.monotonic() < until:
                peak = max(peak, sample(process.pid).rss_nbytes)
                time.sleep(0.5)
        assert not people.failures, people.failures[:5]
        durations_s = np.array(people.seconds)
        made = metric(port, "dump_ingest_page_answer_seconds_count") - metric(
            port, "dump_ingest_page_shared_answers"
        )
    return Table(
        f"{PEOPLE} viewers for {seconds:g} s, {where.kind}",
        (
            "requests",
            "answers made",
            "ms, median",
            "ms, p95",
            "ms, p99",
            "ms, worst",
            "MiB of memory at most",
        ),
        (
            (
                str(durations_s.size),
                f"{made:.0f}",
                *(shown(1000 * np.percentile(durations_s, share)) for share in (50, 95, 99, 100)),
                f"{peak / MIB:.0f}",
            ),
        ),
        f"The slowest: {people.slowest[1]}",
    )


def requests(where: Place) -> Table:
    """Count the requests to the store of one viewer, and of many who open the same views."""
    kinds = views(where, 0)
    paths = [kinds[name] for name in kinds if "all" not in name]
    rows = []
    for people in (1, PEOPLE):
        with server(where, _LARGE, refresh_s=3600) as (_, url, port):
            wait_until_read(url, _LARGE)
            before = metric(port, "dump_ingest_page_store_requests_total")
            walk(url, [path for path in paths if _VALUES not in path and "with=" not in path], people)
            count = metric(port, "dump_ingest_page_store_requests_total") - before
        rows.append((str(people), f"{count:.0f}"))
    note = "Without the requests of each `--refresh`, which do not depend on the viewers either."
    return Table(f"Requests to the store, {where.kind}", ("viewers", "requests"), tuple(rows), note)


def outage(where: Place, seconds: float) -> Table:
    """Measure how the page does while the store is unreachable, and afterwards."""
    paths = [f"/runs/{_LARGE}/{view}" for view in ("incidents", "matrix", "live")]
    with server(where, _LARGE) as (_, url, _port), Connection(url) as connection:
        wait_until_read(url, _LARGE)
        walk(url, paths, 1)
        with Viewers(url, paths).looking(PEOPLE) as people:
            with where.away():
                begin = time.monotonic()
                noticed_s = _wait_for_away(connection, is_away=True, timeout_s=max(seconds, 60)) - begin
                time.sleep(max(begin + seconds - time.monotonic(), 0))
            end = time.monotonic()
            recovered_s = _wait_for_away(connection, is_away=False, timeout_s=300) - end
        durations_s = np.array(people.seconds)
    return Table(
        f"The store away for {seconds:g} s, {where.kind}",
        (
            "s until the page says so",
            "s until it has recovered",
            "requests",
            "of them not answered",
            "ms, p99",
        ),
        (
            (
                shown(noticed_s),
                shown(recovered_s),
                str(durations_s.size),
                str(len(people.failures)),
                shown(1000 * np.percentile(durations_s, 99)),
            ),
        ),
    )


def _wait_for_away(connection: Connection, *, is_away: bool, timeout_s: float) -> float:
    """Wait until the page says that the store is away, or that it is back; return when, by `monotonic`."""
    deadline = time.monotonic() + timeout_s
    while True:
        status, body, _ = connection.get(f"/api/v1/runs/{_LARGE}/moment")
        if status == 200 and bool(json.loads(body)["away"]) == is_away:
            return time.monotonic()
        assert time.monotonic() < deadline, body
        time.sleep(0.1)


def wait_until_read(url: str, *runs: str) -> None:
    """Wait until the server has read these runs, and shows their incidents."""
    with Connection(url) as connection:
        for run in runs:
            while connection.get(f"/runs/{run}/incidents")[0] == 503:
                time.sleep(0.1)


def metric(port: int, name: str) -> float:
    """Return a metric of the server, summed over its labels."""
    text = http_get(port, "/metrics")[1].decode()
    return sum(map(float, re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)))
