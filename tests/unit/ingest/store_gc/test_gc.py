"""What gc removes, in which order, and what stays."""

import json
import shutil
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import zarr
from hypothesis import given
from msgspec import structs

import ingest
from ingest.api import open_store, plan_recompress, recompress_store
from ingest.reader.verifying import verify
from ingest.store_gc.execute import KEY, Execution, GcRuns, read_last_runs, record_run, recorded
from ingest.store_gc.plan import (
    Extent,
    GcAction,
    GcPlan,
    GcPolicy,
    Generation,
    Inventory,
    StepInventory,
    duration,
    make_plan,
    parse_duration,
    take_inventory,
)
from tests import checker
from tests.cli import run as cli_run
from tests.gc_stores import (
    DAY_S,
    NOW,
    POLICIES,
    POLICY,
    Fragile,
    Killed,
    age,
    assert_sound,
    fill,
    gc,
    inventories,
    make_store,
    objects_of,
    one_rank,
    steps_of,
    without_times,
)
from tests.stores import MadeDump, ingest_directly
from workers.errors import StepRemoved, StoreDenied, TensorsRemoved, UsageError
from workers.model import StepKey
from workers.store import commit
from workers.store.commit import BEGUN, DONE, REMOVED, announce, changing, path_of, read_announcements
from workers.store.objects import ObjectStore, UnfinishedUpload
from workers.store.opening import connect, open_objects, resolve
from workers.store.packed import recompressing

# A policy and a plan as a user gives them: read, written, and refused if they can name something else.


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


# The arithmetic of a plan: what may never go, whatever the policy; and that a policy does what it says.


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


# Carrying a plan out: what goes, what stays, and what others see meanwhile.


def test_killed_before_any_of_its_writes_it_leaves_whole_steps_and_ends_the_same(
    gc_base: Path, tmp_path: Path
) -> None:
    policy = GcPolicy(keep_last=3, keep_anomalous=True)
    whole = shutil.copytree(gc_base / "run.zarr", tmp_path / "whole.zarr")
    shutil.rmtree(whole / "rank_1")
    small = shutil.copytree(whole, tmp_path / "small.zarr")
    gc(whole, policy)
    assert_sound(whole)
    expected = without_times(whole)
    killed = 0
    while True:
        store = tmp_path / "run.zarr"
        shutil.copytree(small, store)
        fragile = Fragile(connect(resolve(str(store))), killed)
        plan = make_plan(take_inventory(fragile, anomalies=True), policy, time.time())
        try:
            Execution(fragile, plan, threads=1).run()
        except Killed:
            assert_sound(store)
            age(store)
            again = gc(store, policy)
            assert not again.left
            assert without_times(store) == expected, killed
            shutil.rmtree(store)
            killed += 1
            continue
        break
    assert killed > 20
    assert fragile.left == 0


def test_a_step_that_was_committed_again_is_left_alone(store: Path) -> None:
    plan = ingest.plan_gc(store, POLICY)
    again = MadeDump(store.parent / "again")
    again.root.mkdir()
    fill(again, [0, 1], ranks=1, nan_in=[])
    ingest_directly(again.root, store)
    report = ingest.apply_gc(store, plan)
    assert {(done.action.rank, done.action.step, done.left) for done in report.left} == {
        (0, step, "it was committed again since the plan was made") for step in (0, 1)
    }
    assert (0, 0) in steps_of(store)
    assert (1, 0) not in steps_of(store)
    assert_sound(store)


def test_who_opened_a_step_before_hears_that_it_was_removed(store: Path) -> None:
    opened = ingest.open_store(store)
    read, unread, thinned = opened.step(0, 0), opened.step(0, 1), opened.step(0, 4)
    tensors = read.tensors()
    values = thinned.tensors()[0]
    gc(store, GcPolicy(keep_last=2))
    gc(store, GcPolicy(tensors_around_anomalies=0))
    with pytest.raises(StepRemoved, match="rank 0 step 0 was removed"):
        tensors[0].read()
    with pytest.raises(StepRemoved, match="rank 0 step 1 was removed"):
        unread.tensors()
    with pytest.raises(TensorsRemoved, match="rank 0 step 4: the tensors were removed"):
        values.read()
    assert list(verify(opened, [StepKey(0, 0), StepKey(0, 4)])) == []


def test_nothing_behind_a_link_goes(store: Path, tmp_path: Path) -> None:
    """Whoever may write into a store could have it lead to another one; a plan could name that, too."""
    other = shutil.copytree(store, tmp_path / "other.zarr")
    plan = ingest.plan_gc(store, POLICY)
    before = checker.objects(other)
    shutil.rmtree(store / "rank_1")
    (store / "rank_1").symlink_to(other / "rank_1")
    (store / "rank_0" / "step_99").symlink_to(other / "rank_0" / "step_0")
    assert {action.rank for action in ingest.plan_gc(store, POLICY).actions} == {0}
    report = ingest.apply_gc(store, plan)
    assert {done.action.rank for done in report.left} == {1}
    assert checker.objects(other) == before


def test_a_clock_that_is_wrong_removes_nothing(store: Path) -> None:
    """Else what is just being written would look old."""
    objects = objects_of(store)
    tomorrow = time.time() + DAY_S
    plan = make_plan(take_inventory(objects), POLICY, tomorrow)
    before = checker.objects(store)
    with pytest.raises(UsageError, match="ahead of the clock of the store"):
        Execution(objects, plan, clock=lambda: tomorrow).run()
    assert checker.objects(store) == before


@pytest.mark.parametrize("made_at", ["2199-01-01T00:00:00+00:00", "soon"])
def test_a_plan_from_a_clock_that_ran_ahead_removes_nothing(store: Path, made_at: str) -> None:
    plan = structs.replace(ingest.plan_gc(store, POLICY), made_at=made_at)
    before = checker.objects(store)
    with pytest.raises(UsageError, match="the plan"):
        Execution(objects_of(store), plan).run()
    assert checker.objects(store) == before


def test_a_clock_that_jumps_while_it_runs_makes_nothing_old(store: Path) -> None:
    """What decides is the clock of the store at the start, and since then a monotonic one."""
    now = [time.time()]
    execution = Execution(objects_of(store), ingest.plan_gc(store, POLICY), clock=lambda: now[0])
    execution._compare_clocks()
    now[0] += 10 * DAY_S
    assert abs(execution._now() - time.time()) < 60


# One listing of a store says what there is, and whose it is.


LISTED_KEY = StepKey(0, 3)


def test_every_object_is_counted_once(store: Path) -> None:
    inventory = take_inventory(objects_of(store))
    files = [path for path in store.rglob("*") if path.is_file()]
    assert inventory.total.objects == len(files)
    assert inventory.total.nbytes == sum(path.stat().st_size for path in files)
    steps = {step.key: step for step in inventory.steps}
    assert set(steps) == {
        *(StepKey(rank, step) for rank in range(2) for step in range(6)),
        StepKey(0, 7),
    }
    below = sum((held.whole for step in steps.values() for held in step.generations.values()), Extent())
    below += sum((step.record for step in steps.values()), sum(inventory.temporaries.values(), Extent()))
    paths = [path.relative_to(store).as_posix() for path in files]
    assert below.objects == sum(path.startswith(tuple(f"{key.path}/" for key in steps)) for path in paths)


def test_what_no_commit_points_to_is_told_from_what_is_committed(store: Path) -> None:
    """The store has a previous generation of one step, a step without a commit, and a temporary object."""
    objects = objects_of(store)
    inventory = take_inventory(objects)
    uncommitted = {step.key: len(step.uncommitted) for step in inventory.steps if step.uncommitted}
    assert uncommitted == {StepKey(0, 5): 1, StepKey(0, 7): 1}
    for step in inventory.steps:
        committed = commit.read(objects, step.key)
        assert step.fingerprint == (committed.fingerprint if committed else "")
    (temporary,) = inventory.temporaries
    assert temporary == f"rank_0/step_0/.zarr.json.{'0' * 32}.tmp"


def test_changes_without_an_end_are_told_from_finished_ones(store: Path) -> None:
    objects = objects_of(store)
    with changing(objects, LISTED_KEY):
        pass
    with suppress(RuntimeError), changing(objects, LISTED_KEY):
        raise RuntimeError
    announce(objects, LISTED_KEY, REMOVED)
    words = read_announcements(objects)[LISTED_KEY]
    done = {word.removeprefix(DONE) for word in words if word.startswith(DONE)}
    (path,) = take_inventory(objects).unfinished_changes
    (lone,) = {word.removeprefix(BEGUN) for word in words if word.startswith(BEGUN)} - done
    assert path == path_of(LISTED_KEY, f"{BEGUN}{lone}")


def test_a_damaged_commit_is_named(store: Path) -> None:
    (store / "rank_0" / "step_3" / "zarr.json").write_bytes(b"half of it")
    (step,) = [step for step in take_inventory(objects_of(store)).steps if step.damage]
    assert step.key == StepKey(0, 3)
    assert not step.fingerprint


# The record that gc leaves in a store.


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    found = open_objects(resolve(str(tmp_path / "run.zarr")))
    commit.ensure_root(found)
    return found


def test_the_record_is_plain_zarr_and_keeps_both_ends(objects: ObjectStore) -> None:
    assert read_last_runs(objects) is None
    record_run(objects, clock=lambda: 10.0)
    record_run(objects, "denied", clock=lambda: 20.0)
    runs = read_last_runs(objects)
    assert runs == GcRuns(10.0, 20.0, "denied")
    assert runs.is_failing
    group = zarr.open_group(objects.address.url, mode="r")["gc"]
    assert group.attrs["dump_ingest"] == {"succeeded_at": 10.0, "failed_at": 20.0, "reason": "denied"}
    record_run(objects, clock=lambda: 30.0)
    assert not (read_last_runs(objects) or GcRuns()).is_failing


def test_the_end_of_a_block_is_recorded(objects: ObjectStore) -> None:
    message = "it may not delete"
    with pytest.raises(StoreDenied), recorded(objects):
        raise StoreDenied(message)
    runs = read_last_runs(objects)
    assert runs is not None
    assert (runs.is_failing, runs.reason) == (True, message)
    with recorded(objects):
        pass
    assert not (read_last_runs(objects) or GcRuns()).is_failing


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b'{"attributes": {"dump_ingest": {"failed_at": "x"}}}'])
def test_a_damaged_record_says_nothing(data: bytes, objects: ObjectStore) -> None:
    objects.put(KEY, data)
    assert read_last_runs(objects) is None


# `gc --recompress`: which steps it takes, from Python and from the command line.


@pytest.fixture
def packed_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(recompressing, "_LEAST_SAVING", -1000.0)
    make_store(tmp_path)
    return tmp_path / "run.zarr"


def test_old_steps_with_tensors_are_taken_once(packed_store: Path) -> None:
    assert plan_recompress(packed_store).keys == ()  # they were committed just now
    plan = plan_recompress(packed_store, older_than_s=0)
    assert [(key.rank, key.step) for key in plan.keys] == steps_of(packed_store)
    assert plan.nbytes > 0
    assert len(plan_recompress(packed_store, older_than_s=0, ranks=[1], steps=[2, 3]).keys) == 2
    stop = threading.Event()
    report = recompress_store(packed_store, plan, stop=stop)
    assert (report.steps, report.stopped) == (len(plan.keys), False)
    assert_sound(packed_store)
    assert plan_recompress(open_store(packed_store), older_than_s=0).keys == ()
    stop.set()
    assert recompress_store(packed_store, plan, stop=stop).to_dict()["stopped"]


def test_steps_that_are_not_there_are_a_mistake(packed_store: Path) -> None:
    with pytest.raises(UsageError):
        plan_recompress(packed_store, ranks=[17])


def test_the_command_line(tmp_path: Path) -> None:
    make_store(tmp_path)
    words = ("gc", "run.zarr", "--recompress", "0s")
    dry = cli_run(*words, "--rank", "1", cwd=tmp_path)
    assert dry.code == 0
    assert "6 steps to encode again" in dry.stderr + dry.stdout
    assert "Add --apply" in dry.stderr + dry.stdout
    done = cli_run(*words, "--apply", "--json", cwd=tmp_path)
    assert done.code == 0, done.stderr
    row = json.loads(done.stdout)
    # Tensors of a hundred bytes: hardly anything is saved, and the reason is told.
    assert len(row["done"]) == 12
    assert "it would save less than 3%" in done.stderr
    wrong = cli_run(*words, "--older-than", "3d", cwd=tmp_path, code=2)
    assert "--recompress removes nothing" in wrong.stderr
