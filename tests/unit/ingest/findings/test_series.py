"""Rules over several steps and ranks, one step after the other."""

import ingest
from ingest.api import DumpStore
from tests.rule_sets import consolidated, only, put
from workers.store.objects import ObjectStore


def test_each_rank_has_a_history_of_its_own(objects: ObjectStore) -> None:
    put(objects, [[1.0]] * 6 + [[100.0]], rank=0)
    put(objects, [[100.0]] * 7, rank=2)
    steps = consolidated(objects, only(kind="outlier", ratio_gt=10, include="*Grad*"))
    assert [(finding.rank, finding.step) for step in steps for finding in step.found.findings] == [(0, 6)]
    store = DumpStore(objects)
    (finding,) = ingest.anomalies(store, rank=0).findings
    assert store.step(0, 6).tables.label("op_name")[finding.row] == "Gradients_net-op0"
    assert not ingest.anomalies(store, rank=2).findings
