"""The arithmetic of a plan: what may never go, whatever the policy; and that a policy does what it says."""

from dataclasses import replace

import pytest
from hypothesis import given

from ingest.store_gc.plan import (
    Extent,
    GcAction,
    GcPlan,
    GcPolicy,
    Generation,
    Inventory,
    StepInventory,
    make_plan,
)
from tests.gc_inventories import DAY_S, NOW, POLICIES, inventories, one_rank
from workers.errors import UsageError
from workers.model import StepKey
from workers.store.objects import UnfinishedUpload


@given(inventories(), POLICIES)
def test_what_may_never_go_stays(inventory: Inventory, policy: GcPolicy) -> None:
    plan = make_plan(inventory, policy, NOW)
    steps = {step.key: step for step in inventory.steps}
    for action in plan.actions:
        if action.key is None:
            assert NOW - inventory.temporaries[action.path].newest_at > policy.grace_s
        elif action.what == "remains":
            _assert_is_remains(action, steps[action.key], policy)
        else:
            _assert_may_lose(action, steps[action.key], inventory, policy)
    # Nothing goes twice.
    assert len({(action.key, action.generation, action.path) for action in plan.actions}) == len(plan.actions)
    assert plan.nbytes <= inventory.total.nbytes
    assert plan.objects <= inventory.total.objects


def _assert_is_remains(action: GcAction, step: StepInventory, policy: GcPolicy) -> None:
    """Never what a commit points to, and never what was written lately."""
    assert not step.damage
    assert action.generation != (step.fingerprint or None)
    if action.generation:
        assert NOW - step.generations[action.generation].whole.newest_at > policy.grace_s


def _assert_may_lose(action: GcAction, step: StepInventory, inventory: Inventory, policy: GcPolicy) -> None:
    """Never where somebody writes, and never what is protected."""
    assert step.fingerprint
    assert action.step is not None
    assert action.generation == step.fingerprint
    for name, generation in step.generations.items():
        assert name == action.generation or NOW - generation.whole.newest_at > policy.grace_s
    if action.what == "tensors" and not step.has_tensors:
        return  # what is left of a gc that was killed
    committed = _committed(inventory)
    of_rank = sorted(other.key.step or 0 for other in committed if other.key.rank == step.key.rank)
    assert policy.keep_last is None or action.step not in of_rank[-policy.keep_last :]
    if action.what == "tensors" or policy.keep_anomalous:
        counted = {other.key.step for other in committed if other.is_anomalous}
        assert action.step not in counted | inventory.anomalous_steps


def _committed(inventory: Inventory) -> list[StepInventory]:
    return [step for step in inventory.steps if step.fingerprint and step.key.step is not None]


@given(inventories(), POLICIES)
def test_a_policy_does_what_it_says(inventory: Inventory, policy: GcPolicy) -> None:
    plan = make_plan(inventory, policy, NOW)
    gone = {action.key for action in plan.actions if action.what == "step"}
    left = [step for step in _committed(inventory) if step.key not in gone]
    free = [step for step in left if _is_free(step, inventory, policy)]
    if policy.older_than_s is not None:
        assert all(NOW - step.committed_at <= policy.older_than_s for step in free)
    if policy.max_bytes is not None and inventory.total.nbytes - plan.nbytes > policy.max_bytes:
        assert not free
        assert any("protected" in note for note in plan.notes)
    if policy.older_than_s is None and policy.max_bytes is None:
        removes = policy.keep_last is not None and policy.tensors_around_anomalies is None
        assert not (free if removes else gone)


def _is_free(step: StepInventory, inventory: Inventory, policy: GcPolicy) -> bool:
    """Return whether nothing protects a step."""
    committed = _committed(inventory)
    assert step.fingerprint
    anomalous = {other.key.step for other in committed if other.is_anomalous} | inventory.anomalous_steps
    of_rank = sorted(other.key.step or 0 for other in committed if other.key.rank == step.key.rank)
    newest = of_rank[-policy.keep_last :] if policy.keep_last else []
    is_written = any(
        NOW - generation.whole.newest_at <= policy.grace_s
        for name, generation in step.generations.items()
        if name != step.fingerprint
    )
    return not (
        is_written or step.key.step in newest or (policy.keep_anomalous and step.key.step in anomalous)
    )


def without_tensors(inventory: Inventory, around: int) -> list[int | None]:
    plan = make_plan(inventory, GcPolicy(tensors_around_anomalies=around), NOW)
    assert {action.what for action in plan.actions} <= {"tensors"}
    return [action.step for action in plan.actions]


def test_distances_count_dumped_steps_and_the_newest_may_come_before_an_anomaly() -> None:
    every_hundredth = one_rank(*range(0, 1000, 100), anomalous=(300,))
    assert without_tensors(every_hundredth, 0) == [0, 100, 200, 400, 500, 600, 700, 800]
    assert without_tensors(every_hundredth, 2) == [0, 600, 700]
    assert without_tensors(one_rank(1, 2, 3, 4, 5), 2) == [1, 2, 3]
    seen = replace(one_rank(1, 2, 3, 4, 5), anomalous_steps=frozenset([1, 99]))
    assert without_tensors(seen, 1) == [3, 4]


def test_the_oldest_go_first_on_all_ranks_and_no_more_than_must() -> None:
    plan = make_plan(one_rank(1, 2, 3, 4, 5), GcPolicy(max_bytes=3 * 111), NOW)
    assert [action.step for action in plan.actions] == [1, 2]
    # Where tensors go anyway, fewer steps must.
    both = GcPolicy(max_bytes=3 * 111, tensors_around_anomalies=0)
    plan = make_plan(one_rank(1, 2, 3, 4, 5, anomalous=(2,)), both, NOW)
    assert [(action.what, action.step) for action in plan.actions] == [
        ("tensors", 1),
        ("tensors", 3),
        ("tensors", 4),
    ]


def test_the_newest_are_kept_and_others_go_only_if_nothing_else_gives_a_reason() -> None:
    steps = one_rank(1, 2, 3, 4, 5, anomalous=(1,))
    assert _gone(steps, GcPolicy(keep_last=2)) == [("step", 1), ("step", 2), ("step", 3)]
    assert _gone(steps, GcPolicy(keep_last=2, keep_anomalous=True)) == [("step", 2), ("step", 3)]
    around = GcPolicy(keep_last=2, tensors_around_anomalies=0)
    assert _gone(steps, around) == [("tensors", 2), ("tensors", 3)]
    assert _gone(steps, GcPolicy(keep_last=2, older_than_s=11 * DAY_S)) == []
    assert _gone(steps, GcPolicy(keep_last=2, max_bytes=10**6)) == []


def _gone(inventory: Inventory, policy: GcPolicy) -> list[tuple[str, int | None]]:
    return [(action.what, action.step) for action in make_plan(inventory, policy, NOW).actions]


def test_chosen_steps_go_and_nothing_else() -> None:
    """What went in by mistake is taken back, however old or anomalous it is."""
    steps = one_rank(1, 2, 3, 4, 5, anomalous=(4,))
    assert _gone(steps, GcPolicy(ranks=(0,), steps=(2, 4))) == [("step", 2), ("step", 4)]
    assert _gone(steps, GcPolicy(steps=(5,))) == [("step", 5)]
    assert len(_gone(steps, GcPolicy(ranks=(0,)))) == 5
    with pytest.raises(UsageError, match="no step 9"):
        make_plan(steps, GcPolicy(steps=(1, 9)), NOW)
    with pytest.raises(UsageError, match="no rank 7"):
        make_plan(steps, GcPolicy(ranks=(7,)), NOW)


def test_what_is_wrong_with_a_choice_is_named() -> None:
    first = one_rank(1, 2).steps
    second = tuple(replace(step, key=StepKey(1, step.key.step)) for step in one_rank(3).steps)
    inventory = replace(one_rank(1), steps=(*first, *second))
    with pytest.raises(UsageError, match="no step 9"):
        make_plan(inventory, GcPolicy(ranks=(0,), steps=(9,)), NOW)
    with pytest.raises(UsageError, match="rank 1 has none of these steps"):
        make_plan(inventory, GcPolicy(ranks=(0, 1), steps=(1,)), NOW)
    with pytest.raises(UsageError, match="none of these ranks has step 3"):
        make_plan(inventory, GcPolicy(ranks=(0,), steps=(1, 3)), NOW)


def test_a_chosen_step_that_is_not_committed_is_named() -> None:
    (step,) = one_rank(1).steps
    bare = replace(one_rank(1), steps=(replace(step, fingerprint="", record=Extent()),))
    plan = make_plan(bare, GcPolicy(steps=(1,)), NOW)
    assert plan.actions == ()
    assert plan.notes[0].startswith("rank 0 step 1: not committed")


def test_changes_that_were_never_finished_end_after_the_grace_period() -> None:
    old, young = (f"consolidated/changed/0.1.begun-{digit * 32}" for digit in "ab")
    changes = {old: Extent(1, 0, NOW - 2 * DAY_S), young: Extent(1, 0, NOW - 60)}
    plan = make_plan(replace(one_rank(1), unfinished_changes=changes), GcPolicy(), NOW)
    assert [(action.what, action.path) for action in plan.actions] == [("announcement", old)]
    assert (plan.objects, GcPlan.from_json(plan.to_json()).actions) == (0, plan.actions)


def test_uploads_go_after_the_grace_period_and_are_counted_before() -> None:
    old = UnfinishedUpload("rank_0/step_9/x/tensors/float32/c/0", "a", 64, NOW - 2 * DAY_S)
    young = replace(old, upload_id="b", written_at=NOW - 60)
    plan = make_plan(replace(one_rank(1), uploads=(old, young)), GcPolicy(), NOW)
    assert [(action.what, action.path, action.upload, action.nbytes) for action in plan.actions] == [
        ("upload", old.key, "a", 64)
    ]
    assert any("1 uploads in parts (64 B) are under way" in note for note in plan.notes)
    assert GcPlan.from_json(plan.to_json()) == plan
    unknown = replace(one_rank(1), uploads_unknown="it takes s3:ListBucketMultipartUploads")
    assert "s3:ListBucketMultipartUploads" in make_plan(unknown, GcPolicy(), NOW).notes[0]


A, B = (f"pool/step_1/{digit * 64}/float32" for digit in "ab")
OLD = Extent(2, 100, NOW - 10 * DAY_S)


def member(rank: int, *refers_to: str, damage: str = "") -> StepInventory:
    """Return what a rank has of step 1, committed ten days ago."""
    name, facts = ("", (0.0, False, False)) if damage else ("f" * 32, (NOW - 10 * DAY_S, False, True))
    record = Extent(1, 1, NOW - 10 * DAY_S)
    held = {"f" * 32: Generation(OLD, OLD + OLD)}
    return StepInventory(StepKey(rank, 1), held, record, name, *facts, frozenset(refers_to), damage)


def unused(*members: StepInventory, b: Extent = OLD, policy: GcPolicy | None = None) -> list[str]:
    """Return the arrays in the pool that go, and the notes about those that stay."""
    inventory = Inventory("/run.zarr", Extent(9, 10**6), members, pools={1: {A: OLD, B: b}})
    plan = make_plan(inventory, policy or GcPolicy(), NOW)
    notes = [note for note in plan.notes if "in pools" in note]
    return [*(action.path for action in plan.actions if action.what == "pool"), *notes]


def test_arrays_in_a_pool_go_with_the_last_step_that_refers_to_them() -> None:
    assert unused(member(0, A), member(1, B)) == []
    assert unused(member(0, A), member(1, A)) == [B]
    removed = GcPolicy(older_than_s=DAY_S)
    assert unused(member(0, A), member(1, A, B), policy=removed) == [A, B]
    assert unused(member(0, A), replace(member(1, B), committed_at=NOW), policy=removed) == [A]
    assert unused(member(0, A), member(1, damage="truncated")) == []  # what it refers to is not known
