"""Rules are tried on what is stored."""

from pathlib import Path

import ingest
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
