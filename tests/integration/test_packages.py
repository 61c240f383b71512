"""Wheel, image and tour: what is in them, and that they run."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.charts import RELEASE, changed, objects, profile
from tests.cli import environment
from tests.demo import STEPS
from tests.servers.ceph import CephS3
from tests.servers.compose import Compose, forwarded, program_options
from tests.servers.containers import Container, Podman, stopped
from tests.servers.pods import Pods
from tests.stores import unpack
from tests.tour import RULES

# Wheel, image and tour: what is in them, and that they run.


# Wheel and source distribution: what is in them, and the demo with nothing of the repository at hand.


ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES: list[str] = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
UV = Path(sys.executable).with_name("uv")


@dataclass(frozen=True)
class Built:
    """What `make dist` makes."""

    wheel: Path
    sdist: Path


def call(words: Sequence[str | Path], cwd: Path, *, code: int | None = 0) -> subprocess.CompletedProcess[str]:
    """Run a program that has no environment variable by which it could import from this repository.

    It finds the compiled kernels there, if its sources of them are the same: they take half a minute.
    """
    env = {name: value for name, value in environment().items() if not name.startswith("PYTHON")}
    env["NUMBA_CACHE_DIR"] = str(ROOT / "workers" / "arrays" / "compiled" / "__pycache__")
    done = subprocess.run(
        words,
        cwd=cwd,
        env=env,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )
    assert code is None or done.returncode == code, f"{done.stdout}\n{done.stderr}"
    return done


def build(source: Path, into: Path, *targets: str) -> list[Path]:
    chosen = [word for target in targets for word in ("-t", target)]
    call([sys.executable, "-m", "hatchling", "build", *chosen, "-d", into], source)
    return sorted(into.iterdir())


def content_of(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    wheel, sdist = build(ROOT, tmp_path_factory.mktemp("dist"))
    return Built(wheel, sdist)


def test_wheel_has_every_file_of_the_packages_and_nothing_else(built: Built) -> None:
    """Rules, templates, what protoc made, and the marks of typed packages; no test, no cache."""
    packed = {name for name in content_of(built.wheel) if ".dist-info/" not in name}
    ours = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == ours
    assert {f"{package}/py.typed" for package in PACKAGES} <= packed
    for end in (".yml", ".j2", ".proto", "_pb2.py", "_pb2.pyi"):
        assert any(name.endswith(end) for name in packed), end


def test_source_distribution_makes_the_same_wheel(built: Built, tmp_path: Path) -> None:
    call(["tar", "-xf", built.sdist], tmp_path)
    (source,) = tmp_path.iterdir()
    assert not (source / "tests").exists()
    (again,) = build(source, tmp_path / "dist", "wheel")
    assert content_of(again) == content_of(built.wheel)


@pytest.mark.slow
@pytest.mark.dask
@pytest.mark.timeout(600)
def test_demo_runs_from_the_wheel_and_its_declared_dependencies_alone(built: Built, tmp_path: Path) -> None:
    """In an environment of its own, far from the repository; what is not declared would be missing."""
    prefix = tmp_path / "environment"
    call([UV, "venv", "--quiet", "--no-project", "--python", sys.executable, prefix], tmp_path)
    install(built.wheel, prefix)

    version = call([prefix / "bin" / "dump-ingest", "--version"], tmp_path).stdout
    assert version.split() == ["dump-ingest", PROJECT["project"]["version"]]
    where = "import ingest, workers; print(ingest.__file__, workers.__file__)"
    for path in call([prefix / "bin" / "python", "-c", where], tmp_path).stdout.split():
        assert Path(path).is_relative_to(prefix)

    (tmp_path / "demo").mkdir()
    (unpack("nan-log-2rank", tmp_path) / "dump").rename(tmp_path / "demo" / "dump")
    said = [
        call([prefix / "bin" / "dump-ingest", *shlex.split(command)], tmp_path).stdout for _, command in STEPS
    ]
    assert "NaN was born in Log" in said[-1]


def install(wheel: Path, prefix: Path) -> None:
    """Install from uv's cache, which the installation that runs this test has filled; else from the index."""
    pins = ROOT / "requirements" / "runtime.txt"
    into: list[str | Path] = ["--python", prefix / "bin" / "python"]
    words = [UV, "pip", "install", "--quiet", *into, "--only-binary", ":all:", "--constraint", pins, wheel]
    if call([*words, "--offline"], prefix, code=None).returncode:
        call(words, prefix)
    call([UV, "pip", "check", *into], prefix)


# Every version of Python that is supported: by the metadata of what is installed, and in bare containers.

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
#: Installs the wheel as a user does, asks the demo, and prints version, MB, and seconds of `import ingest`.
BARE = """
set -e
python3 -m venv /tmp/v
/tmp/v/bin/pip install --quiet --only-binary :all: /wheel/*.whl
cp -r /dump/dump /tmp/dump
cd /tmp
v/bin/dump-ingest ingest dump --store run.zarr >&2
v/bin/dump-ingest origin run.zarr
v/bin/pip uninstall --quiet --yes pip
find v -name __pycache__ -prune -exec rm -r {} +
du -sm v
v/bin/python -c 'import ingest'
v/bin/python -c 'import time; t = time.perf_counter(); import ingest; print(time.perf_counter() - t)'
v/bin/python --version
"""


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("version", "release"), [("3.11", "bookworm"), ("3.13", "trixie"), ("3.14", "forky")]
)
def test_the_wheel_installs_and_answers_in_a_bare_container(
    built: Built, podman: Podman, tmp_path: Path, version: str, release: str
) -> None:
    """Debian's own Python of that version, and what the package index has: no compiler, nothing else."""
    image, dump = podman.bare(release), unpack("nan-log-2rank", tmp_path)
    mounts = [*podman.package_sources(), f"{built.wheel.parent}:/wheel:ro", f"{dump}:/dump:ro"]
    volumes = [word for mount in mounts for word in ("--volume", mount)]
    said = podman("run", "--rm", "--network=host", *volumes, image, "sh", "-c", BARE, timeout_s=1500)
    print(said)
    assert "NaN was born in Log" in said
    assert said.splitlines()[-1].startswith(f"Python {version}.")


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_the_wheel_installs_and_answers_with_a_python_that_debian_lacks(built: Built, tmp_path: Path) -> None:
    """3.12, which no release of Debian has: in an environment of its own, if it is on this machine."""
    others = [str(path) for path in Path.home().glob(".pyenv/versions/3.12.*/bin")]
    path = os.pathsep.join([*others, os.environ["PATH"]])
    if (python := shutil.which("python3.12", path=path)) is None:
        pytest.skip("there is no Python 3.12")
    call([UV, "venv", "--quiet", "--no-project", "--python", python, tmp_path / "v"], tmp_path)
    install(built.wheel, tmp_path / "v")
    unpack("nan-log-2rank", tmp_path).rename(tmp_path / "demo")
    for _, command in STEPS:
        said = call([tmp_path / "v" / "bin" / "dump-ingest", *shlex.split(command)], tmp_path).stdout
    assert "NaN was born in Log" in said


@pytest.mark.campaign
@pytest.mark.parametrize("platform", ["x86_64-manylinux_2_28", "aarch64-manylinux_2_28"])
@pytest.mark.parametrize("version", VERSIONS)
def test_every_dependency_has_a_wheel(built: Built, tmp_path: Path, version: str, platform: str) -> None:
    """By the metadata of the package index, for a machine that is not here."""
    (tmp_path / "wanted.txt").write_text(f"dump-ingest @ {built.wheel.as_uri()}\n")
    where = ["--python-version", version, "--python-platform", platform, "--only-binary", ":all:"]
    found = call([UV, "pip", "compile", "--quiet", "--no-annotate", *where, "wanted.txt"], tmp_path).stdout
    pinned = {line.partition("==")[0] for line in found.splitlines()}
    assert {re.match(r"[\w.-]+", each)[0] for each in PROJECT["project"]["dependencies"]} <= pinned  # type: ignore[index]


# The Dockerfile, as text; it is built and run below.

DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()


def test_the_base_of_the_image_is_pinned() -> None:
    stages = re.findall(r"^FROM \S+ AS (\S+)", DOCKERFILE, re.MULTILINE)
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert set(bases) - {*stages} == {"${PYTHON_IMAGE}"}
    assert re.search(r"^ARG PYTHON_IMAGE=\S+:[\w.-]+@sha256:[0-9a-f]{64}$", DOCKERFILE, re.MULTILINE)


def test_image_runs_as_a_number_other_than_root() -> None:
    """Kubernetes can tell that a name is not root only by its number."""
    assert re.search(r"^ARG UID=[1-9]\d*$", DOCKERFILE, re.MULTILINE)
    assert DOCKERFILE.rindex("USER ${UID}:${UID}") > DOCKERFILE.rindex("\nRUN ")


def test_image_is_made_of_what_is_there_and_not_ignored() -> None:
    admitted = re.findall(r"^!(.*)", (ROOT / "deploy" / "Dockerfile.dockerignore").read_text(), re.MULTILINE)
    copied = [
        source
        for line in re.findall(r"^COPY (?!--from)(.*)", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    ]
    assert "ingest" in copied
    for source in copied:
        assert (ROOT / source).exists()
        assert {source, *map(str, Path(source).parents)} & {*admitted}


# `make tour`: what a newcomer clicks through is there, and is gone afterwards.


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310  (of the tour itself)
        body: bytes = answer.read()
        return body.decode()


@pytest.mark.dask
@pytest.mark.slow
def test_every_address_answers_and_ctrl_c_ends_it_all(tmp_path: Path) -> None:
    words = ["--directory", str(tmp_path / "tour"), "--every", "0.5", "--healthy", "1"]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.tour", *words], stdout=subprocess.PIPE, text=True, bufsize=1
    ) as tour:
        assert tour.stdout is not None
        try:
            said = ""
            while not re.search(r"rank 1 step [2-9]", said):
                line = tour.stdout.readline()
                assert line, said
                said += line
            urls = re.findall(r"http://\S+", said)
            assert len(urls) >= 4
            for url in urls:
                assert get(url)
            if prometheus := re.search(r"(http://[\d.:]+)\S*/alerts", said):
                rules = json.loads(get(f"{prometheus[1]}/api/v1/rules"))["data"]["groups"]
                assert {group["file"] for group in rules} == {str(RULES)}
                listing = f"{prometheus[1]}/api/v1/targets"
                for _ in range(60):
                    targets = json.loads(get(listing))["data"]["activeTargets"]
                    if [target["health"] for target in targets] == ["up"] * 5:
                        break
                    time.sleep(0.25)
                assert {target["health"] for target in targets} == {"up"}
                assert len(targets) == 5
        finally:
            tour.send_signal(signal.SIGINT)
        tour.wait(40)
        assert tour.returncode == 0
    assert (tmp_path / "tour" / "run.zarr" / "rank_1" / "step_2" / "zarr.json").exists()
    with pytest.raises(OSError):  # noqa: PT011  (whatever says that nobody listens)
        get(urls[-1])


def test_make_has_it() -> None:
    assert re.search(
        r"^tour: .*\n\t.*-m tests\.tour$", (RULES.parents[2] / "Makefile").read_text(), re.MULTILINE
    )


# The image of deploy/Dockerfile, built and run: what it may write, its limits, its health, its end.


DEPLOY = Path(__file__).parents[2] / "deploy"
TOUR = DEPLOY / "compose" / "compose.yaml"
NOT_FINITE = 'count by (alertname) (ALERTS{alertname="DumpIngestNotFinite", alertstate="firing"})'
#: A user without a name.
UID = 54321
#: As docs/deployment.md runs it.
SHUT_OFF = ("--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges")
RUN_STEPS = {f"rank_{rank}/step_{step}" for step in (1, 2, 3) for rank in (0, 1)}


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


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_kernels_are_loaded_and_not_compiled(podman: Podman, image: str) -> None:
    load = "import sys; from workers.arrays.compiled import kernels; kernels.warm_up()"
    code = f"{load}; print('numba' in sys.modules)"
    said = podman("run", "--rm", *SHUT_OFF, "--entrypoint=python", image, "-c", code)
    assert said.split() == ["False"]


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_it_takes_a_dump_in_read_only_and_as_a_user_without_a_name(
    podman: Podman, image: str, site: Site
) -> None:
    words = ("ingest", "/dump/dump", "--store", "/store/run.zarr", "--quiet", "0", "--workers", "1")
    podman("run", "--rm", "--network=none", *site.options, image, *words)
    assert site.steps == RUN_STEPS


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_a_wrong_user_is_told_in_one_line_what_to_do(podman: Podman, image: str, site: Site) -> None:
    done = podman.run("run", "--rm", *site.options, "--user=4711:4711", image, "doctor", "/dump/dump")
    assert done.returncode != 0
    assert "54321" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize("init", [(), ("--init",)], ids=["alone", "under-an-init"])
def test_it_is_healthy_until_it_hangs_and_drains_at_sigterm(
    podman: Podman, image: str, site: Site, init: Sequence[str]
) -> None:
    watcher = podman.start(image, *WATCH, options=[*init, *site.options])
    watcher.wait_until(watcher.is_healthy)
    watcher.wait_until(lambda: site.steps == RUN_STEPS)
    assert watcher.is_healthy()
    with stopped(main_process(watcher)):
        assert not watcher.is_healthy()
    watcher.wait_until(watcher.is_healthy)
    assert watcher.stop() == 0
    assert "stopped" in watcher.logs
    assert "Traceback" not in watcher.logs


@pytest.mark.campaign
@pytest.mark.timeout(900)
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
    enough.wait_until(lambda: site.steps == RUN_STEPS)


@pytest.mark.campaign
@pytest.mark.timeout(900)
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
    host.wait_until(lambda: site.steps == RUN_STEPS and main_pid() > 0)
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


@pytest.mark.campaign
@pytest.mark.timeout(900)
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
    containers["watcher"].wait_until(lambda: site.steps == RUN_STEPS)
    containers |= pods.play(f"{RELEASE}-dump-ingest-page", **volumes)
    containers["page"].wait_until(containers["page"].is_healthy)
    with stopped(main_process(containers["scheduler"])):
        assert not containers["scheduler"].is_healthy()
    for role in ("page", "watcher", "consolidator", "worker", "scheduler"):
        name = f"{RELEASE}-dump-ingest-{role}"
        pods.end(name, grace_s=pods.grace_s(name))
        state = containers[role].state
        assert (state["ExitCode"], state["OOMKilled"]) == (0, False), containers[role].logs[-2000:]


@pytest.mark.campaign
@pytest.mark.timeout(900)
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
