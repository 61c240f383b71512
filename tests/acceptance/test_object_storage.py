"""The same as on a disk, in a real S3 object store."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import checker
from tests.cli import run
from tests.servers.ceph import S3Bucket
from tests.servers.cluster import DaskCluster
from tests.stores import DumpLibrary

pytestmark = [pytest.mark.dask, pytest.mark.s3]


def test_a_bucket_answers_as_a_directory_does(
    s3_bucket: S3Bucket,
    s3_cluster: DaskCluster,
    s3_environment: dict[str, str],
    dumps: DumpLibrary,
    tmp_path: Path,
) -> None:
    """Ingest, verify, find, show and export, with credentials from the environment alone."""
    dump, store, back = dumps["nan-log-2rank"] / "dump", s3_bucket.url, tmp_path / "back"
    ingest = ("ingest", dump, "--store", store, "--scheduler", s3_cluster.address, "--json")
    run(*ingest, env=s3_environment)

    checker.check(checker.download(s3_bucket, tmp_path / "copy"), dump)
    questions = (
        ("verify", store, "--json"),
        ("find", store, "--where", "nan_count > 0", "--limit", 1, "--json"),
        ("show", store, "Log.*.output.0", "--rank", 1, "--step", 2, "--json"),
        ("export", store, back),
    )
    with ThreadPoolExecutor(2) as pool:
        verified, found, shown, _ = pool.map(lambda words: run(*words, env=s3_environment), questions)
    assert verified.json == []
    [tensor] = found.json
    assert {name: shown.json[name] for name in tensor} == tensor
    assert shown.json["source_line"]["line"] == 45  # graphs are read from the store, too
    assert (shown.json["op_type"], shown.json["nan_count"]) == ("Log", 2)
    files = [path for path in dump.rglob("*") if path.is_file()]
    assert len(files) == len([path for path in back.rglob("*") if path.is_file()])
    assert all((back / path.relative_to(dump)).read_bytes() == path.read_bytes() for path in files)

    before = checker.versions(s3_bucket)
    assert run(*ingest, env=s3_environment).json == []
    assert checker.versions(s3_bucket) == before


def test_own_workers_find_the_credentials_of_the_command(
    s3_bucket: S3Bucket, s3_environment: dict[str, str], dumps: DumpLibrary, tmp_path: Path
) -> None:
    """No credential is on a command line, in a setting or in a task."""
    dump = dumps["longnames-1rank"] / "dump"
    run("ingest", dump, "--store", s3_bucket.url, env=s3_environment)
    checker.check(checker.download(s3_bucket, tmp_path), dump)
    secret = s3_environment["AWS_SECRET_ACCESS_KEY"].encode()
    assert not any(secret in data for data in checker.objects(s3_bucket).values())
