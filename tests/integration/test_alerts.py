"""Alerts as an operator gets them: real watchers, Dask workers, Prometheus and Alertmanager."""

import json
import re
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml

from tests.alert_rules import ALERTMANAGER, DEPLOY, PROMETHEUS, RULES, quickened
from tests.cli import Running, run, start
from tests.servers.alertmanager import Alertmanager
from tests.servers.cluster import DaskCluster
from tests.servers.process import free_port
from tests.servers.prometheus import Prometheus, StartPrometheus

pytestmark = [pytest.mark.dask, pytest.mark.prometheus, pytest.mark.slow]

#: Times of the rules pass so much faster: ten minutes are ten seconds. No quicker, for on a busy machine
#: a commit takes seconds, and is no lag.
QUICK = 60
#: Of the dashboard, what is rightly without a result where nothing has gone wrong.
OFTEN_EMPTY = (
    "Refused requests",
    "Steps given up, tasks tried again",
    "Disk of the dump",
    "Findings by rule",
)


def jobs(cluster: DaskCluster, *watchers: int, consolidator: int) -> dict[str, list[str]]:
    """Return what to scrape, by the names that the rules expect."""
    return {
        "dump-ingest-watcher": [f"127.0.0.1:{port}" for port in watchers],
        "dump-ingest-consolidator": [f"127.0.0.1:{consolidator}"],
        "dump-ingest-scheduler": [f"127.0.0.1:{cluster.scheduler_metrics_port}"],
        "dump-ingest-worker": [f"127.0.0.1:{port}" for port in cluster.metrics_ports],
    }


@contextmanager
def watching(
    dump: Path,
    store: Path,
    cluster: DaskCluster,
    port: int,
    *,
    prefix: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
) -> Iterator[Running]:
    """Run a watcher that serves its metrics at a port."""
    words = ("watch", dump, "--store", store, "--scheduler", cluster.address)
    with start(
        *words, env={"DUMP_INGEST_METRICS": f"127.0.0.1:{port}", **(env or {})}, prefix=prefix
    ) as watch:
        yield watch


@contextmanager
def consolidating(store: Path, port: int) -> Iterator[Running]:
    """Run a consolidator that serves its metrics at a port."""
    words = ("consolidate", store, "--follow", "--poll", "0.5", "--metrics", f"127.0.0.1:{port}")
    with start(*words) as consolidator:
        yield consolidator


def committed(watch: Running, steps: int) -> Callable[[], bool]:
    """Return whether a watcher has committed this many steps, and what belongs to none."""
    return lambda: sum(event["step"] is not None for event in watch.events("step_committed")) >= steps


def fired(server: Prometheus, state: str = "firing|pending") -> set[tuple[str, str, str]]:
    """Return every alert that there was at any time: its name, where, and of which rank."""
    samples = server.query(f'count_over_time(ALERTS{{alertstate=~"{state}"}}[1h])')
    return {
        (sample.labels["alertname"], sample.labels.get("instance", ""), sample.labels.get("rank", ""))
        for sample in samples
    }


def panels() -> list[tuple[str, str]]:
    """Return title and expression of everything that the dashboard asks, with values for its variables."""
    dashboard = json.loads((DEPLOY / "grafana" / "dump-ingest.json").read_text())
    found = [
        (panel["title"], target["expr"])
        for panel in dashboard["panels"]
        for target in panel.get("targets", [])
    ]
    values = {
        **dict.fromkeys(("$instance", "$rank", "$namespace", "$run"), ".*"),
        "$__rate_interval": "1m",
        "$__range": "1h",
    }
    pattern = re.compile("|".join(re.escape(name) for name in values))
    return [(title, pattern.sub(lambda m: values[m[0]], expression)) for title, expression in found]


def test_a_nan_reaches_the_webhook_within_a_minute_with_rank_and_step(
    prometheus: StartPrometheus,
    alertmanager: Callable[[Path], Alertmanager],
    cluster: DaskCluster,
    dump_copy: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    """Rules, routing, and pace of scrapes are those of `deploy`. The command it gives shows the tensor."""
    recorded = dump_copy("nan-log-2rank") / "dump"
    dump, store = tmp_path / "dump", tmp_path / "run.zarr"
    shutil.copytree(recorded, dump, ignore=shutil.ignore_patterns("2", "3"))
    ports = free_port(), free_port()
    pager = alertmanager(ALERTMANAGER)
    example = yaml.safe_load(PROMETHEUS.read_text())
    settings = {
        "global": example["global"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [pager.address]}]}]},
    }
    targets = jobs(cluster, ports[0], consolidator=ports[1])
    assert set(targets) == {job["job_name"] for job in example["scrape_configs"]}
    env = {"DUMP_INGEST_QUIET_S": "10", "DUMP_INGEST_SETTLE_S": "1", "DUMP_INGEST_POLL_S": "1"}
    with ExitStack() as running:
        watch = running.enter_context(watching(dump, store, cluster, ports[0], env=env))
        server = prometheus(targets, rules=[RULES], settings=settings)
        watch.wait_until(lambda: watch.events("watching"))
        written: list[float] = []
        for step in ("2", "3"):
            for directory in sorted(recorded.glob(f"rank_*/Mlp/0/{step}")):
                shutil.copytree(directory, dump / directory.relative_to(recorded))
            written.append(time.monotonic())
        watch.wait_until(committed(watch, 2))
        running.enter_context(consolidating(store, ports[1]))
        alert = pager.wait_for(
            lambda alert: alert["labels"]["alertname"] == "DumpIngestNotFinite", timeout_s=60
        )
        took_s = time.monotonic() - written[0]
        print(f"a NaN was told {took_s:.1f} s after it was written")
        assert took_s < 60

        assert alert["labels"]["rank"] == "1"
        assert alert["labels"]["severity"] == "critical"
        assert re.search(r"rank 1 at step [23]$", alert["annotations"]["summary"])
        assert [path for path, _ in pager.messages] == ["/trainer-on-call"]
        assert alert["annotations"]["runbook_url"].endswith("docs/runbooks.md#dumpingestnotfinite")
        command = alert["annotations"]["command"].split("; ")[0]
        assert command.startswith(f"dump-ingest anomalies {store} ")
        (incident,) = run(*shlex.split(command)[1:], "--json").json
        assert (incident["rank"], incident["op_type"]) == (1, "Log")
        assert incident["reason"].startswith("logarithm of a number that is not positive")
        _expect_panels(server)
        # A Prometheus that has just started sends alerts before it shows them.
        server.wait_for('ALERTS{alertname="DumpIngestNotFinite",alertstate="firing"}', timeout_s=40)
        assert fired(server, "firing") == {("DumpIngestNotFinite", "", "1")}
        print(f"{time.monotonic() - written[0]:.1f} s with the dashboard")


def _expect_panels(server: Prometheus) -> None:
    """Every question of the dashboard has an answer from a running system."""
    server.wait_for("dump_ingest_consolidator_newest_step >= 1", timeout_s=30)
    deadline = time.monotonic() + 40
    empty = panels()
    while empty and time.monotonic() < deadline:
        empty = [(title, asked) for title, asked in empty if not server.query(asked)]
        empty = [(title, asked) for title, asked in empty if title not in OFTEN_EMPTY and "> 0" not in asked]
        time.sleep(0.5)
    assert not empty


def test_the_rank_that_stands_still_is_told_and_a_healthy_dump_is_silent(
    prometheus: StartPrometheus,
    cluster: DaskCluster,
    dump_copy: Callable[[str], Path],
    unprivileged: tuple[str, ...],
    tmp_path: Path,
) -> None:
    """Of one watcher, rank 2 stops, rank 3 cannot be read; another one is healthy. Then the first dies."""
    recorded = dump_copy("lenet-4rank") / "dump"
    healthy, bad = free_port(), free_port()
    consolidator = free_port()
    dump = tmp_path / "bad"
    shutil.copytree(recorded, dump, ignore=shutil.ignore_patterns("2"))
    entered = time.monotonic()
    with ExitStack() as running:
        watch = running.enter_context(watching(recorded, tmp_path / "good.zarr", cluster, healthy))
        ill = running.enter_context(watching(dump, tmp_path / "bad.zarr", cluster, bad, prefix=unprivileged))
        watch.wait_until(committed(watch, 12), timeout_s=120)
        ill.wait_until(committed(ill, 8), timeout_s=120)
        running.enter_context(consolidating(tmp_path / "good.zarr", consolidator))
        targets = jobs(cluster, healthy, bad, consolidator=consolidator)
        server = prometheus(targets, rules=[quickened(QUICK, tmp_path)])
        server.wait_for("count(up == 1) == 6", timeout_s=60)
        server.wait_for("dump_ingest_consolidator_newest_step == 2", timeout_s=60)
        begun = time.monotonic()
        print(f"{begun - entered:.1f} s to begin")

        for step in (2, 3, 4):
            if step > 2:
                time.sleep(15)  # others go on: a distance that stays is a job that has ended
            for rank in (0, 1, 3):
                source = recorded / f"rank_{rank}" / "LeNet" / "0" / "2"
                part = tmp_path / f"part-{rank}"
                shutil.copytree(source, part, copy_function=shutil.copyfile)
                if rank == 3 and step == 2:
                    next(iter(sorted(part.iterdir()))).chmod(0)
                part.rename(dump / source.relative_to(recorded).with_name(f"{step}"))
        here = f"127.0.0.1:{bad}"
        for alert in ("RankStalled", "LagHigh", "CannotRead"):
            firing = f'count_over_time(ALERTS{{alertname="DumpIngest{alert}", alertstate="firing"}}[1h])'
            server.wait_for(firing, timeout_s=90)
        assert fired(server, "firing") - {("DumpIngestCommitsStalled", here, "3")} == {
            ("DumpIngestRankStalled", here, "2"),
            ("DumpIngestLagHigh", here, "3"),
            ("DumpIngestCannotRead", here, ""),
        }

        ill.kill()
        [down] = server.wait_for(
            'ALERTS{alertname="DumpIngestWatcherDown", alertstate="firing"}', timeout_s=60
        )
        assert down.labels["instance"] == here
        print(f"an hour of rules is {3600 / QUICK:g} s; {time.monotonic() - begun:.1f} s were watched")
        # Scans of a committed dump are a minute apart, which is an hour by these rules.
        seldom = ("DumpIngestWatcherStuck", f"127.0.0.1:{healthy}", "")
        others = {alert for alert in fired(server) if alert[1] != here} - {seldom}
        # Before the first scrape there is no watcher; and a scrape may have been late on a busy machine.
        late = {sample.labels["instance"] for sample in server.query("min_over_time(up[1h]) == 0")}
        assert {(name, where) for name, where, _ in others if where and where not in late} == set()
        assert watch.terminate() == 0
