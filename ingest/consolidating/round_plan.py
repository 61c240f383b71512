"""What one round of the consolidator writes: a decision over values, without I/O and without a clock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

from workers.model import StepKey


class HeldSteps(Protocol):
    """What the cubes hold."""

    @property
    def ranks(self) -> Sequence[int]:
        """The ranks on the axis of the cubes."""

    def has(self, step: int) -> bool:
        """Return whether a step is on the axis of the cubes."""

    def fingerprint(self, key: StepKey) -> str:
        """Return the generation of a step that is in the cubes; "" if none is."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A committed generation whose tables are damaged."""

    fingerprint: str
    reason: str


@dataclass(frozen=True, slots=True)
class RoundState:
    """What is known when the commits of a round have been read."""

    held: HeldSteps | None
    """None without cubes."""
    ranks: AbstractSet[int]
    """The ranks that have committed steps."""
    gone: AbstractSet[StepKey]
    """Steps that are in the cubes and were not listed."""
    asked: AbstractSet[StepKey]
    """Steps whose commits were read, or found missing or damaged."""
    damaged: Collection[StepKey]
    """Steps whose commits are damaged."""
    unreadable: Mapping[StepKey, Unreadable]
    """Generations that could not be read in earlier rounds."""
    waiting_since: Mapping[int, float]
    """When each step was first seen that waited for ranks; by the clock of `now`."""
    now: float
    patience_s: float
    """How long a step waits for the ranks that have not committed it."""


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """What one round writes. Steps are in ascending order."""

    fresh: AbstractSet[StepKey]
    """Commits that the cubes do not hold, and that can be read."""
    rewrite: Mapping[int, set[int]]
    """Steps that are in the cubes and have changed: by step, all ranks that they have now."""
    append: Mapping[int, set[int]]
    """Steps that are new in the cubes: by step, its ranks."""
    waiting: tuple[int, ...]
    """New steps that wait for more ranks."""
    waiting_since: Mapping[int, float]
    unreadable: Mapping[StepKey, Unreadable]
    """Generations that are still committed and cannot be read."""

    def __bool__(self) -> bool:
        return bool(self.rewrite or self.append)


def plan_round(state: RoundState, commits: Mapping[StepKey, str]) -> RoundPlan:
    """Decide what a round writes.

    Args:
        state: what is known.
        commits: the generations that the commits of `state.asked` point to.
    """
    held = state.held
    name_held: Callable[[StepKey], str] = held.fingerprint if held else lambda _: ""
    # Damaged generations that commits still point to.
    unreadable = {
        key: damage for key, damage in state.unreadable.items() if commits.get(key) == damage.fingerprint
    }
    fresh = {key for key, name in commits.items() if name != name_held(key) and key not in unreadable}
    # Steps of the cubes that were listed, and had no commit when it was read, are gone, too.
    absent = state.asked - commits.keys() - {*state.damaged}
    gone = state.gone | {key for key in absent if name_held(key)}
    rewrite: dict[int, set[int]] = {}
    new: dict[int, set[int]] = {}
    for step, ranks in sorted(_ranks_by_step(fresh, gone).items()):
        if held and held.has(step):
            keys = {StepKey(rank, step) for rank in held.ranks} - gone
            rewrite[step] = ranks | {key.rank for key in keys if name_held(key)}
        else:
            new[step] = ranks
    since = {**dict.fromkeys(new, state.now), **state.waiting_since}
    append = {
        step: ranks
        for step, ranks in new.items()
        if ranks == state.ranks or state.now - since[step] >= state.patience_s
    }
    return RoundPlan(
        fresh,
        rewrite,
        append,
        tuple(sorted(new.keys() - append.keys())),
        {step: at for step, at in since.items() if step not in append},
        unreadable,
    )


def _ranks_by_step(fresh: AbstractSet[StepKey], gone: AbstractSet[StepKey]) -> dict[int, set[int]]:
    """Return the ranks with a fresh commit for each step in which anything changed."""
    ranks: dict[int, set[int]] = {}
    for key in fresh | gone:
        if key.step is not None:
            of_step = ranks.setdefault(key.step, set())
            if key not in gone:
                of_step.add(key.rank)
    return ranks
