"""Settings: where they come from, and which values are refused."""

import os
from pathlib import Path
from typing import Any

import pytest

from ingest.environment import TOKEN_VARIABLE
from ingest.settings import load
from workers.errors import UsageError


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("DUMP_INGEST_"):
            monkeypatch.delenv(name)


def test_flags_win_over_variables_and_variables_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "settings.yaml"
    config.write_text("store: /file\nquiet_s: 1\nsettle_s: 1\n")
    monkeypatch.setenv("DUMP_INGEST_QUIET_S", "2")
    monkeypatch.setenv("DUMP_INGEST_SETTLE_S", "2")
    loaded = load(config, settle_s=3.0, poll_s=None)
    settings = loaded.settings
    assert (settings.store, settings.quiet_s, settings.settle_s, settings.poll_s) == ("/file", 2, 3, 1)
    assert [loaded.origins[name] for name in ("store", "quiet_s", "settle_s", "poll_s")] == [
        str(config),
        "DUMP_INGEST_QUIET_S",
        "--settle",
        "default",
    ]


def test_the_file_may_be_named_by_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "settings.yaml"
    config.write_text("")
    monkeypatch.setenv("DUMP_INGEST_CONFIG", str(config))
    assert load().settings.store is None
    config.write_text("store: /file\n")
    assert load().settings.store == "/file"


def test_variables_that_set_nothing_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUMP_INGEST_QUITE_S", "3")
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
    assert load().unknown_variables == ("DUMP_INGEST_QUITE_S",)


@pytest.mark.parametrize("text", ["rank_map: 0=8, 1=9\n", "rank_map: {0: 8, 1: 9}\n"])
def test_a_rank_map_is_written_alike_everywhere(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each host has its own, so it may stand in a unit file."""
    config = tmp_path / "settings.yaml"
    config.write_text(text)
    assert load(config).settings.rank_map == {0: 8, 1: 9}
    assert load(rank_map="0=8,1=9").settings.rank_map == {0: 8, 1: 9}
    monkeypatch.setenv("DUMP_INGEST_RANK_MAP", "0=8,1=9")
    assert load().settings.rank_map == {0: 8, 1: 9}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("quiet_s", "inf", "must be a finite number"),
        ("continues", "dump", "must be absolute paths"),
        ("continues", "/data/a:b", "must be absolute paths"),
        ("rank_map", "0", "device=rank pairs"),
        ("rank_map", "a=1", "device=rank pairs"),
        ("rank_map", "0=-1", "device=rank pairs"),
        ("rank_map", {0: -1}, "numbers from 0"),
        ("rank_map", "0=1,1=1", "one rank to two devices"),
        ("rank_map", "0=1,0=2", "two ranks to one device"),
        ("worker_resources", "host", "name=amount pairs"),
        ("worker_resources", "host=0", "amounts above 0"),
        ("worker_resources", "=1", "amounts above 0"),
        ("metrics", "9108", "host:port"),
        ("metrics", ":9108", "host:port"),
        ("consolidator_metrics", "host:http", "host:port"),
        ("webhook", "ftp://host/", "https://host/path"),
        ("webhook", "https://me:secret@host/", "no credentials"),
        ("pressure_free", "0.1", "a share such as 10%"),
        ("chunk_size", "1", "greater than or equal to 4096"),
        ("order", "random", "'oldest' or 'newest'"),
    ],
)
def test_wrong_values_are_refused_by_the_name_of_the_setting(name: str, value: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        load(**{name: value})
    assert error.value.message.startswith(f"{name} (--")
    assert "secret" not in error.value.message
    assert "config schema" in error.value.hint


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"store: [\n", "not valid YAML"), (b"\xff\xfe\xfd", "is not UTF-8 text"), (b"- a\n", "settings")],
)
def test_a_file_that_is_not_one_of_settings_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    config = tmp_path / "settings.yaml"
    config.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        load(config)


def test_a_variable_that_must_be_json_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUMP_INGEST_DASK", "{")
    with pytest.raises(UsageError, match="it must be JSON"):
        load()


def test_directories_are_written_alike_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "settings.yaml"
    config.write_text("continues: [/data/a, /data/b]\n")
    assert load(config).settings.continues == ["/data/a", "/data/b"]
    assert load(continues="/data/a:/data/b").settings.continues == ["/data/a", "/data/b"]
    monkeypatch.setenv("DUMP_INGEST_CONTINUES", "/data/a:/data/b")
    assert load().settings.continues == ["/data/a", "/data/b"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("store", "s3://AKIA:hunter2/Canary@bucket/run.zarr"),
        ("store_options", {"secret": "hunter2/Canary"}),
        ("store_options", {"client_kwargs": {"aws_session_token": "hunter2/Canary"}}),
        ("store_options", "secret=hunter2/Canary"),
        ("scheduler", "tcp://me:hunter2/Canary@host:8786"),
    ],
)
def test_credentials_are_refused_and_not_printed(name: str, value: Any) -> None:
    """Settings are sent to workers and printed by `config show`."""
    with pytest.raises(UsageError, match=name) as error:
        load(**{name: value})
    assert "Canary" not in f"{error.value.message} {error.value.hint}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", "settings.yml:2: aliases are not allowed"),
        ("[" * 100_000, "settings.yml:1: nested too deeply"),
        ("workers: 1\nworkers: 2\n", "settings.yml:2: workers occurs twice"),
    ],
)
def test_a_settings_file_that_stands_for_a_huge_one_is_refused(
    text: str, message: str, tmp_path: Path
) -> None:
    """A few lines of aliases would fill the memory."""
    (tmp_path / "settings.yml").write_text(text)
    with pytest.raises(UsageError, match=message):
        load(tmp_path / "settings.yml")
