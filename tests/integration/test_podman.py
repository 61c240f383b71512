"""The image of deploy/Dockerfile, built and run: what it may write, its limits, its health, its end."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.charts import RELEASE, changed, objects, profile
from tests.servers.ceph import CephS3
from tests.servers.compose import Compose, forwarded, program_options
from tests.servers.containers import Container, Podman, stopped
from tests.servers.pods import Pods
from tests.stores import unpack

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(900)]
DEPLOY = Path(__file__).parents[2] / "deploy"
TOUR = DEPLOY / "compose" / "compose.yaml"
NOT_FINITE = 'count by (alertname) (ALERTS{alertname="DumpIngestNotFinite", alertstate="firing"})'
#: A user without a name.
UID = 54321
#: As docs/deployment.md runs it.
SHUT_OFF = ("--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges")
STEPS = {f"rank_{rank}/step_{step}" for step in (1, 2, 3) for rank in (0, 1)}


@pytest.fixture(scope="module")
def image(podman: Podman) -> str:
    """The image of this checkout."""
    return podman.image()


class Site:
    """A directory with a dump that only its user can read, and a place for the store."""

    def __init__(self, top: Path) -> None:
        self.dump = unpack("nan-log-2rank", top)
        self.store = top / "store"
        self.store.mkdir()
        for path in (self.dump, *self.dump.rglob("*"), self.store):
            path.chmod(0o700 if path.is_dir() else 0o400)
            os.chown(path, UID, UID)

    @property
    def options(self) -> Sequence[str]:
        """How a container gets them."""
        return (
            *SHUT_OFF,
            f"--user={UID}:{UID}",
            f"--volume={self.dump}:/dump:ro",
            f"--volume={self.store}:/store",
        )

    @property
    def steps(self) -> set[str]:
        """What is committed, as `rank_1/step_2`."""
        store = self.store / "run.zarr"
        return {str(leaf.parent.relative_to(store)) for leaf in store.glob("rank_*/step_*/zarr.json")}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


WATCH = (
    "watch",
    "/dump/dump",
    "--store",
    "/store/run.zarr",
    "--quiet",
    "0",
    "--workers",
    "1",
    "--metrics",
    "0.0.0.0:9108",
)


def test_kernels_are_loaded_and_not_compiled(podman: Podman, image: str) -> None:
    load = "import sys; from workers.arrays.compiled import kernels; kernels.warm_up()"
    code = f"{load}; print('numba' in sys.modules)"
    said = podman("run", "--rm", *SHUT_OFF, "--entrypoint=python", image, "-c", code)
    assert said.split() == ["False"]


def test_it_takes_a_dump_in_read_only_and_as_a_user_without_a_name(
    podman: Podman, image: str, site: Site
) -> None:
    words = ("ingest", "/dump/dump", "--store", "/store/run.zarr", "--quiet", "0", "--workers", "1")
    podman("run", "--rm", "--network=none", *site.options, image, *words)
    assert site.steps == STEPS


def test_a_wrong_user_is_told_in_one_line_what_to_do(podman: Podman, image: str, site: Site) -> None:
    done = podman.run("run", "--rm", *site.options, "--user=4711:4711", image, "doctor", "/dump/dump")
    assert done.returncode != 0
    assert "54321" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("init", [(), ("--init",)], ids=["alone", "under-an-init"])
def test_it_is_healthy_until_it_hangs_and_drains_at_sigterm(
    podman: Podman, image: str, site: Site, init: Sequence[str]
) -> None:
    watcher = podman.start(image, *WATCH, options=[*init, *site.options])
    watcher.wait_until(watcher.is_healthy)
    watcher.wait_until(lambda: site.steps == STEPS)
    assert watcher.is_healthy()
    with stopped(main_process(watcher)):
        assert not watcher.is_healthy()
    watcher.wait_until(watcher.is_healthy)
    assert watcher.stop() == 0
    assert "stopped" in watcher.logs
    assert "Traceback" not in watcher.logs


def test_the_kernel_ends_what_takes_more_than_its_memory_and_it_starts_again(
    podman: Podman, image: str, site: Site
) -> None:
    options = [*site.options, "--memory=40m", "--memory-swap=40m", "--restart=on-failure:2"]
    watcher = podman.start(image, *WATCH, options=options)
    watcher.wait_until(lambda: watcher.state["RestartCount"] == 2)
    watcher.wait_until(lambda: watcher.state["Status"] == "exited")
    assert watcher.state["ExitCode"] == 137
    assert site.steps == set()
    enough = podman.start(image, *WATCH, options=[*site.options, "--memory=1g"])
    enough.wait_until(lambda: site.steps == STEPS)


def test_systemd_restarts_a_watcher_that_hangs(podman: Podman, image: str, site: Site) -> None:
    """The units as they are shipped, below a real systemd, and with all that they forbid."""
    options = [
        *("--systemd=always", "--privileged", "--network=none", "--user=0"),
        "--entrypoint=/lib/systemd/systemd",
        *(f"--volume={DEPLOY}:/deploy:ro", f"--volume={site.dump}:/dump:ro", f"--volume={site.store}:/store"),
    ]
    host = podman.start(image, options=options)
    unit = "dump-ingest-watcher@job"

    def sh(command: str, *, code: int | None = 0) -> str:
        return podman("exec", "--user=0", host.name, "sh", "-c", command, code=code)

    def main_pid() -> int:
        return int(sh(f"systemctl show -P MainPID {unit}", code=None) or 0)

    host.wait_until(lambda: sh("systemctl is-system-running", code=None) == "running")
    sh(f"/deploy/systemd/install.sh --units; useradd --uid {UID} trainer")
    own = "/etc/systemd/system/dump-ingest-watcher@.service.d"
    files = {
        "/etc/default/dump-ingest": "DUMP_INGEST_STORE=/store/run.zarr\nDUMP_INGEST_WORKERS=1\n"
        "DUMP_INGEST_WORKER_RESOURCES=\nDUMP_INGEST_QUIET_S=0\n",
        "/etc/default/dump-ingest-watcher@job": "DUMP=/dump/dump\n",
        # Ten minutes are six seconds.
        f"{own}/user.conf": "[Service]\nUser=trainer\nReadWritePaths=/store\nWatchdogSec=6s\nRestartSec=1\n",
    }
    for path, text in files.items():
        sh(f"mkdir -p $(dirname {path}); printf '{text}' >{path}")
    sh(f"systemctl daemon-reload; systemctl start {unit}", code=None)
    host.wait_until(lambda: site.steps == STEPS and main_pid() > 0)
    hanging = main_pid()
    sh(f"kill -STOP {hanging}")
    host.wait_until(lambda: main_pid() not in {0, hanging})
    assert "Watchdog timeout (limit 6s)" in sh(f"journalctl -o cat --no-pager -u {unit}")
    sh(f"systemctl stop {unit}")
    assert sh(f"systemctl show -P Result {unit}") == "success"


@pytest.fixture
def pods(podman: Podman, image: str) -> Iterator[Pods]:
    """What the chart renders for a dump and a store on a shared file system."""
    values = profile("deployment")
    del values["webhook"], values["config"]["webhook"]
    values["config"] |= {"store": "/store/run.zarr", "quiet_s": 0}
    values["dump"] |= {"runAsUser": UID, "runAsGroup": UID, "directory": "/dumps/dump"}
    values |= {"gc": {"enabled": False}, "dask": {"tls": {"enabled": False}}}
    page = {"page__enabled": True, "page__allowAnyone": True}
    made = Pods(podman, objects(changed(values, worker__replicas=1, **page)), image=image)
    try:
        yield made
    finally:
        made.close()


def test_the_pods_of_the_chart_ingest_a_dump_answer_their_probes_and_end_in_time(
    pods: Pods, site: Site
) -> None:
    volumes = {
        f"dump-ingest-{name}": {"hostPath": {"path": str(path)}}
        for name, path in (("dump", site.dump), ("store", site.store))
    }
    containers: dict[str, Container] = {}
    for role in ("scheduler", "worker", "watcher", "consolidator"):
        containers |= pods.play(f"{RELEASE}-dump-ingest-{role}", **volumes)
    for container in containers.values():
        container.wait_until(container.is_healthy)
    containers["watcher"].wait_until(lambda: site.steps == STEPS)
    containers |= pods.play(f"{RELEASE}-dump-ingest-page", **volumes)
    containers["page"].wait_until(containers["page"].is_healthy)
    with stopped(main_process(containers["scheduler"])):
        assert not containers["scheduler"].is_healthy()
    for role in ("page", "watcher", "consolidator", "worker", "scheduler"):
        name = f"{RELEASE}-dump-ingest-{role}"
        pods.end(name, grace_s=pods.grace_s(name))
        state = containers[role].state
        assert (state["ExitCode"], state["OOMKilled"]) == (0, False), containers[role].logs[-2000:]


def test_the_tour_of_compose_comes_up_and_its_alert_fires(podman: Podman, image: str, ceph: CephS3) -> None:
    """All services but Grafana, whose image cannot be made here; Ceph stands in for MinIO."""
    store = {"AWS_ACCESS_KEY_ID": ceph.access_key, "AWS_SECRET_ACCESS_KEY": ceph.secret_key}
    tour = Compose(podman, TOUR, environment={**store, "AWS_DEFAULT_REGION": "default"})
    tour.up("scheduler", image)  # the network has its gateway when it has a container
    with forwarded(tour.gateway, 9000, int(ceph.endpoint_url.rpartition(":")[2])):
        for name in ("bucket", "volume", "worker", "watcher", "consolidator", "writer"):
            tour.up(name, image, f"--add-host=s3:{tour.gateway}")
        tour.up(
            "prometheus",
            podman.base(),
            "--user=65534:65534",
            "--tmpfs=/prometheus",
            *program_options("prometheus"),
        )
        [prometheus] = tour.containers["prometheus"]

        def asked(expression: str) -> set[str]:
            """Return the values of the first label of what Prometheus answers."""
            code = (
                "import json, sys, urllib.parse as p, urllib.request as u\n"
                "url = 'http://127.0.0.1:9090/api/v1/query?' + p.urlencode({'query': sys.argv[1]})\n"
                "series = json.load(u.urlopen(url))['data']['result']\n"
                "print(*(next(iter(each['metric'].values())) for each in series))"
            )
            return set(podman("exec", prometheus.name, "python3", "-c", code, expression, code=None).split())

        roles = {f"dump-ingest-{role}" for role in ("watcher", "consolidator", "scheduler", "worker")}
        prometheus.wait_until(lambda: asked("count by (job) (up == 1)") == roles, timeout_s=120)
        prometheus.wait_until(lambda: bool(asked(NOT_FINITE)), timeout_s=240)
        origin = tour.run("ask", image, [f"--add-host=s3:{tour.gateway}"], "origin", "s3://dumps/run.zarr")
        assert "Log" in origin
        tour.down()


def main_process(container: Container) -> int:
    """Return the id, on this machine, of the process with the role: the first one, or its child."""
    first = int(container.state["Pid"])
    children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
    command = Path(f"/proc/{first}/cmdline").read_bytes()
    return int(children[0]) if b"catatonit" in command or b"podman-init" in command else first
