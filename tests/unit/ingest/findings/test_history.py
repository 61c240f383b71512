"""What is kept of earlier steps: bounded, and without what cannot be read."""

import pytest

import ingest
from ingest.api import DumpStore
from ingest.findings import history
from ingest.findings.series import SeriesRules
from ingest.findings.stored import SeriesEvaluator
from ingest.reader.catalog import Catalog
from tests.rule_sets import only, put
from workers.store.model import Evaluated
from workers.store.objects import ObjectStore


def test_what_takes_too_much_memory_is_forgotten_and_a_rule_that_needs_it_says_so(
    objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(objects, [[1]] * 6)
    series = SeriesRules(only(kind="unchanged", steps=4, include="*Grad*"))
    steps = {step: str(step) for step in range(6)}

    def evaluated(step: int) -> Evaluated:
        return series.evaluate(Catalog(objects), step, dict(list(steps.items())[:step]), steps[step]).result

    assert [len(evaluated(step).findings) for step in (2, 3)] == [0, 1]
    monkeypatch.setattr(history, "MAX_HISTORY_NBYTES", 1)
    for step in (4, 5, 4):  # the second time step 4, no step before it is kept
        result = evaluated(step)
        assert not result.findings
        assert result.failed["mine"].startswith("it needs 3 steps before, of which 1 fit into ")
        kept = [values for values in series._history._kept.values() if values is not None]
        assert len(kept) == 2


def test_a_step_that_cannot_be_read_is_named_and_the_others_are_evaluated(objects: ObjectStore) -> None:
    put(objects, [[1], [1], [2], [2], [2]])
    chosen = only(kind="unchanged", include="*Grad*")
    evaluator = SeriesEvaluator(objects, chosen)
    # As the view has it, for the consolidator would not take in what is damaged.
    generations = {step: {0: str(step)} for step in (0, 1, 2, 3, 4, 9)}
    for name in [name for name in objects.sizes("rank_0/step_1") if name.endswith("labels/c/0/0")]:
        objects.put(f"rank_0/step_1/{name}", b"damaged")
    steps = list(evaluator.evaluate(generations))
    assert [step.step for step in steps if step.result.failed] == [1, 9]
    assert [step.step for step in steps if step.result.findings] == [4]
    assert any("step 1: rule mine" in line for line in ingest.anomalies(DumpStore(objects)).not_evaluated)
