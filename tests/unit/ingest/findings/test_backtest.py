"""Rules are tried on what is stored."""

from pathlib import Path

import numpy as np

import ingest
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from workers.rules.load import load_rules

RULES = load_rules().enabled


def test_rules_are_tried_on_what_is_stored_and_write_nothing(nan: Path) -> None:
    before = sorted(str(path) for path in nan.rglob("*"))
    tried = ingest.test_rules(ingest.open_store(str(nan)))
    assert sorted(str(path) for path in nan.rglob("*")) == before
    by_name = {result.rule: result for result in tried.rules}
    assert len(by_name) == len(RULES.rules)
    nans = by_name["nan"]
    assert (nans.findings, nans.ranks, nans.steps) == (10, "1", "2-3")
    assert nans.places == {(1, 2): 5, (1, 3): 5}
    assert nans.first[0].name == "Log.Default_net-LogLoss_Log-op0.output.0"
    assert by_name["inf"].findings == 0
    assert tried.to_pandas()["findings"].sum() == 14


def test_a_mask_of_infinity_is_excluded_by_a_selector(tmp_path: Path) -> None:
    dump, store = MadeDump(tmp_path / "dump"), tmp_path / "run.zarr"
    mask = np.array([[0, -np.inf], [0, 0]], np.float32)
    for op in ("FillV2.net_Fill-op0", "Add.net_attention_mask-op1", "Add.net_Add-op2"):
        dump.add(mask, tensor_name(op))
    (summary,) = ingest_directly(dump.root, store, rules=RULES)
    assert summary.findings == {"inf": 1}
    assert summary.first_findings[0].name == "Add.net_Add-op2.output.0"
    file = tmp_path / "rules.yml"
    file.write_text("rules:\n  - name: inf\n    of: [pos_inf]\n")
    tried = ingest.test_rules(ingest.open_store(str(store)), file)
    assert sum(result.findings for result in tried.rules) == 0
