"""Whom a connection to Dask lets in."""

from pathlib import Path

import dask
import pytest
from distributed import LocalCluster
from distributed.utils import get_ip

from ingest.dispatch.cluster import Cluster, check_encryption, is_open
from ingest.settings import load
from tests.cli import run
from tests.dumps import DumpLibrary
from workers.errors import ClusterError


@pytest.mark.parametrize(
    "address",
    [
        "tcp://10.0.0.7:8786",
        "tcp://[fe80::1]:8786",
        "tcp://scheduler:8786",
        "ws://scheduler:80",
        "tcp://0.0.0.0:1",
    ],
)
def test_what_others_can_reach_is_open(address: str) -> None:
    assert is_open(address)


@pytest.mark.dask
def test_a_command_warns_of_a_scheduler_that_others_can_reach(dumps: DumpLibrary, tmp_path: Path) -> None:
    """Whoever reaches it can run code: that is said, once, even though everything works."""
    own = get_ip()
    if not is_open(f"tcp://{own}:1"):
        pytest.skip("this machine has no address but loopback")
    with LocalCluster(
        host=own,
        processes=False,
        protocol="tcp",
        n_workers=1,
        threads_per_worker=1,
        dashboard_address=f"{own}:0",
    ) as cluster:
        words = ("--store", tmp_path / "run.zarr", "--scheduler", cluster.scheduler_address)
        done = run("ingest", dumps["nan-log-2rank"] / "dump", *words)
        assert done.stderr.count("is not encrypted") == 1
        assert "use tls://" in done.stderr


@pytest.mark.parametrize(
    ("address", "config", "said"),
    [
        ("tls://10.0.0.1:8786", {}, "no certificate for tls://10.0.0.1:8786"),
        ("tcp://10.0.0.1:8786", {"distributed.comm.require-encryption": True}, "is not encrypted"),
    ],
)
def test_an_address_that_does_not_go_with_the_configuration_is_refused_at_once(
    address: str, config: dict[str, object], said: str
) -> None:
    """Dask would wait for its timeout, and then print a traceback."""
    with dask.config.set(config), pytest.raises(ClusterError, match=said):
        check_encryption(address)


@pytest.mark.parametrize(
    ("told", "error"),
    [
        ("ModuleNotFoundError(\"No module named 'workers'\")", ClusterError),
        ("MemoryError()", RuntimeError),
    ],
)
def test_workers_without_dump_ingest_are_named_and_other_errors_are_kept(
    told: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        scheduler = None

        def get_versions(self, **_: object) -> None: ...

        def register_plugin(self, _: object) -> None:
            raise RuntimeError(told)

    monkeypatch.setattr(Cluster, "reach", lambda _: Refusing())
    with pytest.raises(error, match=told[:11]):
        Cluster(load(scheduler="tcp://127.0.0.1:1").settings).connect()
