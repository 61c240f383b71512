"""`dump-ingest doctor` as it is typed; tests/integration/test_doctor.py has a cluster and a bucket."""

from pathlib import Path

import numpy as np
import pytest

from tests.cli import Answer


def test_everything_that_does_not_work_is_named_with_what_to_do(
    answer: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All checks run, whatever the first one finds."""
    monkeypatch.setenv("DUMP_INGEST_SCHEDULER_TIMEOUT_S", "1")
    monkeypatch.setenv("DUMP_INGEST_QUIET", "3")
    words = ("doctor", tmp_path / "nowhere", "--store", "s4://bucket/run.zarr", "--scheduler", "127.0.0.1:1")
    checks = {row["check"]: row for row in answer(*words, "--json", code=1).json}
    assert [name for name, row in checks.items() if not row["ok"]] == [
        "settings",
        "dump",
        "store",
        "scheduler",
    ]
    assert "DUMP_INGEST_QUIET" in checks["settings"]["detail"]
    assert all(row["hint"] for row in checks.values() if not row["ok"])
    table = answer(*words, code=1).stdout
    assert table.count("FAIL") == 4
    assert f"({checks['dump']['hint']})" in table


def test_tensors_that_would_be_kept_as_files_get_a_pattern(answer: Answer, tmp_path: Path) -> None:
    """`rank_0` and `step3/rank0` are names of MindSpore and msProbe: no error would say anything."""
    trees = {
        "rank_0/step_3/fc/fwd_out.npy": "rank_{rank}/step_{step}/{module}/{graph}_{io}.npy",
        "step3/rank0/fc.output.npy": "step{step}/rank{rank}/{module}.{io}.npy",
    }
    for number, (path, pattern) in enumerate(trees.items()):
        dump, store = tmp_path / f"dump{number}", tmp_path / f"store{number}"
        (dump / path).parent.mkdir(parents=True)
        np.save(dump / path, np.ones(2))
        (check,) = [row for row in answer("doctor", dump, "--json").json if row["check"] == "layout"]
        assert check["ok"]
        assert f"--layout '{pattern}'" in check["hint"]
        assert "proposes a pattern" in answer("ingest", dump, "--store", store).stderr
        again = answer("ingest", dump, "--store", tmp_path / f"own{number}", "--layout", pattern, "--json")
        assert [(step["rank"], step["step"], step["tensors"]) for step in again.json] == [(0, 3, 1)]
        assert "proposes" not in again.stderr
