"""`dump-ingest check`: a line for each thing that is wrong, with its source; exit code 1 if refused."""

import json
from pathlib import Path

from tests.cli import Answer
from tests.dumps import DumpLibrary


def test_a_wrong_one_is_explained_with_sources(
    nan_store: Path, dumps: DumpLibrary, answer: Answer, tmp_path: Path
) -> None:
    content = json.loads((dumps["nan-log-2rank"] / "data_dump.json").read_text())
    content["common_dump_settings"] |= {
        "dump_mode": 1,
        "kernels": ["Default/Nothing-op0", "Log"],
        "path": "dump",
    }
    content["e2e_dump_settings"]["sample_mode"] = 1
    config = tmp_path / "data_dump.json"
    config.write_text(json.dumps(content))
    done = answer("check", config, "--device", "CPU", "--store", nan_store, code=1)
    assert "refused: path: 'dump' is not absolute" in done.stdout
    assert "warning: sample_mode: 1 is for Ascend" in done.stdout
    assert "https://" in done.stdout
    assert "no operator in the store is called Default/Nothing-op0" in done.stdout
    assert "the first and the last 100 elements" in done.stdout
