"""`doctor` and `config`: whether it would work here, and with which settings."""

import shutil
from pathlib import Path

import pytest

from tests import checker
from tests.cli import PROMPT, run, strict_json
from tests.dumps import DumpLibrary
from tests.servers.ceph import S3Bucket
from tests.servers.cluster import DaskCluster


@pytest.mark.dask
def test_doctor_is_content_with_what_works(dumps: DumpLibrary, cluster: DaskCluster, tmp_path: Path) -> None:
    """Dump, store and cluster are each tried, and the store is left as it was."""
    dump, store = dumps["nan-log-2rank"] / "dump", tmp_path / "run.zarr"
    words = ("doctor", dump, "--store", store, "--scheduler", cluster.address)
    checks = run(*words, "--json").json
    assert [row["check"] for row in checks] == [
        "software",
        "identity",
        "settings",
        "dump",
        "disk",
        "store",
        "scheduler",
    ]
    assert all(row["ok"] for row in checks)
    said = {row["check"]: row["detail"] for row in checks}
    assert "2 ranks, 6 steps" in said["dump"]
    assert "no store there yet" in said["store"]
    assert "2 workers" in said["scheduler"]
    assert checker.objects(store) == {}


def test_doctor_names_everything_that_does_not(tmp_path: Path) -> None:
    """All checks run, whatever the first one says; each failure comes with what to do."""
    words = ("doctor", tmp_path / "nowhere", "--store", "s4://bucket/run.zarr", "--scheduler", "127.0.0.1:1")
    env = {"DUMP_INGEST_SCHEDULER_TIMEOUT_S": "1", "DUMP_INGEST_QUIET": "3"}
    checks = {row["check"]: row for row in run(*words, "--json", code=1, env=env).json}
    assert [name for name, row in checks.items() if not row["ok"]] == [
        "settings",
        "dump",
        "store",
        "scheduler",
    ]
    assert "DUMP_INGEST_QUIET" in checks["settings"]["detail"]
    assert all(row["hint"] for row in checks.values() if not row["ok"])
    table = run(*words, code=1, env=env).stdout
    assert table.count("FAIL") == 4


def test_doctor_finds_files_of_another_user(
    dumps: DumpLibrary, unprivileged: tuple[str, ...], tmp_path: Path
) -> None:
    """The usual reason why nothing is taken: MindSpore writes with 0400."""
    dump = tmp_path / "dump"
    shutil.copytree(dumps["longnames-1rank"] / "dump", dump)
    for path in dump.rglob("*"):
        if path.is_file():
            path.chmod(0)
    done = run("doctor", dump, code=1, prefix=unprivileged)
    assert "permission denied" in done.stdout
    assert "has mode 0000" in done.stdout
    assert "chmod -R u+rX" in done.stdout


@pytest.mark.s3
def test_doctor_tries_to_write_to_a_bucket(s3_bucket: S3Bucket, s3_environment: dict[str, str]) -> None:
    """With right and with wrong credentials; nothing stays behind."""
    words = ("doctor", "--store", s3_bucket.url, "--json")
    assert all(row["ok"] for row in run(*words, env=s3_environment).json)
    wrong = {**s3_environment, "AWS_SECRET_ACCESS_KEY": "wrong"}
    [failed] = [row for row in run(*words, env=wrong, code=1).json if not row["ok"]]
    assert failed["check"] == "store"
    assert "AWS_SECRET_ACCESS_KEY" in failed["hint"]
    assert checker.objects(s3_bucket) == {}


def test_show_says_where_each_setting_comes_from(tmp_path: Path) -> None:
    """Environment before file, file before default."""
    config = tmp_path / "settings.yaml"
    config.write_text("store: /from/file\nquiet_s: 7\ndrain_s: 3\n")
    rows = run("config", "show", "-c", config, "--json").json
    settings = {row["setting"]: row for row in rows}
    assert settings["store"] == {"setting": "store", "value": "/from/file", "origin": str(config)}
    assert settings["drain_s"]["value"] == 3
    assert settings["quiet_s"] == {"setting": "quiet_s", "value": 0, "origin": "DUMP_INGEST_QUIET_S"}
    assert settings["shard_size"]["origin"] == "default"
    named = run("config", "show", "--json", env={"DUMP_INGEST_CONFIG": str(config)}).json
    assert named == rows
    assert "/from/file" in run("config", "show", "-c", config).stdout


def test_rank_map_is_written_alike_everywhere(tmp_path: Path) -> None:
    """Each host has one of its own, so it may stand in a unit file; what makes no sense is refused."""
    config, value = tmp_path / "settings.yaml", '{"0": 8, "1": 9}'
    for text in ("rank_map: 0=8, 1=9\n", "rank_map: {0: 8, 1: 9}\n"):
        config.write_text(text)
        rows = run("config", "show", "-c", config, "--json").json
        assert {"setting": "rank_map", "value": value, "origin": str(config)} in rows
    rows = run("config", "show", "--json", env={"DUMP_INGEST_RANK_MAP": "0=8,1=9"}).json
    origin = "DUMP_INGEST_RANK_MAP"
    assert {"setting": "rank_map", "value": value, "origin": origin} in rows
    for wrong in ("0", "0=1,1=1", "0=1,0=2", "a=1", "0=-1"):
        refused = run("config", "validate", code=2, env={"DUMP_INGEST_RANK_MAP": wrong})
        assert "DUMP_INGEST_RANK_MAP" in refused.stderr


def test_validate_says_yes_or_what_is_wrong(tmp_path: Path) -> None:
    """All mistakes of a file at once, each with the name of its setting; units may be written out."""
    config = tmp_path / "settings.yaml"
    config.write_text("shard_size: 64MiB\norder: newest\ndask: {distributed.comm.retry.count: 5}\n")
    assert "valid" in run("config", "validate", "-c", config).stderr
    config.write_text("shard_size: 1\norder: random\nqueue: kafka\nmetrics: 9108\n")
    wrong = run("config", "validate", "-c", config, code=2, env={"DUMP_INGEST_METRICS": "nowhere"})
    for word in ("shard_size", "order", "queue", "metrics", "is no setting"):
        assert word in wrong.stderr
    assert wrong.stdout == ""


def test_variable_that_sets_nothing_is_pointed_out() -> None:
    """A typing error in a unit file must not go unseen."""
    done = run("config", "validate", env={"DUMP_INGEST_QUITE_S": "3"})
    assert "DUMP_INGEST_QUITE_S" in done.stderr


def test_schema_describes_every_setting() -> None:
    """It is what an editor checks the YAML file with."""
    schema = strict_json(run("config", "schema").stdout)
    assert schema["additionalProperties"] is False
    shown = {row["setting"] for row in run("config", "show", "--json").json}
    assert schema["properties"].keys() == shown
    assert all(one.get("description") for one in schema["properties"].values())
    assert {name.removeprefix("DUMP_INGEST_").lower() for name in PROMPT} <= shown


def test_secrets_of_the_environment_are_not_shown(s3_environment_like: dict[str, str]) -> None:
    """`config show` may be pasted into a ticket."""
    done = run("config", "show", env=s3_environment_like)
    assert "hunter2" not in done.stdout + done.stderr


@pytest.fixture
def s3_environment_like() -> dict[str, str]:
    return {"AWS_ACCESS_KEY_ID": "somebody", "AWS_SECRET_ACCESS_KEY": "hunter2"}


def test_help_and_version_answer_at_once() -> None:
    """Every command explains itself, without a dump, a store or a cluster."""
    assert run("--version").stdout.startswith("dump-ingest ")
    overview = run("--help").stdout
    for command in ("ingest", "watch", "ls", "find", "show", "export", "verify", "doctor", "config"):
        assert command in overview
    assert "--store" in run("watch", "-h").stdout
    run("no-such-command", code=2)
