"""A cluster that lets in nobody else."""

import ssl
from contextlib import closing
from pathlib import Path

import dask
import pytest
from distributed import Client

from ingest.dispatch.own_dask_cluster import OwnDaskCluster, run_security

pytestmark = [pytest.mark.dask, pytest.mark.timeout(60)]


def test_it_works_and_cleans_up_whatever_dasks_configuration_says(tmp_path: Path) -> None:
    """That may be about another cluster: with certificates of its own, or with demands on them."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    other = {
        "temporary-directory": str(scratch),
        "distributed.comm.tls.ca-file": "/nowhere/ca.pem",
        "distributed.comm.tls.ciphers": "NONE",
        "distributed.comm.require-encryption": True,
    }
    with dask.config.set(other), closing(OwnDaskCluster(1, {"host-a": 1})) as own:
        (made,) = scratch.iterdir()
        assert made.stat().st_mode & 0o777 == 0o700
        with Client(own.cluster, set_as_default=False) as client:
            assert client.scheduler is not None
            assert client.scheduler.address.startswith("tls://127.0.0.1:")
            assert client.submit(sum, [1, 2], resources={"host-a": 1}).result() == 3
            (worker,) = client.scheduler_info()["workers"].values()
            assert worker["services"] == {}
            assert worker["local_directory"].startswith(f"{made}/")
    assert list(scratch.iterdir()) == []


def test_both_ends_must_show_the_certificate_of_the_run() -> None:
    security = run_security()
    for context in (
        security.get_listen_args("scheduler")["ssl_context"],
        security.get_connection_args("worker")["ssl_context"],
    ):
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3
        (trusted,) = context.get_ca_certs()
        assert trusted["notBefore"] == "Jan  1 00:00:00 1970 GMT"
        assert trusted["notAfter"] == "Dec 31 23:59:59 9999 GMT"
