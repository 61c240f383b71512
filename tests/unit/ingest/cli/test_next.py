"""`dump-ingest next`: the configuration goes to stdout or a file, everything else to stderr."""

import json
import shutil
from pathlib import Path

import pytest

from tests.cli import Answer
from tests.damages import only


def test_a_file_is_written(nan_store: Path, answer: Answer, tmp_path: Path) -> None:
    out = tmp_path / "data_dump.json"
    done = answer("next", nan_store, "--out", out, "--budget", "1MB", "--path", "/data/second")
    assert done.stdout == ""
    assert json.loads(out.read_text())["common_dump_settings"]["path"] == "/data/second"
    assert str(out) in done.stderr
    assert "cannot be written" in answer("next", nan_store, "--out", tmp_path, code=2).stderr


@pytest.mark.parametrize("purpose", ["origin", "divergence", "tensor"])
def test_steps_that_could_not_be_examined_are_named(
    nan_store: Path, tmp_path: Path, answer: Answer, purpose: str
) -> None:
    damaged = tmp_path / "run.zarr"
    shutil.copytree(nan_store, damaged)
    shutil.rmtree(only(damaged, "rank_1/step_2/*/index"))
    names = ["Log.*"] if purpose == "tensor" else []
    code = 2 if purpose == "divergence" else 0
    stderr = answer("next", damaged, *names, "--for", purpose, code=code).stderr
    assert "; left out: rank 1 step 2: " in stderr
    assert "Warning" not in stderr
