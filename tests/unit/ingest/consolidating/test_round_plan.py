"""What one round writes, decided from values alone."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from ingest.consolidating.round_plan import RoundState, Unreadable, plan_round
from workers.model import StepKey


@dataclass(frozen=True)
class Held:
    """Cubes that hold these generations."""

    generations: Mapping[StepKey, str]

    @property
    def ranks(self) -> list[int]:
        return sorted({key.rank for key in self.generations})

    def has(self, step: int) -> bool:
        return any(key.step == step for key in self.generations)

    def fingerprint(self, key: StepKey) -> str:
        return self.generations.get(key, "")


def keys(*pairs: tuple[int, int]) -> list[StepKey]:
    """Return keys from pairs of rank and step."""
    return [StepKey(rank, step) for rank, step in pairs]


def state(
    commits: Mapping[StepKey, str], held: Mapping[StepKey, str] | None = None, *, patience_s: float = 0.0
) -> RoundState:
    """Return a state in which all commits were read, and nothing is wrong."""
    held = held or {}
    return RoundState(
        held=Held(held) if held else None,
        ranks={key.rank for key in commits},
        gone=held.keys() - commits.keys(),
        asked=set(commits),
        damaged=(),
        unreadable={},
        waiting_since={},
        now=100.0,
        patience_s=patience_s,
    )


def test_a_late_rank_and_a_new_generation_rewrite_a_step_with_all_its_ranks() -> None:
    held = dict.fromkeys(keys((0, 1), (1, 1), (0, 2)), "a")
    late = held | {StepKey(1, 2): "a"}
    assert plan_round(state(late, held), late).rewrite == {2: {0, 1}}
    again = held | {StepKey(1, 1): "b"}
    plan = plan_round(state(again, held), again)
    assert plan.rewrite == {1: {0, 1}}
    assert plan.fresh == {StepKey(1, 1)}


def test_a_commit_that_vanished_while_it_was_read_is_gone_and_a_damaged_one_is_not() -> None:
    held = dict.fromkeys(keys((0, 1), (1, 1)), "a")
    before = state(held, held)
    left = dict.fromkeys(keys((0, 1)), "a")
    assert plan_round(before, left).rewrite == {1: {0}}
    assert not plan_round(replace(before, damaged={StepKey(1, 1)}), left)


def test_a_step_waits_for_all_ranks_as_long_as_patience_lasts() -> None:
    commits = dict.fromkeys(keys((0, 1), (1, 1), (0, 2)), "a")
    first = plan_round(state(commits, patience_s=60), commits)
    assert (first.append, first.waiting, first.waiting_since) == ({1: {0, 1}}, (2,), {2: 100.0})
    later = replace(state(commits, patience_s=60), waiting_since=first.waiting_since, now=159.0)
    assert 2 in plan_round(later, commits).waiting
    last = plan_round(replace(later, now=160.0), commits)
    assert 2 in last.append
    assert last.waiting_since == {}


def test_a_damaged_generation_is_not_tried_again_until_another_one_is_committed() -> None:
    commits = dict.fromkeys(keys((0, 1), (1, 1)), "a")
    damage = {StepKey(1, 1): Unreadable("a", "damaged")}
    before = replace(state(commits), unreadable=damage)
    plan = plan_round(before, commits)
    assert plan.append == {1: {0}}
    assert plan.unreadable == damage
    again = commits | {StepKey(1, 1): "b"}
    plan = plan_round(before, again)
    assert plan.append == {1: {0, 1}}
    assert plan.unreadable == {}


_KEYS = st.builds(StepKey, st.integers(0, 2), st.integers(0, 4))
_GENERATIONS = st.dictionaries(_KEYS, st.sampled_from("abc"), max_size=12)


@given(_GENERATIONS, _GENERATIONS)
def test_after_a_round_the_cubes_hold_what_is_committed(
    commits: dict[StepKey, str], held: dict[StepKey, str]
) -> None:
    plan = plan_round(state(commits, held), commits)
    assert list(plan.rewrite) == sorted(plan.rewrite)
    assert list(plan.append) == sorted(plan.append)
    written = {**plan.rewrite, **plan.append}
    after = {key: name for key, name in held.items() if key.step not in written}
    after |= {
        key: commits[key]
        for step, ranks in written.items()
        for key in (StepKey(rank, step) for rank in ranks)
    }
    assert after == commits
    assert not plan_round(state(commits, after), commits)
