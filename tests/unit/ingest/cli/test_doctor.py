"""`dump-ingest doctor` as it is typed; tests/integration/test_doctor.py has a cluster and a bucket."""

from pathlib import Path

import numpy as np

from tests.cli import Answer


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
