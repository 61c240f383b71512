"""A plan as a file: written, read back, and refused if somebody else wrote it."""

import json

import pytest
from hypothesis import given

from ingest.store_gc.inventory import Inventory
from ingest.store_gc.plan import GcPlan, GcPolicy
from ingest.store_gc.planner import make_plan
from tests.gc_inventories import NOW, POLICIES, inventories, one_rank
from workers.errors import UsageError


@given(inventories(), POLICIES)
def test_a_written_plan_is_read_as_it_was(inventory: Inventory, policy: GcPolicy) -> None:
    plan = make_plan(inventory, policy, NOW)
    assert GcPlan.from_json(plan.to_json()) == plan
    assert json.loads(plan.to_json()) == plan.to_dict()


def test_a_plan_file_has_a_line_for_each_action() -> None:
    plan = make_plan(one_rank(1, 2, 3), GcPolicy(keep_last=1), NOW)
    lines = plan.to_json().splitlines()
    assert sum('"what": "step"' in line for line in lines) == len(plan.actions) == 2
    # An action may be taken out by hand: the totals are not read.
    shorter = json.loads(plan.to_json())
    del shorter["actions"][0]
    assert GcPlan.from_json(json.dumps(shorter)).actions == plan.actions[1:]


def test_a_refusal_names_the_file_the_place_and_the_next_step() -> None:
    content = make_plan(one_rank(1, 2, 3, 4), GcPolicy(keep_last=1), NOW).to_dict()
    content["actions"][2]["step"] = "three"
    with pytest.raises(UsageError) as refusal:
        GcPlan.from_json(json.dumps(content), "plans/tonight.json")
    assert refusal.value.message == (
        "plans/tonight.json is not a gc plan: actions[2].step: Expected `int | null`, got `str`"
    )
    assert refusal.value.hint == "Make the plan again: dump-ingest gc STORE ... --plan FILE"
