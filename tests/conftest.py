"""Fixtures for all tests: real dumps, a real S3 store, a real Dask cluster, a real Prometheus."""

import gc
import os
import shutil
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from tests.hanging import HangingFiles, cannot_hang
from tests.servers import alertmanager as alertmanager_server
from tests.servers import ceph as ceph_server
from tests.servers import containers
from tests.servers import network as network_of_hosts
from tests.servers import prometheus as prometheus_server
from tests.servers.alertmanager import Alertmanager
from tests.servers.ceph import CephS3, S3Bucket
from tests.servers.cluster import DaskCluster
from tests.servers.containers import Podman
from tests.servers.network import Network
from tests.servers.prometheus import Prometheus, StartPrometheus
from tests.stores import DumpLibrary, unpack

if TYPE_CHECKING:
    from tests.servers.browser import Chromium

_not_run = pytest.StashKey[set[str]]()


@pytest.fixture(scope="session")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> DumpLibrary:
    """The packed dumps by name, read-only and shared by all tests."""
    return DumpLibrary(tmp_path_factory.mktemp("dumps"))


@pytest.fixture
def dump_copy(tmp_path: Path) -> Callable[[str], Path]:
    """Unpack a dump that only this test uses and that it may change."""
    return lambda name: unpack(name, tmp_path)


@pytest.fixture(scope="session")
def ceph(pytestconfig: pytest.Config) -> Iterator[CephS3]:
    """One S3 store for all tests. A test that kills or pauses a part of it must restore it."""
    _need(pytestconfig, ceph_server.PROGRAMS)
    with CephS3() as server:
        yield server


@pytest.fixture
def needs_ceph(pytestconfig: pytest.Config) -> None:
    """Skip a test that starts its own Ceph if Ceph is not installed. In CI, fail it."""
    _need(pytestconfig, ceph_server.PROGRAMS)


@pytest.fixture
def s3_bucket(ceph: CephS3) -> S3Bucket:
    """An empty bucket that only this test uses."""
    return ceph.make_bucket(f"test-{uuid.uuid4().hex}")


@pytest.fixture(scope="session")
def s3_environment(ceph: CephS3) -> dict[str, str]:
    """The variables that a process needs to use the S3 store."""
    return {
        "AWS_ACCESS_KEY_ID": ceph.access_key,
        "AWS_SECRET_ACCESS_KEY": ceph.secret_key,
        "AWS_ENDPOINT_URL": ceph.endpoint_url,
        "AWS_DEFAULT_REGION": "default",
        "AWS_MAX_ATTEMPTS": "2",
    }


@pytest.fixture(scope="session")
def cluster() -> Iterator[DaskCluster]:
    """One Dask scheduler with two workers, for all tests that do not kill any of them."""
    with DaskCluster(workers=2) as running:
        yield running


@pytest.fixture(scope="session")
def s3_cluster(s3_environment: dict[str, str]) -> Iterator[DaskCluster]:
    """One Dask scheduler with one worker that has the credentials of the S3 store."""
    with DaskCluster(env=s3_environment) as running:
        yield running


@pytest.fixture(scope="session")
def podman(pytestconfig: pytest.Config) -> Iterator[Podman]:
    """A container engine of its own; it keeps its images for the next test run."""
    _need(pytestconfig, containers.PROGRAMS)
    if os.geteuid() != 0:
        pytest.skip("limits of memory and networks of containers need root")
    with Podman() as engine:
        yield engine


@pytest.fixture
def unprivileged(pytestconfig: pytest.Config) -> tuple[str, ...]:
    """The words to put before a command so that file modes apply to it even if root runs the tests."""
    if os.geteuid() != 0:
        return ()
    _need(pytestconfig, ("setpriv",))
    return ("setpriv", "--bounding-set=-all", "--inh-caps=-all")


@pytest.fixture(scope="module")
def chromium(pytestconfig: pytest.Config) -> Iterator["Chromium"]:
    """One browser for the tests of a module; while it runs, this thread has an event loop."""
    from tests.servers.browser import Chromium  # deferred: Playwright takes 0.3 s, and most tests use none

    _need(pytestconfig, ("chromium",))
    with Chromium() as running:
        yield running


@pytest.fixture
def other_user(pytestconfig: pytest.Config) -> int:
    """The id of a user that owns nothing here. Only root can become it: without root, skip; in CI, fail."""
    if os.geteuid() != 0:
        _do_not_run(pytestconfig, "only root can act as a second user")
    return 65534


@pytest.fixture
def make_hanging(pytestconfig: pytest.Config) -> Iterator[Callable[[Callable[[], None]], HangingFiles]]:
    """Make files hang when another process reads them, until the test ends."""
    if reason := cannot_hang():
        _do_not_run(pytestconfig, reason)
    with ExitStack() as hanging:
        yield lambda on_hang: hanging.enter_context(HangingFiles(on_hang))


@pytest.fixture
def cluster_port(cluster: DaskCluster) -> int:
    """The port of a scheduler without TLS."""
    return int(cluster.address.rpartition(":")[2])


@pytest.fixture
def make_network(pytestconfig: pytest.Config) -> Iterator[Callable[[list[str]], Network]]:
    """Make hosts with given names from network namespaces; they exist until the test ends."""
    _need(pytestconfig, network_of_hosts.PROGRAMS)
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    with ExitStack() as networks:
        yield lambda hosts: networks.enter_context(Network(hosts))


@pytest.fixture
def prometheus(pytestconfig: pytest.Config) -> Iterator[StartPrometheus]:
    """Start a Prometheus that scrapes given targets until the test ends."""
    _need(pytestconfig, prometheus_server.PROGRAMS)
    with ExitStack() as servers:

        def start(
            targets: Sequence[str] | Mapping[str, Sequence[str]],
            *,
            rules: Sequence[Path] = (),
            settings: Mapping[str, Any] | None = None,
        ) -> Prometheus:
            return servers.enter_context(Prometheus(targets, rules=rules, settings=settings))

        yield start


@pytest.fixture
def alertmanager(pytestconfig: pytest.Config) -> Iterator[Callable[[Path], Alertmanager]]:
    """Start an Alertmanager with a given configuration, whose webhooks the test receives."""
    _need(pytestconfig, alertmanager_server.PROGRAMS)
    with ExitStack() as servers:
        yield lambda config: servers.enter_context(Alertmanager(config))


@pytest.fixture(scope="session")
def torch(pytestconfig: pytest.Config) -> Any:
    """PyTorch itself, imported on first use. Skip the test if it is not installed. In CI, fail it."""
    if find_spec("torch") is None:
        _do_not_run(pytestconfig, "not installed: PyTorch (make torch)")
    return import_module("torch")


@pytest.fixture(scope="session")
def jax(pytestconfig: pytest.Config) -> None:
    """Skip the test if JAX or flax is not installed. In CI, fail it."""
    if find_spec("jax") is None or find_spec("flax") is None:
        _do_not_run(pytestconfig, "not installed: JAX, flax (make torch)")


@pytest.fixture(scope="session")
def torch_tools(pytestconfig: pytest.Config) -> None:
    """Skip the test if PyTorch or a dump system for it is not installed. In CI, fail it."""
    tools = ("torch", "msprobe", "nvdlfw_inspect", "sglang", "transformer_engine", "zmq")
    missing = [name for name in tools if find_spec(name) is None]
    if missing:
        _do_not_run(pytestconfig, f"not installed: {', '.join(missing)} (make torch)")


@pytest.fixture(scope="session")
def nets(torch: Any) -> ModuleType:  # noqa: ARG001  (it must be there)
    """The models of `tests.torch_models`, which imports PyTorch."""
    return import_module("tests.torch_models")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for garbage neither while tests are collected nor, later, among what that made: it all stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_not_run] = set()
    # Hundreds of tests start processes, and compiling the sources takes half of each start.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Of a test that is marked `one_in(n)`, leave all cases but every n-th to campaigns."""
    seen: Counter[str] = Counter()
    for item in items:
        if (mark := item.get_closest_marker("one_in")) is not None:
            name = item.nodeid.partition("[")[0]
            if seen[name] % mark.args[0]:
                item.add_marker("campaign")
            seen[name] += 1


def _need(config: pytest.Config, programs: Sequence[str]) -> None:
    """Skip the test if a server is not installed. In CI, fail it."""
    missing = [program for program in programs if shutil.which(program) is None]
    if not missing:
        return
    _do_not_run(config, f"not installed: {', '.join(missing)} (make servers)")


def _do_not_run(config: pytest.Config, reason: str) -> NoReturn:
    """Skip the test, and repeat the reason at the end. In CI, fail it."""
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    config.stash[_not_run].add(reason)
    pytest.skip(reason)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Repeat at the end which servers were missing: a skipped server test proves nothing."""
    reasons = config.stash[_not_run]
    for reason in sorted(reasons):
        terminalreporter.write_line(f"TESTS DID NOT RUN: {reason}", red=True, bold=True)
