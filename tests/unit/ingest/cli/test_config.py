"""`dump-ingest config` as it is typed."""

from pathlib import Path

import pytest

from tests.cli import Answer


def test_show_names_the_origin_of_each_setting(
    answer: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Environment before file, file before default."""
    config = tmp_path / "settings.yaml"
    config.write_text("store: /from/file\nquiet_s: 7\ndrain_s: 3\nrank_map: 0=8\n")
    rows = answer("config", "show", "-c", config, "--json").json
    settings = {row["setting"]: row for row in rows}
    assert settings["store"] == {"setting": "store", "value": "/from/file", "origin": str(config)}
    assert settings["drain_s"]["value"] == 3
    assert settings["quiet_s"] == {"setting": "quiet_s", "value": 0, "origin": "DUMP_INGEST_QUIET_S"}
    assert settings["rank_map"]["value"] == '{"0": 8}'
    assert settings["shard_size"]["origin"] == "default"
    assert "/from/file" in answer("config", "show", "-c", config).stdout
    monkeypatch.setenv("DUMP_INGEST_CONFIG", str(config))
    assert answer("config", "show", "--json").json == rows


def test_validate_says_yes_or_what_is_wrong(
    answer: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All mistakes of a file at once, each with the name of its setting; units may be written out."""
    config = tmp_path / "settings.yaml"
    config.write_text("shard_size: 64MiB\norder: newest\ndask: {distributed.comm.retry.count: 5}\n")
    assert "valid" in answer("config", "validate", "-c", config).stderr
    config.write_text("shard_size: 1\norder: random\nqueue: kafka\nmetrics: 9108\n")
    monkeypatch.setenv("DUMP_INGEST_METRICS", "nowhere")
    wrong = answer("config", "validate", "-c", config, code=2)
    for word in ("shard_size", "order", "queue", "metrics", "is not a setting"):
        assert word in wrong.stderr
    assert wrong.stdout == ""


def test_secrets_of_the_environment_are_not_shown(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    """`config show` may be pasted into a ticket."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    done = answer("config", "show")
    assert "hunter2" not in done.stdout + done.stderr
