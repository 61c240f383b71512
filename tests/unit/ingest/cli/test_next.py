"""`dump-ingest next`: the configuration goes to stdout or a file, everything else to stderr."""

import json
from pathlib import Path

from tests.cli import Answer


def test_the_configuration_alone_is_on_stdout(nan_store: Path, answer: Answer) -> None:
    done = answer("next", nan_store)
    assert json.loads(done.stdout)["common_dump_settings"]["iteration"] == "1-2"
    assert "Log (Default_net-LogLoss_Log-op0): NaN was born in it on rank 1, step 2" in done.stderr
    assert "MINDSPORE_DUMP_CONFIG" in done.stderr


def test_a_file_is_written(nan_store: Path, answer: Answer, tmp_path: Path) -> None:
    out = tmp_path / "data_dump.json"
    done = answer("next", nan_store, "--out", out, "--budget", "1MB", "--path", "/data/second")
    assert done.stdout == ""
    assert json.loads(out.read_text())["common_dump_settings"]["path"] == "/data/second"
    assert str(out) in done.stderr
    assert "cannot be written" in answer("next", nan_store, "--out", tmp_path, code=2).stderr


def test_names_and_sizes_are_checked(nan_store: Path, answer: Answer) -> None:
    assert answer("next", nan_store, "Sigmoid.*", "--for", "tensor", "--json").json["system"] == "mindspore"
    assert "is not a number of bytes" in answer("next", nan_store, "--budget", "much", code=2).stderr
