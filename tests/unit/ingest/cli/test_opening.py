"""The settings of a command, and the store that they name."""

import socket
import time
from pathlib import Path

import pytest

from ingest.cli.options import load_settings_with_store
from tests.cli import Answer
from workers.errors import UsageError


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DUMP_INGEST_STORE", "DUMP_INGEST_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def test_a_command_that_writes_needs_a_store_and_warns_of_variables_that_set_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DUMP_INGEST_QUITE_S", "3")
    with pytest.raises(UsageError, match="no store is named") as error:
        load_settings_with_store(None)
    assert "--store" in error.value.hint
    assert "warning: DUMP_INGEST_QUITE_S is not a setting (did you mean quiet_s?)" in capsys.readouterr().err
    assert load_settings_with_store(None, store="/a").settings.store == "/a"


@pytest.mark.parametrize(
    "words",
    [
        ("ls", "{}"),
        ("compare", "{}@0,1", "{}@0,2"),
        ("compare", "{}@0", "{}@0", "--over-steps"),
        ("gc", "{}", "--keep-last", "1"),
        ("gc", "{}", "--recompress", "1d"),
        ("repair", "{}"),
        ("serve", "{}", "--listen", "127.0.0.1:0"),
    ],
)
def test_a_store_that_accepts_and_says_nothing_is_given_up(
    words: tuple[str, ...], tmp_path: Path, answer: Answer
) -> None:
    config = tmp_path / "settings.yaml"
    config.write_text("store_timeout_s: 0.05\n")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/run.zarr"
        asked = [word.format(url) for word in words]
        begun = time.monotonic()
        told = answer(*asked, "--config", config, code=1).stderr
    assert "no answer" in told
    assert time.monotonic() - begun < 20  # and not a minute


def test_every_command_with_an_argument_takes_the_store_of_the_settings(
    nan_store: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DUMP_INGEST_STORE", str(nan_store))
    log = "Log.Default_net-LogLoss_Log-op0.output.0"
    assert answer("show", log, "--rank", 1, "--step", 2, "--json").json["nan_count"] == 2
    assert len(answer("trend", "Log.*.output.0", "--json").json) == 6
    assert len(answer("heatmap", "Log.*.output.0", "--json").json) == 6
    answer("export", tmp_path / "out", "--rank", 1, "--step", 2, "--name", log)
    assert list((tmp_path / "out").rglob("*.npy"))
