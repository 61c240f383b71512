"""What is wrong is said once, in a sentence, with what to do about it; and nothing is written."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import zarr

from tests import checker
from tests.cli import Finished, run
from tests.dumps import DumpLibrary
from tests.in_process import run_here
from tests.servers.ceph import CephS3, S3Bucket
from tests.servers.cluster import DaskCluster
from tests.servers.process import free_port


@pytest.fixture
def dump(dumps: DumpLibrary) -> Path:
    return dumps["longnames-1rank"] / "dump"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "run.zarr"


def refused(
    *words: object,
    code: int,
    says: Sequence[str],
    env: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
) -> Finished:
    """Run a command that must fail with one error of at most two lines, and print no data.

    In this process, unless it has a prefix or variables of its own, such as those of an object store, whose
    clients this process would keep.
    """
    if env is None and not prefix:
        done = run_here(*words, code=code)
    else:
        done = run(*words, code=code, env=env, prefix=prefix)
    assert done.stdout in {"", "[]\n"}
    assert done.stderr.count("error:") == 1, done.stderr
    assert len([line for line in done.stderr.splitlines() if not line.startswith("retrying")]) <= 2, (
        done.stderr
    )
    for word in says:
        assert word in done.stderr, done.stderr
    return done


class TestDump:
    def test_absent(self, tmp_path: Path, store: Path) -> None:
        """A mistyped path is told from an empty one."""
        refused(
            "ingest", tmp_path / "nowhere", "-s", store, code=2, says=["nowhere does not exist", "rank_0"]
        )
        assert not store.exists()

    def test_a_file(self, dump: Path, store: Path) -> None:
        """A single tensor is not a dump."""
        file = next(dump.rglob("*.npy"))
        refused("ingest", file, "-s", store, code=2, says=["is not a directory"])
        assert not store.exists()

    @pytest.mark.parametrize("names", [(), ("notes.txt", "logs/today.log")], ids=["empty", "something_else"])
    def test_no_known_layout(self, names: Sequence[str], tmp_path: Path, store: Path) -> None:
        """The answer says what a dump looks like."""
        directory = tmp_path / "other"
        directory.mkdir()
        for name in names:
            (directory / name).parent.mkdir(exist_ok=True)
            (directory / name).write_text("x")
        refused("ingest", directory, "-s", store, code=2, says=["no dump of a known layout", "rank_{r}"])
        assert not store.exists()

    def test_two_dumps(self, dump: Path, tmp_path: Path, store: Path) -> None:
        """Their ranks would collide: neither is taken."""
        for name in ("monday", "tuesday"):
            shutil.copytree(dump, tmp_path / "dumps" / name)
        refused("ingest", tmp_path / "dumps", "-s", store, code=2, says=["2 dumps", "monday", "tuesday"])
        assert not store.exists()

    def test_unreadable(self, dump: Path, unprivileged: tuple[str, ...], tmp_path: Path, store: Path) -> None:
        """The directory of another user is not an empty one."""
        private = tmp_path / "private"
        shutil.copytree(dump, private)
        private.chmod(0)
        refused(
            "ingest", private, "-s", store, code=1, says=["permission denied", "setfacl"], prefix=unprivileged
        )
        private.chmod(0o700)
        assert not store.exists()


class TestStore:
    def test_none_named(self, dump: Path) -> None:
        """There is no default place to write to."""
        refused("ingest", dump, code=2, says=["no store", "--store"])

    def test_not_writable(self, dump: Path, unprivileged: tuple[str, ...], tmp_path: Path) -> None:
        """Owner and mode of the directory are the matter."""
        directory = tmp_path / "readonly"
        directory.mkdir(mode=0o555)
        refused(
            "ingest",
            dump,
            "-s",
            directory / "run.zarr",
            code=1,
            says=["cannot write", "Permission denied", "owner and mode"],
            prefix=unprivileged,
        )
        assert list(directory.iterdir()) == []

    @pytest.mark.parametrize(
        "words", [("ls",), ("verify",), ("show", "x", "-r", "0", "-n", "0"), ("export", "out")]
    )
    def test_absent_for_a_reader(self, words: tuple[str, ...], tmp_path: Path) -> None:
        """Reading makes no store."""
        command, *rest = words
        nowhere = tmp_path / "nowhere"
        refused(command, nowhere, *rest, code=2, says=["no dump-ingest store", "Is the URL right?"])
        assert not nowhere.exists()

    @pytest.mark.parametrize("command", ["ingest", "ls"])
    def test_of_a_newer_version(self, command: str, dump: Path, store: Path) -> None:
        """A store that this version cannot understand is not touched."""
        store.mkdir()
        attributes = {"dump_ingest": {"format_version": 99}}
        root = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
        (store / "zarr.json").write_text(json.dumps(root))
        before = checker.objects(store)
        words = (dump, "-s", store) if command == "ingest" else (store,)
        refused(command, *words, code=1, says=["store format 99", "Upgrade"])
        assert checker.objects(store) == before

    @pytest.mark.parametrize("command", ["ingest", "ls"])
    def test_of_somebody_else(self, command: str, dump: Path, store: Path) -> None:
        """Other Zarr data is not mixed with ours."""
        zarr.create_group(store).create_array("weights", shape=(4,), dtype="f4")
        before = checker.objects(store)
        words = (dump, "-s", store) if command == "ingest" else (store,)
        refused(command, *words, code=1, says=["not a dump-ingest store"])
        assert checker.objects(store) == before

    def test_unknown_protocol(self, dump: Path) -> None:
        """A mistyped scheme is not the name of a directory."""
        refused("ingest", dump, "-s", "s4://bucket/run.zarr", code=2, says=["s4", "s3://bucket"])


@pytest.mark.s3
class TestObjectStore:
    def test_wrong_credentials(self, dump: Path, s3_bucket: S3Bucket, s3_environment: dict[str, str]) -> None:
        """The message names the variables, and not the secret."""
        env = {**s3_environment, "AWS_SECRET_ACCESS_KEY": "not-the-secret"}
        words = ("ingest", dump, "-s", s3_bucket.url)
        done = refused(*words, code=1, says=["AWS_SECRET_ACCESS_KEY"], env=env)
        assert "not-the-secret" not in done.stderr
        assert checker.objects(s3_bucket) == {}

    def test_no_credentials(self, dump: Path, s3_bucket: S3Bucket, s3_environment: dict[str, str]) -> None:
        """Nor is the lack of any taken for a passing trouble."""
        env = {name: value for name, value in s3_environment.items() if "KEY" not in name}
        env["AWS_EC2_METADATA_DISABLED"] = "true"
        refused("ingest", dump, "-s", s3_bucket.url, code=1, says=["AWS_ACCESS_KEY_ID"], env=env)
        assert checker.objects(s3_bucket) == {}

    def test_no_bucket(self, dump: Path, s3_cluster: DaskCluster, s3_environment: dict[str, str]) -> None:
        """Buckets are not made by the way: they cost, and they have policies."""
        words = ("ingest", dump, "-s", "s3://no-such-bucket/run.zarr", "--scheduler", s3_cluster.address)
        refused(*words, code=1, says=["no such bucket", "Create the bucket"], env=s3_environment)
        refused("ls", "s3://no-such-bucket/run.zarr", code=2, says=["Is the URL right?"], env=s3_environment)

    def test_gateway_down(self, dump: Path, s3_environment: dict[str, str]) -> None:
        """The command does not wait for ever."""
        env = {**s3_environment, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}"}
        refused("ingest", dump, "-s", "s3://bucket/run.zarr", code=1, says=["cannot read", "again"], env=env)

    @pytest.mark.campaign
    def test_quota_exceeded_on_the_way(
        self,
        *,
        dumps: DumpLibrary,
        ceph: CephS3,
        s3_bucket: S3Bucket,
        s3_cluster: DaskCluster,
        s3_environment: dict[str, str],
        tmp_path: Path,
    ) -> None:
        """What is committed stays and is whole; with more room, the same command does the rest."""
        dump = dumps["nan-log-2rank"] / "dump"
        words = ("ingest", dump, "-s", s3_bucket.url, "--scheduler", s3_cluster.address)
        ceph.set_quota(s3_bucket.name, 200 << 10)

        done = run(*words, code=4, env={**s3_environment, "DUMP_INGEST_INFLIGHT_SIZE": "1"})

        assert done.stderr.count("error:") == 1
        assert "QuotaExceeded" in done.stderr
        committed = checker.leaves(checker.download(s3_bucket, tmp_path / "full"))
        assert 0 < len(committed) < 8

        ceph.set_quota(s3_bucket.name, None)
        run(*words, env=s3_environment)
        checker.check(checker.download(s3_bucket, tmp_path / "done"), dump)


class TestCluster:
    @pytest.mark.parametrize("command", ["ingest", "doctor"])
    def test_no_scheduler(self, command: str, dump: Path, store: Path) -> None:
        """A scheduler that is not there is named, and not replaced by workers of its own."""
        address = f"tcp://127.0.0.1:{free_port()}"
        words = (command, dump, "-s", store, "--scheduler", address)
        env = {"DUMP_INGEST_SCHEDULER_TIMEOUT_S": "1"}
        if command == "ingest":
            refused(*words, code=1, says=[address, "dask scheduler"], env=env)
        else:
            assert address in run(*words, code=1, env=env).stdout
        assert checker.objects(store) == {}
