"""Run containers for real: Podman with its own storage, and the image that deploy/Dockerfile builds."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlparse

from tests.servers.process import ServerError

PROGRAMS = ("podman", "runc", "catatonit", "iptables", "mmdebstrap")
ROOT = Path(__file__).parents[2]
#: What the image is made from.
SOURCES = (
    "deploy/Dockerfile",
    "deploy/container",
    "deploy/slurm",
    "ingest",
    "pyproject.toml",
    "requirements",
    "workers",
)
#: What its layer of dependencies is made from.
DEPENDENCIES = ("deploy/Dockerfile", "deploy/container/dependencies.sh", "requirements")
_CA = "/etc/ssl/certs/ca-certificates.crt"
_STORAGE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dump-ingest-tests"
#: What it has besides what the program needs: systemd, to run the units.
_PACKAGES = "python3,python3-venv,ca-certificates,systemd"
_BASE = f"localhost/dump-ingest-test-base:{platform.machine()}-{_PACKAGES.replace(',', '-')}"
_BARE = "python3,python3-venv,ca-certificates"
_BUILD_S = 900
#: Open files, and processes, of a container: Podman would ask for more than this process may have.
_MOST = 4096


class Podman:
    """An engine whose images outlive it, for the next test run; containers, volumes and networks do not."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="podman-")
        self.root = Path(self._directory.name)
        self.root.chmod(0o755)
        _STORAGE.mkdir(parents=True, exist_ok=True)
        #: Containers, networks and volumes that are made here have this label.
        self.label = f"dump-ingest-test={uuid.uuid4().hex}"
        self._configure()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove what was made, and images that no test has used for two days."""
        removals = {"container": ["--force", "--time=0"], "volume": ["--force"], "network": ["--force"]}
        for kind, options in removals.items():
            every = ["--all"] if kind == "container" else []
            names = self(kind, "ls", "--quiet", "--filter", f"label={self.label}", *every).split()
            if names:
                self(kind, "rm", *options, *names)
        # Podman refuses to remove what a build of another process is based on: the next engine removes it.
        self.run("image", "prune", "--force")
        self.run("image", "prune", "--all", "--force", "--filter", "until=48h")
        self._directory.cleanup()

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which Podman, and what calls it, uses this engine."""
        return {
            **os.environ,
            "CONTAINERS_CONF": str(self.root / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.root / "storage.conf"),
        }

    def __call__(self, *words: object, timeout_s: float = 120, code: int | None = 0) -> str:
        """Run a command of Podman; return what it prints.

        Raises:
            ServerError: it ended with another code than `code`; None for any.
        """
        done = self.run(*words, timeout_s=timeout_s)
        if code is not None and done.returncode != code:
            raise ServerError(f"podman {' '.join(map(str, words))}: {done.returncode}\n{done.stderr[-4000:]}")
        return done.stdout.strip()

    def run(self, *words: object, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a command of Podman, whatever it ends with."""
        return subprocess.run(
            ["podman", *map(str, words)],
            cwd=self.root,  # conmon leaves a file there when the kernel ends a container: `oom`
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def start(self, image: str, *command: object, options: Sequence[object] = ()) -> Container:
        """Start a container in the background; it is removed when the engine ends."""
        return Container(self, self("run", "--detach", "--label", self.label, *options, image, *command))

    def image(self) -> str:
        """Return the image of this checkout; build it, which takes a minute, unless that was done already."""
        tag = f"localhost/dump-ingest-test:{_fingerprint_of(SOURCES)}"
        if self.run("image", "exists", tag).returncode:
            self._build(tag)
        return tag

    def base(self) -> str:
        """Return an image of Debian's packages, as tests run where no registry of images can be reached."""
        release = re.search(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), re.MULTILINE)
        return self._made(_BASE, _PACKAGES, release[1] if release else "bookworm")

    def bare(self, release: str) -> str:
        """Return an image of a release of Debian that has its Python, and nothing of ours."""
        name = f"localhost/dump-ingest-test-bare:{platform.machine()}-{release}"
        return self._made(name, _BARE, release, "http://deb.debian.org/debian")

    def _build(self, tag: str) -> None:
        """Build the image of this checkout on the layer of its dependencies, which outlives this engine."""
        dependencies = f"localhost/dump-ingest-test-dependencies:{_fingerprint_of(DEPENDENCIES)}"
        self._run_build(dependencies, "--target=dependencies")
        self._run_build(tag)

    def _run_build(self, tag: str, *options: str) -> None:
        done = subprocess.run(
            [
                ROOT / "deploy" / "container" / "image.sh",
                tag,
                *("--build-arg", f"PYTHON_IMAGE={self.base()}", "--network=host", "--layers"),
                *(word for mount in self.package_sources() for word in ("--volume", mount)),
                *options,
            ],
            env={**self.environment, "ENGINE": "podman"},
            capture_output=True,
            text=True,
            timeout=_BUILD_S,
            check=False,
        )
        if done.returncode:
            raise ServerError(f"the image cannot be built\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")

    def _made(self, name: str, packages: str, *release: str) -> str:
        """Return an image of Debian's packages; make it, unless that was done already."""
        if not self.run("image", "exists", name).returncode:
            return name
        archive = self.root / "base.tar"
        # The lists of a release in the making are valid for a week, and a mirror may be older.
        valid = '--aptopt=Acquire::Check-Valid-Until "false"'
        options = ["--quiet", "--variant=minbase", valid, f"--include={packages}"]
        subprocess.run(
            ["mmdebstrap", *options, release[0], archive, *release[1:]], check=True, timeout=_BUILD_S
        )
        self("import", "--quiet", archive, name)
        archive.unlink()
        return name

    def package_sources(self) -> list[str]:
        """Return what to mount into a build, so that pip and uv find packages there as they do here."""
        settings = {"cert": _CA}
        listed = subprocess.run(
            [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
        )
        for name, value in re.findall(r"^(?:global|:env:)\.([\w-]+)='(.*)'$", listed.stdout, re.MULTILINE):
            settings.setdefault(name, value.replace("\\n", " ").strip())
        (self.root / "pip.conf").write_text(
            "[global]\n"
            + "".join(f"{name} = {value}\n" for name, value in settings.items() if name != "config-file")
        )
        uv = next((path for path in _uv_settings() if path.is_file()), None)
        text = uv.read_text() if uv else ""
        index = os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("UV_INDEX_URL")
        ours = {"native-tls": "true", **({"index-url": json.dumps(index)} if index else {})}
        lines = [f"{name} = {value}\n" for name, value in ours.items() if name not in text]
        (self.root / "uv.toml").write_text("".join(lines) + text)
        ca = next(
            (path for path in (os.environ.get("SSL_CERT_FILE", ""), _CA) if path and Path(path).is_file()), ""
        )
        mounts = [f"{self.root}/pip.conf:/etc/pip.conf:ro", f"{self.root}/uv.toml:/etc/uv/uv.toml:ro"]
        mounts += [f"{ca}:{_CA}:ro"] if ca else []
        # Packages may also come from directories of this machine, and constraints from a file. An index links
        # to files beside it.
        words = [word for value in settings.values() for word in value.split()]
        places = {Path(word) for word in words if word.startswith("/")}
        places |= {Path(urlparse(word).path).parent for word in words if word.startswith("file:")}
        places -= {Path(_CA), Path("/")}
        return mounts + [f"{place}:{place}:ro" for place in sorted(places) if place.exists()]

    def _configure(self) -> None:
        """Write the settings of Podman: its own storage, and limits that this process may set."""
        limits = []
        for name, kind in (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC)):
            hard = resource.getrlimit(kind)[1]
            most = _MOST if hard == resource.RLIM_INFINITY else min(_MOST, hard)
            limits.append(f'"{name}={most}:{most}"')
        (self.root / "containers.conf").write_text(
            f"[containers]\ndefault_ulimits = [{', '.join(limits)}]\n"
            '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
            '[network]\nnetwork_backend = "netavark"\n'
        )
        system = subprocess.run(
            ["stat", "-f", "-c", "%T", _STORAGE], capture_output=True, text=True, check=True
        ).stdout
        driver = "vfs" if system.strip() == "overlayfs" else "overlay"  # inside a container, perhaps
        (self.root / "storage.conf").write_text(
            f'[storage]\ndriver = "{driver}"\n'
            f'graphroot = "{_STORAGE}/containers"\nrunroot = "/run/dump-ingest-tests"\n'
        )
        _delegate_cgroups()


class Container:
    """A container that runs in the background."""

    def __init__(self, engine: Podman, name: str) -> None:
        self._engine = engine
        self.name = name

    @property
    def state(self) -> Mapping[str, Any]:
        """What Podman tells about it: Status, ExitCode, OOMKilled, Pid and so on."""
        state: dict[str, Any] = json.loads(self._engine("inspect", self.name))[0]
        return {**state["State"], "RestartCount": state["RestartCount"]}

    @property
    def logs(self) -> str:
        """What it has printed."""
        done = self._engine.run("logs", self.name)
        return done.stdout + done.stderr

    def is_healthy(self) -> bool:
        """Run its health check now, and return what comes of it."""
        return self._engine.run("healthcheck", "run", self.name).returncode == 0

    def wait_until(self, holds: Callable[[], bool], *, timeout_s: float = 90) -> None:
        """Wait for something to hold.

        Raises:
            ServerError: it does not hold in time.
        """
        deadline = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > deadline:
                raise ServerError(f"not in {timeout_s:g} s; {self.state['Status']}\n{self.logs[-4000:]}")
            time.sleep(0.2)

    def wait(self, *, timeout_s: float = 90) -> int:
        """Wait for its end; return its exit code."""
        return int(self._engine("wait", self.name, timeout_s=timeout_s))

    def remove(self, *, timeout_s: float = 60) -> None:
        """Kill it if it runs, and remove it.

        Podman 4 refuses to remove a container that ends by itself between its check and its kill ("container
        state improper"): ask again.

        Raises:
            ServerError: it is still there after that time.
        """
        deadline = time.monotonic() + timeout_s
        while (done := self._engine.run("rm", "--force", "--time=0", self.name)).returncode:
            if time.monotonic() > deadline:
                raise ServerError(f"{self.name} cannot be removed\n{done.stderr[-4000:]}")
            time.sleep(0.2)

    def stop(self, *, grace_s: int = 60) -> int:
        """Send SIGTERM, and SIGKILL after a time; return its exit code."""
        self._engine("stop", "--time", grace_s, self.name, timeout_s=grace_s + 60)
        return int(self.state["ExitCode"])


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process, given by its id on this machine, for the duration of the `with` block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _fingerprint_of(sources: Iterable[str]) -> str:
    """Return a name for the content of files and directories from which an image is made."""
    digest = hashlib.sha256(_BASE.encode())
    for source in sources:
        path = ROOT / source
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def _uv_settings() -> Iterator[Path]:
    """Yield the places where uv looks for its settings."""
    if own := os.environ.get("UV_CONFIG_FILE"):
        yield Path(own)
    yield Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "uv" / "uv.toml"
    yield Path("/etc/uv/uv.toml")


def _delegate_cgroups() -> None:
    """Inside a container with cgroups v2, move its processes aside: a group that has some sets no limits."""
    top = Path("/sys/fs/cgroup")
    controllers = top / "cgroup.subtree_control"
    if not (top / "cgroup.type").exists() or "memory" in controllers.read_text():
        return
    aside = top / "init"
    aside.mkdir(exist_ok=True)
    for pid in (top / "cgroup.procs").read_text().split():
        try:
            (aside / "cgroup.procs").write_text(pid)
        except OSError:
            continue  # it has ended meanwhile
    available = (top / "cgroup.controllers").read_text().split()
    controllers.write_text(" ".join(f"+{name}" for name in available))
