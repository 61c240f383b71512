"""`doctor` with a real cluster, a real bucket, and files of another user."""

from pathlib import Path

import pytest

from tests import checker
from tests.cli import run
from tests.servers.ceph import S3Bucket
from tests.servers.cluster import DaskCluster
from tests.stores import DumpLibrary


@pytest.mark.dask
def test_what_works_is_reported_and_nothing_is_left_behind(
    dumps: DumpLibrary, cluster: DaskCluster, tmp_path: Path
) -> None:
    """Dump, store and cluster are each tried, and the store is left as it was."""
    dump, store = dumps["nan-log-2rank"] / "dump", tmp_path / "run.zarr"
    words = ("doctor", dump, "--store", store, "--scheduler", cluster.address)
    checks = run(*words, "--json").json
    assert [row["check"] for row in checks] == [
        "software",
        "identity",
        "settings",
        "dump",
        "dump configuration",
        "disk",
        "store",
        "clock",
        "dump in store",
        "scheduler",
    ]
    assert all(row["ok"] for row in checks)
    details = {row["check"]: row["detail"] for row in checks}
    assert "2 ranks, 3 steps" in details["dump"]
    assert "no store there yet" in details["store"]
    assert "2 workers" in details["scheduler"]
    assert checker.objects(store) == {}


@pytest.mark.s3
def test_a_bucket_is_written_to(s3_bucket: S3Bucket, s3_environment: dict[str, str]) -> None:
    """With right and with wrong credentials; nothing stays behind."""
    words = ("doctor", "--store", s3_bucket.url, "--json")
    assert all(row["ok"] for row in run(*words, env=s3_environment).json)
    wrong = {**s3_environment, "AWS_SECRET_ACCESS_KEY": "wrong"}
    [failed] = [row for row in run(*words, env=wrong, code=1).json if not row["ok"]]
    assert failed["check"] == "store"
    assert "AWS_SECRET_ACCESS_KEY" in failed["hint"]
    assert checker.objects(s3_bucket) == {}
