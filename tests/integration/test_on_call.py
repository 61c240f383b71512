"""What goes wrong in silence reaches a receiver, and what is well does not: real processes, all at once.

Every process has a run of its own, and some are scraped for two runs. Times of the rules pass `QUICK` times
as fast. `tests/alert_states.py` has many more states, as series.
"""

import itertools
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.alerts import ALERTMANAGER, quickened
from tests.cli import Running, run, start
from tests.servers.alertmanager import Alertmanager
from tests.servers.http import HttpServer, Request
from tests.servers.process import free_port, http_get
from tests.servers.prometheus import StartPrometheus
from tests.stores import ingest_directly

pytestmark = [pytest.mark.prometheus, pytest.mark.campaign, pytest.mark.timeout(600)]

#: Ten minutes are twenty seconds.
QUICK = 30
_TIMEOUT_S = 180.0
#: The processes of a crash loop, which serve in turn. They are started before the first of them is scraped:
#: on a slow machine, a start would take longer than its back-off.
LIVES = ("first", "second", "third")


@contextmanager
def watching(
    dump: Path, store: Path, port: int, *words: object, prefix: tuple[str, ...] = ()
) -> Iterator[Running]:
    """Run a watcher that serves its metrics at a port."""
    metrics = f"127.0.0.1:{port}"
    with start("watch", dump, "--store", store, "--metrics", metrics, *words, prefix=prefix) as process:
        yield process


@contextmanager
def consolidating(store: Path, port: int) -> Iterator[Running]:
    """Run a consolidator that serves its metrics at a port."""
    with start(
        "consolidate", store, "--follow", "--poll", "0.5", "--metrics", f"127.0.0.1:{port}"
    ) as process:
        yield process


class PodAddress(HttpServer):
    """An address at which one process after another serves its metrics, while the `with` block runs."""

    def __init__(self) -> None:
        super().__init__(self._pass_on)
        self.serves: int | None = None
        """The port of the process that serves now; None between two processes."""

    def _pass_on(self, request: Request) -> tuple[int, bytes]:
        return (503, b"") if self.serves is None else http_get(self.serves, request.path)


class Targets:
    """What Prometheus scrapes: read again from a file when it changes, as in a cluster."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._targets: list[tuple[str, str, int]] = []

    def add(self, run_name: str, role: str, port: int) -> None:
        """Scrape a port for a run."""
        self._targets.append((run_name, role, port))
        self._write()

    def remove(self, run_name: str, role: str) -> None:
        """Scrape it no more: its pod was evicted."""
        self._targets = [target for target in self._targets if target[:2] != (run_name, role)]
        self._write()

    def _write(self) -> None:
        entries = [
            {
                "targets": [f"127.0.0.1:{port}"],
                "labels": {
                    "run": run_name,
                    "namespace": "train",
                    "job": f"{run_name}/dump-ingest-{role}",
                },
            }
            for run_name, role, port in self._targets
        ]
        whole = self._path.with_suffix(".tmp")
        whole.write_text(json.dumps(entries))
        whole.rename(self._path)

    def config(self) -> Mapping[str, object]:
        """Return the section of Prometheus' configuration."""
        found = {"files": [str(self._path)], "refresh_interval": "1s"}
        return {"scrape_configs": [{"job_name": "all", "file_sd_configs": [found]}]}


def prompt_alertmanager(into: Path) -> Path:
    """Return a copy of the shipped routing that does not wait before it sends."""
    config = yaml.safe_load(ALERTMANAGER.read_text())
    for route in (config["route"], *config["route"]["routes"]):
        route |= {"group_wait": "1s", "group_interval": "1s"}
    path = into / "alertmanager.yml"
    path.write_text(yaml.safe_dump(config))
    return path


def test_whatever_goes_wrong_reaches_a_receiver_and_nothing_else_does(
    prometheus: StartPrometheus,
    alertmanager: Callable[[Path], Alertmanager],
    dump_copy: Callable[[str], Path],
    unprivileged: tuple[str, ...],
    tmp_path: Path,
) -> None:
    dump, nan_dump = dump_copy("lenet-4rank") / "dump", dump_copy("nan-log-2rank") / "dump"
    denied = tmp_path / "denied"
    shutil.copytree(dump, denied)
    for step in denied.glob("rank_*/*/*/*"):
        step.chmod(0)
    store, nan_store, nowhere = tmp_path / "run.zarr", tmp_path / "nan.zarr", tmp_path / "nowhere"
    ingest_directly(dump, store)
    ingest_directly(nan_dump, nan_store)
    names = ("well", "holder", "standby", "denied", "lost", "other", "few", "nan", "nanc", "over", *LIVES)
    ports = {name: free_port() for name in names}
    targets = Targets(tmp_path / "targets.json")
    for run_name, role, process in (
        ("well", "watcher", "well"),
        ("well", "consolidator", "holder"),
        ("standby", "watcher", "well"),
        ("standby", "consolidator", "holder"),
        ("standby", "consolidator", "standby"),
        ("evicted", "watcher", "well"),
        ("evicted", "consolidator", "holder"),
        ("denied", "watcher", "denied"),
        ("lost", "watcher", "lost"),
        ("lost", "consolidator", "other"),
        ("few", "watcher", "few"),
        ("nan", "watcher", "nan"),
        ("nan", "consolidator", "nanc"),
        ("over", "watcher", "over"),
    ):
        targets.add(run_name, role, ports[process])
    pager = alertmanager(prompt_alertmanager(tmp_path))
    with ExitStack() as running:
        enter = running.enter_context
        enter(consolidating(store, ports["holder"])).wait_until(lambda: _serves(ports["holder"]))
        enter(watching(dump, store, ports["well"]))
        enter(consolidating(store, ports["standby"]))
        enter(watching(denied, tmp_path / "denied.zarr", ports["denied"], prefix=unprivileged))
        enter(watching(nowhere, tmp_path / "a.zarr", ports["lost"]))
        enter(consolidating(tmp_path / "b.zarr", ports["other"]))
        enter(watching(dump, store, ports["few"], "--expected-ranks", "8"))
        over = enter(watching(nowhere, tmp_path / "a.zarr", ports["over"]))
        for life in LIVES:
            enter(watching(nowhere, tmp_path / "a.zarr", ports[life]))
            time.sleep(0.05)  # the start of a process is known to a hundredth of a second
        nan = enter(watching(nan_dump, nan_store, ports["nan"]))
        enter(consolidating(nan_store, ports["nanc"]))
        settings = {
            **targets.config(),
            "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "1s"},
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [pager.address]}]}]},
        }
        server = prometheus(
            {}, rules=[quickened(QUICK, tmp_path, unchanged=["dump-ingest.findings"])], settings=settings
        )
        server.wait_for("count(up == 1) == 14", timeout_s=_TIMEOUT_S)
        began = time.monotonic()

        def expect(alert: str, run_name: str) -> None:
            pager.wait_for(_is(alert, run_name), timeout_s=_TIMEOUT_S)
            print(f"{alert} of {run_name} was received after {time.monotonic() - began:.0f} s")

        server.wait_for('dump_ingest_last_finding_step{run="nan"}', timeout_s=_TIMEOUT_S)
        over.kill()
        nan.kill()
        run("gc", nan_store, "--plan", tmp_path / "no-plan.json", "--apply", code=2)
        pod = enter(PodAddress())
        targets.add("loop", "watcher", pod.port)
        server.wait_for('up{run="loop"} == 0', timeout_s=_TIMEOUT_S)
        loops_until = time.monotonic() + _TIMEOUT_S
        # A target that lived for less than the `for` of the rule is not missed: eight minutes are 16 seconds.
        lived = 'count_over_time(up{job="evicted/dump-ingest-watcher"}[1h]) > 12'
        is_evicted = False
        for life in itertools.cycle(LIVES):  # it starts, is killed for its memory, and backs off
            pod.serves = ports[life]
            start_time = f'process_start_time_seconds{{run="loop"}} == {_start_time(ports[life])}'
            server.wait_for(start_time, timeout_s=_TIMEOUT_S)
            pod.serves = None
            if not is_evicted and server.query(lived):
                targets.remove("evicted", "watcher")
                is_evicted = True
            server.wait_for('max_over_time(up{run="loop"}[3s]) == 0', timeout_s=_TIMEOUT_S)
            if pager.received(_is("Restarting", "loop")) or time.monotonic() > loops_until:
                break
        if not is_evicted:
            server.wait_for(lived, timeout_s=_TIMEOUT_S)
            targets.remove("evicted", "watcher")
        for alert, run_name in (
            ("NotFinite", "nan"),
            ("GcFailing", "nan"),
            ("WatcherDown", "nan"),
            ("NothingReadable", "denied"),
            ("NoDumpSeen", "lost"),
            ("StoresDiffer", "lost"),
            ("RanksMissing", "few"),
            ("TargetsLost", "evicted"),
            ("Restarting", "loop"),
        ):
            expect(alert, run_name)
        # StoresDiffer, which is the cause, keeps Alertmanager from sending it.
        idle = 'ALERTS{alertname="DumpIngestConsolidatorIdle", alertstate="firing", run="lost"}'
        server.wait_for(idle, timeout_s=_TIMEOUT_S)
        told = {
            (alert["labels"]["alertname"].removeprefix("DumpIngest"), alert["labels"].get("run"))
            for _, message in pager.messages
            for alert in message["alerts"]
        }
        # A busy machine may hold a process up for a second, which is half a minute of these rules.
        slow = "min_over_time(up[1h]) == 0 or max_over_time(scrape_duration_seconds[1h]) > 1"
        late = {sample.labels["run"] for sample in server.query(slow)}
        assert {pair for pair in told if pair[1] in {"well", "standby"} - late} == set()
        assert ("ConsolidatorIdle", "standby") not in told
        assert [pair for pair in told if pair[1] == "over"] == []
        status, body = http_get(ports["denied"], "/ready")
        assert status == 503
        assert b"permission denied" in body


def _is(alert: str, run_name: str) -> Callable[[dict[str, Any]], bool]:
    wanted = (f"DumpIngest{alert}", run_name)
    return lambda told: wanted == (told["labels"]["alertname"], told["labels"].get("run"))


def _start_time(port: int) -> str:
    """Return when the process at a port was started, as it says."""
    deadline = time.monotonic() + _TIMEOUT_S
    while not _serves(port):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    lines = http_get(port, "/metrics")[1].decode().splitlines()
    return next(line.split()[1] for line in lines if line.startswith("process_start_time_seconds "))


def _serves(port: int) -> bool:
    try:
        return http_get(port, "/ready")[0] == 200
    except OSError:
        return False
