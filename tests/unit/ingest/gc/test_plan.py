"""The arithmetic of a plan: what may never go, whatever the policy; and that a policy does what it says."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.store_gc.inventory import Extent, Facts, Generation, Inventory, Leaf
from ingest.store_gc.plan import GcAction, GcPlan, make_plan, shortly
from ingest.store_gc.policy import GcPolicy, duration, parse_duration
from workers.errors import UsageError
from workers.model import StepKey

NOW = 1_800_000_000.0
DAY_S = 86400.0

_NAMES = st.sampled_from([f"{n:032x}" for n in range(4)])
_TIMES = st.floats(0, 10).map(lambda days: NOW - days * DAY_S)
_EXTENTS = st.builds(Extent, st.integers(1, 9), st.integers(1, 1000), _TIMES)
_GENERATIONS = st.builds(Generation, _EXTENTS, _EXTENTS)


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    keys = draw(
        st.sets(
            st.builds(StepKey, st.integers(0, 3), st.none() | st.integers(0, 12)), min_size=1, max_size=20
        )
    )
    leaves = []
    for key in sorted(keys, key=lambda key: key.order):
        generations = draw(st.dictionaries(_NAMES, _GENERATIONS, max_size=3))
        facts: Facts | None = None
        is_committed = draw(st.booleans())
        if generations and is_committed:
            name = draw(st.sampled_from(sorted(generations)))
            facts = Facts(name, draw(_TIMES), draw(st.booleans()), draw(st.booleans()))
        record = Extent(1, 10, draw(_TIMES)) if facts else Extent()
        damaged = "" if facts or not draw(st.booleans()) else "no commit record"
        leaves.append(Leaf(key, generations, record, facts, damaged))
    temporaries = {f"rank_0/.x.{n:032x}.tmp": draw(_EXTENTS) for n in range(draw(st.integers(0, 2)))}
    total = sum((one.whole for leaf in leaves for one in leaf.generations.values()), Extent(3, 1000))
    total += sum((leaf.record for leaf in leaves), sum(temporaries.values(), Extent()))
    steps = st.frozensets(st.integers(0, 12))
    return Inventory("/run.zarr", total, tuple(leaves), temporaries, draw(steps), draw(steps))


_POLICIES = st.builds(
    GcPolicy,
    st.none() | st.floats(0, 12 * DAY_S),
    st.none() | st.integers(1, 5),
    st.none() | st.integers(0, 30_000),
    st.none() | st.integers(0, 3),
    st.booleans(),
    st.floats(0, 5 * DAY_S),
)


@given(inventories(), _POLICIES)
def test_what_may_never_go_stays(inventory: Inventory, policy: GcPolicy) -> None:
    plan = make_plan(inventory, policy, NOW)
    leaves = {leaf.key: leaf for leaf in inventory.leaves}
    for one in plan.actions:
        if one.key is None:
            assert NOW - inventory.temporaries[one.path].newest > policy.grace_s
        elif one.what == "remains":
            _may_be_remains(one, leaves[one.key], policy)
        else:
            _may_lose(one, leaves[one.key], inventory, policy)
    # Nothing goes twice.
    assert len({(one.key, one.generation, one.path) for one in plan.actions}) == len(plan.actions)
    assert plan.nbytes <= inventory.total.nbytes
    assert plan.objects <= inventory.total.objects


def _may_be_remains(one: GcAction, leaf: Leaf, policy: GcPolicy) -> None:
    """Never what a commit points to, and never what was written lately."""
    assert not leaf.damaged
    assert leaf.facts is None or one.generation != leaf.facts.fingerprint
    assert not one.generation or NOW - leaf.generations[one.generation].whole.newest > policy.grace_s


def _may_lose(one: GcAction, leaf: Leaf, inventory: Inventory, policy: GcPolicy) -> None:
    """Never where somebody writes, and never what is protected."""
    assert leaf.facts is not None
    assert one.step is not None
    assert one.generation == leaf.facts.fingerprint
    for name, generation in leaf.generations.items():
        assert name == one.generation or NOW - generation.whole.newest > policy.grace_s
    if one.what == "tensors" and not leaf.facts.has_tensors:
        return  # what is left of a gc that was killed
    steps = [other for other in inventory.leaves if other.facts and other.key.step is not None]
    mine = sorted(other.key.step or 0 for other in steps if other.key.rank == leaf.key.rank)
    assert policy.keep_last is None or one.step not in mine[-policy.keep_last :]
    if one.what == "tensors" or policy.keep_anomalous:
        counted = {other.key.step for other in steps if other.facts and other.facts.anomalous}
        assert one.step not in counted | inventory.anomalous_steps


@given(inventories(), _POLICIES)
def test_a_policy_does_what_it_says(inventory: Inventory, policy: GcPolicy) -> None:
    plan = make_plan(inventory, policy, NOW)
    gone = {one.key for one in plan.actions if one.what == "step"}
    left = [
        leaf for leaf in inventory.leaves if leaf.facts and leaf.key not in gone and leaf.key.step is not None
    ]
    free = [leaf for leaf in left if _is_free(leaf, inventory, policy)]
    if policy.older_than_s is not None:
        assert all(leaf.facts and NOW - leaf.facts.committed_at <= policy.older_than_s for leaf in free)
    if policy.max_bytes is not None and inventory.total.nbytes - plan.nbytes > policy.max_bytes:
        assert not free
        assert any("protected" in note for note in plan.notes)
    if policy.older_than_s is None and policy.max_bytes is None:
        removes = policy.keep_last is not None and policy.tensors_around_anomalies is None
        assert not (free if removes else gone)


def _is_free(leaf: Leaf, inventory: Inventory, policy: GcPolicy) -> bool:
    """Whether nothing protects a step."""
    steps = [one for one in inventory.leaves if one.facts and one.key.step is not None]
    assert leaf.facts is not None
    anomalous = {
        one.key.step for one in steps if one.facts and one.facts.anomalous
    } | inventory.anomalous_steps
    mine = sorted(one.key.step or 0 for one in steps if one.key.rank == leaf.key.rank)
    newest = mine[-policy.keep_last :] if policy.keep_last else []
    written = any(
        NOW - one.whole.newest <= policy.grace_s
        for name, one in leaf.generations.items()
        if name != leaf.facts.fingerprint
    )
    return not (written or leaf.key.step in newest or (policy.keep_anomalous and leaf.key.step in anomalous))


@given(inventories(), _POLICIES)
def test_a_written_plan_is_read_as_it_was(inventory: Inventory, policy: GcPolicy) -> None:
    plan = make_plan(inventory, policy, NOW)
    assert GcPlan.from_json(plan.to_json()) == plan


def made(*steps: int, anomalous: tuple[int, ...] = ()) -> Inventory:
    """Return a store of one rank that was committed ten days ago."""
    one = Generation(Extent(5, 100, 0.0), Extent(5, 10, 0.0))
    leaves = tuple(
        Leaf(
            StepKey(0, step),
            {f"{step:032x}": one},
            Extent(1, 1, 0.0),
            Facts(f"{step:032x}", NOW - 10 * DAY_S, step in anomalous, True),
        )
        for step in steps
    )
    return Inventory("/run.zarr", Extent(11 * len(steps), 111 * len(steps)), leaves, {})


def without_tensors(inventory: Inventory, around: int) -> list[int | None]:
    plan = make_plan(inventory, GcPolicy(tensors_around_anomalies=around), NOW)
    assert {one.what for one in plan.actions} <= {"tensors"}
    return [one.step for one in plan.actions]


def test_distances_count_dumped_steps_and_the_newest_may_come_before_an_anomaly() -> None:
    every_hundredth = made(*range(0, 1000, 100), anomalous=(300,))
    assert without_tensors(every_hundredth, 0) == [0, 100, 200, 400, 500, 600, 700, 800]
    assert without_tensors(every_hundredth, 2) == [0, 600, 700]
    assert without_tensors(made(1, 2, 3, 4, 5), 2) == [1, 2, 3]
    seen = replace(made(1, 2, 3, 4, 5), anomalous_steps=frozenset([1, 99]))
    assert without_tensors(seen, 1) == [3, 4]


def test_the_oldest_go_first_on_all_ranks_and_no_more_than_must() -> None:
    plan = make_plan(made(1, 2, 3, 4, 5), GcPolicy(max_bytes=3 * 111), NOW)
    assert [one.step for one in plan.actions] == [1, 2]
    # Where tensors go anyway, fewer steps must.
    both = GcPolicy(max_bytes=3 * 111, tensors_around_anomalies=0)
    plan = make_plan(made(1, 2, 3, 4, 5, anomalous=(2,)), both, NOW)
    assert [(one.what, one.step) for one in plan.actions] == [("tensors", 1), ("tensors", 3), ("tensors", 4)]


def test_the_newest_are_kept_and_others_go_only_where_nothing_else_says_what_goes() -> None:
    steps = made(1, 2, 3, 4, 5, anomalous=(1,))
    assert _went(steps, GcPolicy(keep_last=2)) == [("step", 1), ("step", 2), ("step", 3)]
    assert _went(steps, GcPolicy(keep_last=2, keep_anomalous=True)) == [("step", 2), ("step", 3)]
    around = GcPolicy(keep_last=2, tensors_around_anomalies=0)
    assert _went(steps, around) == [("tensors", 2), ("tensors", 3)]
    assert _went(steps, GcPolicy(keep_last=2, older_than_s=11 * DAY_S)) == []
    assert _went(steps, GcPolicy(keep_last=2, max_bytes=10**6)) == []


def _went(inventory: Inventory, policy: GcPolicy) -> list[tuple[str, int | None]]:
    return [(one.what, one.step) for one in make_plan(inventory, policy, NOW).actions]


@pytest.mark.parametrize(
    "change",
    [
        {"format": "another"},
        {"policy": {}},
        {"store": None},
        {"actions": [{}]},
        {"actions": 3},
        {"store_bytes": -1},
    ],
)
def test_a_plan_that_was_written_by_somebody_else_is_refused(change: dict[str, object]) -> None:
    row = make_plan(made(1, 2), GcPolicy(keep_last=1), NOW).to_dict() | change
    with pytest.raises(UsageError, match="is no plan of gc"):
        GcPlan.from_json(json.dumps(row))


@pytest.mark.parametrize(
    "change",
    [
        {"generation": "../../rank_1/step_2"},
        {"generation": ""},
        {"step": None},
        {"rank": None},
        {"rank": -1},
        {"step": True},
        {"what": "everything"},
        {"what": "temporary", "rank": None, "step": None, "path": "zarr.json"},
        {"what": "temporary", "rank": None, "step": None, "path": f"../.x.{'0' * 32}.tmp"},
    ],
)
def test_a_plan_names_nothing_but_steps_and_temporaries(change: dict[str, object]) -> None:
    row = make_plan(made(1, 2), GcPolicy(keep_last=1), NOW).to_dict()
    row["actions"] = [row["actions"][0] | change]
    with pytest.raises(UsageError, match="is no plan of gc"):
        GcPlan.from_json(json.dumps(row))


def test_durations_and_sizes() -> None:
    assert [parse_duration(text) for text in ("90s", "1.5h", "30d", "2W")] == [
        90,
        5400,
        30 * DAY_S,
        14 * DAY_S,
    ]
    assert [duration(seconds) for seconds in (90, 5400, 30 * DAY_S, 0, 7200)] == [
        "90s",
        "90m",
        "30d",
        "0s",
        "2h",
    ]
    for text in ("", "30", "d", "-1d", "1y", "inf"):
        with pytest.raises(UsageError):
            parse_duration(text)
    for wrong in ({"keep_last": 0}, {"grace_s": -1.0}, {"older_than_s": float("nan")}):
        with pytest.raises(UsageError, match="makes no sense"):
            GcPolicy(**wrong)


def test_numbers_are_written_shortly() -> None:
    assert shortly(range(5)) == "0-4"
    assert shortly(range(0, 10_000, 100)) == "0 to 9900"
