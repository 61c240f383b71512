"""A plan file is not trusted: whatever it says, it can name nothing but what gc removes."""

import json

import pytest
from msgspec import structs

from ingest.store_gc.plan import GcPlan, GcPolicy
from ingest.store_gc.planner import make_plan
from tests.gc_inventories import NOW, one_rank
from workers.errors import UsageError


def _content() -> dict[str, object]:
    return make_plan(one_rank(1, 2), GcPolicy(keep_last=1), NOW).to_dict()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format": "another"}, "format: Invalid enum value 'another'"),
        ({"store": None}, "store: Expected `str`, got `null`"),
        ({"actions": [{}]}, r"actions\[0\]: Object missing required field `what`"),
        ({"actions": 3}, "actions: Expected `array`, got `int`"),
        ({"store_bytes": -1}, "store_bytes: Expected `int` >= 0"),
        ({"notes": [1]}, r"notes\[0\]: Expected `str`, got `int`"),
    ],
)
def test_a_plan_that_somebody_else_wrote_is_refused(change: dict[str, object], problem: str) -> None:
    with pytest.raises(UsageError, match=rf"^plan\.json is not a gc plan: {problem}"):
        GcPlan.from_json(json.dumps(_content() | change), "plan.json")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"keep_last": 0}, "policy: keep_last is 0, which is out of range"),
        ({"grace_s": -1.0}, "policy: grace_s is -1.0, which is out of range"),
        ({"grace_s": "1d"}, "policy.grace_s: Expected `float`, got `str`"),
        ({"keep_anomalous": 1}, "policy.keep_anomalous: Expected `bool`, got `int`"),
        ({"keep_worst": 3}, "policy: Object contains unknown field `keep_worst`"),
    ],
)
def test_a_policy_that_gc_does_not_know_is_refused(change: dict[str, object], problem: str) -> None:
    policy = structs.asdict(GcPolicy(keep_last=1)) | change
    with pytest.raises(UsageError, match=rf"^plan\.json is not a gc plan: {problem}"):
        GcPlan.from_json(json.dumps(_content() | {"policy": policy}), "plan.json")


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"generation": "../../rank_1/step_2"}, r"actions\[0\].generation: "),
        ({"generation": f"{'0' * 32}\n"}, r"actions\[0\].generation: "),
        ({"generation": ""}, r"actions\[0\]: 'step' is not what may go"),
        ({"step": None}, r"actions\[0\]: "),
        ({"rank": None}, r"actions\[0\]: "),
        ({"rank": -1}, r"actions\[0\].rank: "),
        ({"step": True}, r"actions\[0\].step: "),
        ({"step": 2**63}, r"actions\[0\].step: "),
        ({"what": "everything"}, r"actions\[0\].what: "),
        ({"what": "temporary"}, r"actions\[0\]: "),
        (
            {"what": "temporary", "rank": None, "step": None, "path": "zarr.json"},
            r"actions\[0\]: ",
        ),
        (
            {"what": "temporary", "rank": None, "step": None, "path": f"../.x.{'0' * 32}.tmp"},
            r"actions\[0\]: ",
        ),
        (
            {"what": "announcement", "rank": None, "step": None, "path": "consolidated/changed/0.1.removed"},
            r"actions\[0\]: ",
        ),
        ({"also": "rank_1"}, r"actions\[0\]: Object contains unknown field `also`"),
    ],
)
def test_a_plan_names_nothing_else_in_the_store(change: dict[str, object], place: str) -> None:
    content = make_plan(one_rank(1, 2), GcPolicy(keep_last=1), NOW).to_dict()
    content["actions"] = [content["actions"][0] | change]
    with pytest.raises(UsageError, match=rf"^plan\.json is not a gc plan: {place}"):
        GcPlan.from_json(json.dumps(content), "plan.json")


@pytest.mark.parametrize("text", ["", "not JSON", "[]", "{}", "[" * 100_000, "\ud800", '{"format": NaN}'])
def test_other_files_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^plan\.json is not a gc plan: "):
        GcPlan.from_json(text, "plan.json")
