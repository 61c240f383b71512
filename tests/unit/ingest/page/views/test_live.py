"""What the live view counts."""

from pathlib import Path

from bench.steps import commit_run
from ingest.page.asking import Arguments, Asked, Links
from ingest.page.moment import Moment
from ingest.page.views.live import SCREEN
from ingest.reader.dump_store import open_store
from tests.diverging import WEIGHT, replicas
from tests.rule_sets import consolidated
from workers.rules.load import load_rules


def test_steps_in_which_replicas_differ_are_counted_as_far_as_they_are_evaluated() -> None:
    made = replicas(off=[(3, 2, WEIGHT)])
    asked = Asked(Moment.of(made.store), Arguments({}), Links("", "run.zarr"))
    assert SCREEN.show(asked)["replicas"] == {"newest": 4, "evaluated": 0, "differing": []}
    consolidated(made.objects, load_rules().enabled)
    shown = SCREEN.show(asked)
    assert shown["replicas"] == {"newest": 4, "evaluated": 4, "differing": [2]}
    assert shown["check"].url == "/runs/run.zarr/incidents?step=3&layout=1"


def test_a_rule_that_fires_on_many_ranks_has_one_row_for_a_step(tmp_path: Path) -> None:
    commit_run(str(tmp_path / "run"), range(40), range(3), ["op"] * 3, born=1, rules=load_rules().enabled)
    moment = Moment.of(open_store(tmp_path / "run"))
    rows = SCREEN.show(Asked(moment, Arguments({}), Links("", "run.zarr")))["findings"]
    assert [(row["rule"], row["step"], row["count"]) for row in rows] == [("nan", 2, 80), ("nan", 1, 80)]
    assert rows[0]["ranks"] == list(range(40))
    assert rows[0]["url"] == "/runs/run.zarr/incidents?step=2"
