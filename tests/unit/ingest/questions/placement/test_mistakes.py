"""Mistakes in how ranks hold tensors, step by step."""

from pathlib import Path

import ingest
from ingest.questions.placement.mistakes import find_mistakes
from tests.pipeline import ingest_directly
from tests.sharded_net import LAYOUT, Config, simulate, write


def test_only_the_steps_that_are_asked_for_are_looked_at(tmp_path: Path) -> None:
    write(tmp_path / "dump", simulate(Config(2, 1, frozenset({"BUG missing reduction"}), 3)))
    ingest_directly(tmp_path / "dump", tmp_path / "run.zarr", layout=LAYOUT)
    store = ingest.open_store(tmp_path / "run.zarr")
    of_all = ingest.layout(store).findings
    findings = find_mistakes(store.snapshot(), [1])
    assert findings == [finding for finding in of_all if finding.step == 1]
    assert str(findings[0]) == "missing reduction in step 1 on ranks 0-1: Module..layers.1.proj.output.0"
    assert find_mistakes(store.snapshot(rank=0), [1]) == []
