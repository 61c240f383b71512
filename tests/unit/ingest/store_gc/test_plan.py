"""A policy and a plan as a user gives them: read, written, and refused if they can name something else."""

import json

import pytest
from hypothesis import given
from msgspec import structs

from ingest.store_gc.plan import DAY_S, GcPlan, GcPolicy, Inventory, duration, make_plan, parse_duration
from tests.gc_inventories import NOW, POLICIES, inventories, one_rank
from workers.errors import UsageError


def test_durations_are_read_in_any_unit_and_written_in_the_largest_that_is_whole() -> None:
    texts = ("90s", "1.5h", "30d", "2W", "0s")
    lengths = [parse_duration(text) for text in texts]
    assert lengths == [90, 5400, 30 * DAY_S, 14 * DAY_S, 0]
    assert [duration(seconds) for seconds in lengths] == ["90s", "90m", "30d", "14d", "0s"]


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1y", "inf"])
def test_a_duration_without_number_or_unit_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a valid duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("wrong", "lowest"),
    [({"keep_last": 0}, 1), ({"grace_s": -1.0}, 0), ({"older_than_s": float("nan")}, 0)],
)
def test_numbers_out_of_range_are_refused(wrong: dict[str, float], lowest: int) -> None:
    with pytest.raises(UsageError, match="out of range") as refusal:
        GcPolicy(**wrong)  # type: ignore[arg-type]  # wrong on purpose
    assert refusal.value.hint == f"Give a number of at least {lowest}."


@given(inventories(), POLICIES)
def test_a_written_plan_is_read_as_it_was(inventory: Inventory, policy: GcPolicy) -> None:
    plan = make_plan(inventory, policy, NOW)
    assert GcPlan.from_json(plan.to_json()) == plan
    assert json.loads(plan.to_json()) == json.loads(json.dumps(plan.to_dict()))


def test_a_plan_file_has_a_line_for_each_action() -> None:
    plan = make_plan(one_rank(1, 2, 3), GcPolicy(keep_last=1), NOW)
    lines = plan.to_json().splitlines()
    assert sum('"what": "step"' in line for line in lines) == len(plan.actions) == 2
    # An action may be taken out by hand: the totals are not read.
    shorter = json.loads(plan.to_json())
    del shorter["actions"][0]
    assert GcPlan.from_json(json.dumps(shorter)).actions == plan.actions[1:]


BESIDE = {"rank": None, "step": None}


@pytest.mark.parametrize(
    ("where", "change", "problem"),
    [
        ("plan", {"format": "another"}, "format: Invalid enum value 'another'"),
        ("plan", {"store": None}, "store: Expected `str`, got `null`"),
        ("plan", {"actions": [{}]}, r"actions\[0\]: Object missing required field `what`"),
        ("plan", {"store_bytes": -1}, "store_bytes: Expected `int` >= 0"),
        ("plan", {"notes": [1]}, r"notes\[0\]: Expected `str`, got `int`"),
        ("policy", {"keep_last": 0}, "policy: keep_last is 0, which is out of range"),
        ("policy", {"grace_s": "1d"}, "policy.grace_s: Expected `float`, got `str`"),
        ("policy", {"keep_worst": 3}, "policy: Object contains unknown field `keep_worst`"),
        ("action", {"generation": "../../rank_1/step_2"}, r"actions\[0\].generation: "),
        ("action", {"generation": f"{'0' * 32}\n"}, r"actions\[0\].generation: "),
        ("action", {"generation": ""}, r"actions\[0\]: 'step' is not what may go"),
        ("action", {"step": None}, r"actions\[0\]: "),
        ("action", {"step": "three"}, r"actions\[0\].step: Expected `int | null`, got `str`"),
        ("action", {"rank": None}, r"actions\[0\]: "),
        ("action", {"rank": -1}, r"actions\[0\].rank: "),
        ("action", {"step": True}, r"actions\[0\].step: "),
        ("action", {"step": 2**63}, r"actions\[0\].step: "),
        ("action", {"what": "everything"}, r"actions\[0\].what: "),
        ("action", {"what": "temporary"}, r"actions\[0\]: "),
        ("action", {"what": "temporary", **BESIDE, "path": "zarr.json"}, r"actions\[0\]: "),
        ("action", {"what": "temporary", **BESIDE, "path": f"../.x.{'0' * 32}.tmp"}, r"actions\[0\]: "),
        ("action", {"what": "upload", **BESIDE, "path": "../x", "upload": "a"}, r"actions\[0\]: "),
        ("action", {"what": "pool", **BESIDE, "path": "rank_0/step_1"}, r"actions\[0\]: "),
        ("action", {"what": "announcement", **BESIDE, "path": "consolidated/changed/0.1.removed"}, r"act"),
        ("action", {"also": "rank_1"}, r"actions\[0\]: Object contains unknown field `also`"),
    ],
)
def test_a_plan_names_nothing_but_what_gc_removes(
    where: str, change: dict[str, object], problem: str
) -> None:
    """A plan file is not trusted, and a refusal names the file, the place and the next step."""
    plan = make_plan(one_rank(1, 2), GcPolicy(keep_last=1), NOW)
    content = plan.to_dict()
    if where == "plan":
        content |= change
    elif where == "policy":
        content["policy"] = structs.asdict(plan.policy) | change
    else:
        content["actions"] = [content["actions"][0] | change]
    with pytest.raises(UsageError, match=rf"^plan\.json is not a gc plan: {problem}") as refusal:
        GcPlan.from_json(json.dumps(content), "plan.json")
    assert refusal.value.hint == "Make the plan again: dump-ingest gc STORE ... --plan FILE"


@pytest.mark.parametrize("text", ["", "not JSON", "[]", "{}", "[" * 100_000, "\ud800", '{"format": NaN}'])
def test_other_files_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^plan\.json is not a gc plan: "):
        GcPlan.from_json(text, "plan.json")
