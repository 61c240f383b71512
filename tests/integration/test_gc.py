"""`dump-ingest gc` and the commands that come after it, the consolidator, and object storage."""

import json
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import ingest
from ingest.cli.app import app
from ingest.store_gc.plan import GcPolicy
from tests import checker
from tests.cli import run
from tests.gc_stores import POLICY, gc, make_store
from tests.servers.ceph import S3Bucket
from workers.errors import StoreDenied
from workers.store import commit
from workers.store.opening import connect, resolve


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump and its store; see `make_store`."""
    root = tmp_path_factory.mktemp("gc")
    make_store(root)
    return root


@pytest.fixture
def store(base: Path, tmp_path: Path) -> Path:
    """A copy for one test."""
    return shutil.copytree(base / "run.zarr", tmp_path / "run.zarr")


def answer(*args: object) -> Result:
    """Run a command in this process, which starts no other one."""
    return CliRunner().invoke(app, [*map(str, args)])


def test_commands_work_on_what_is_left(store: Path, base: Path, tmp_path: Path) -> None:
    gc(store, GcPolicy(keep_last=4))
    gc(store, GcPolicy(tensors_around_anomalies=0))
    ingest.consolidate(store)
    rows = {(row["rank"], row["step"]): row for row in json.loads(answer("ls", store, "--json").stdout)}
    assert {step for _, step in rows} == {2, 3, 4, 5}
    assert [rows[0, step]["has_tensors"] for step in (2, 3, 4, 5)] == [True, False, False, True]
    assert answer("ls", store).stdout.count("complete, no tensors") == 4
    assert json.loads(answer("origin", store, "--json").stdout)["step"] == 2
    where = ("--where", "nan_count > 0 and rank == 1")
    assert len(json.loads(answer("find", store, *where, "--json").stdout)) == 1
    found = json.loads(answer("find", store, "--consolidated", "--where", "max == 4", "--json").stdout)
    assert {(row["rank"], row["step"]) for row in found} == {(0, 4), (1, 3)}
    assert answer("trend", store, "MatMul*", "--json").exit_code == 0
    kept, before = (answer("divergence", path, "--json") for path in (store, base / "run.zarr"))
    assert kept.exit_code == before.exit_code
    exported = answer("export", store, tmp_path / "out", "-n", "4")
    assert exported.exit_code == 4
    for rank in (0, 1):
        assert f"rank {rank} step 4: 2 files: the tensors were removed" in exported.stderr
    shown = answer("show", store, "MatMul*output.0", "-r", "0", "-n", "4")
    assert "no anomaly within 0 dumped steps" in shown.stdout
    compared = answer("compare", f"{store}@0,4", f"{store}@0,5")
    assert "min 4 and 5; elements were removed from the store" in compared.stdout


@pytest.mark.s3
def test_on_object_storage(
    s3_bucket: S3Bucket, s3_environment: dict[str, str], base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes and times come from listings, and many objects go with one request."""
    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    url = f"{s3_bucket.url}/run.zarr"
    objects = connect(resolve(url))
    objects.put_many(
        {key: data for key, data in checker.objects(base / "run.zarr").items() if not key.endswith(".tmp")}
    )
    waits = ingest.plan_gc(url, POLICY)
    assert "remains" not in {action.what for action in waits.actions}
    assert abs(time.time() - min(entry.modified_at for entry in objects.listed().values())) < 60
    plan = ingest.plan_gc(url, GcPolicy(keep_last=2, grace_s=0))
    before = objects.listed()
    report = ingest.apply_gc(url, plan)
    assert not report.left
    after = objects.listed()
    assert len(before.keys() - after.keys()) == report.objects == plan.objects
    assert sum(before[key].nbytes for key in before.keys() - after.keys()) == report.nbytes
    opened = ingest.open_store(url)
    assert {key.step for key in opened.keys} == {4, 5}
    assert list(opened.verify()) == []
    objects.delete_many(["nothing/there"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    denied = connect(resolve(url, {"use_ssl": False}))
    with pytest.raises(StoreDenied):
        denied.delete_many(["zarr.json"])


_KILLED_WRITER = """
import sys
from workers.store.opening import connect, resolve
connect(resolve(sys.argv[1])).put("rank_0/step_7/tensors/float32/c/0", bytes(2**30))
"""


@pytest.mark.s3
def test_uploads_of_a_killed_writer_are_shown_and_ended(
    s3_bucket: S3Bucket, s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    objects = connect(resolve(s3_bucket.url))
    beside = connect(resolve(f"{s3_bucket.url}-of-others"))
    commit.ensure_root(objects)
    with ExitStack() as running:
        for url in (s3_bucket.url, f"{s3_bucket.url}-of-others"):
            writer = running.enter_context(subprocess.Popen([sys.executable, "-c", _KILLED_WRITER, url]))
            where = connect(resolve(url))
            deadline = time.monotonic() + 60
            while not any(upload.nbytes for upload in where.unfinished_uploads()):
                assert time.monotonic() < deadline
                assert writer.poll() is None
                time.sleep(0.02)
            writer.send_signal(signal.SIGKILL)
    (left,) = objects.unfinished_uploads()
    assert left.key == "rank_0/step_7/tensors/float32/c/0"
    assert left.nbytes >= 32 * 2**20
    young = run("gc", s3_bucket.url, env=s3_environment)
    assert "1 uploads in parts" in young.stderr
    planned = run("gc", s3_bucket.url, "--grace", "0s", env=s3_environment)
    assert "incomplete uploads" in planned.stdout
    assert objects.unfinished_uploads() == [left]
    done = run("gc", s3_bucket.url, "--grace", "0s", "--apply", env=s3_environment)
    assert "incomplete uploads" in done.stdout
    assert objects.unfinished_uploads() == []
    assert len(beside.unfinished_uploads()) == 1  # not below this store
