"""What one round writes, decided from values alone."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ingest.consolidating.round_plan import RoundPlan, plan_round
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


def planned(
    commits: Mapping[StepKey, str],
    held: Mapping[StepKey, str],
    listed: Collection[StepKey] | None = None,
    damaged: Collection[StepKey] = (),
) -> RoundPlan:
    """Plan a round after all commits that were listed have been read."""
    keys, cubes = set(commits if listed is None else listed), Held(held) if held else None
    writer: Any = cubes
    return plan_round(
        commits,
        writer,
        asked=keys,
        gone=held.keys() - keys,
        damaged=damaged,
        unreadable={},
        ranks={key.rank for key in commits},
        waiting_since={},
        now=100.0,
        patience_s=0.0,
    )


def test_a_commit_that_vanished_while_it_was_read_is_gone_and_a_damaged_one_is_not() -> None:
    held = {StepKey(0, 1): "a", StepKey(1, 1): "a"}
    left = {StepKey(0, 1): "a"}
    assert planned(left, held, held).rewrite == {1: {0}}
    assert not planned(left, held, held, damaged={StepKey(1, 1)})


_KEYS = st.builds(StepKey, st.integers(0, 2), st.integers(0, 4))
_GENERATIONS = st.dictionaries(_KEYS, st.sampled_from("abc"), max_size=12)


@given(_GENERATIONS, _GENERATIONS)
def test_after_a_round_the_cubes_hold_what_is_committed(
    commits: dict[StepKey, str], held: dict[StepKey, str]
) -> None:
    plan = planned(commits, held)
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
    assert not planned(commits, after)
