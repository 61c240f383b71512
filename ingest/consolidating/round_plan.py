"""What one round of the consolidator writes: a decision over values, without I/O and without a clock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workers.model import StepKey

if TYPE_CHECKING:
    from ingest.consolidating.cube_writer import CubeWriter


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A committed generation whose tables are damaged."""

    fingerprint: str
    reason: str


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


def plan_round(
    commits: Mapping[StepKey, str],
    held: CubeWriter | None,
    *,
    asked: AbstractSet[StepKey],
    gone: AbstractSet[StepKey],
    damaged: Collection[StepKey],
    unreadable: Mapping[StepKey, Unreadable],
    ranks: AbstractSet[int],
    waiting_since: Mapping[int, float],
    now: float,
    patience_s: float,
) -> RoundPlan:
    """Decide what a round writes when its commits have been read.

    Args:
        commits: the generations that the commits of `asked` point to.
        held: the cubes; None without any.
        asked: steps whose commits were read, or found missing or damaged.
        gone: steps that are in the cubes and were not listed.
        damaged: steps whose commits are damaged.
        unreadable: generations that could not be read in earlier rounds.
        ranks: the ranks that have committed steps.
        waiting_since: when each step was first seen that waited for ranks; by the clock of `now`.
        now: the time by any clock.
        patience_s: how long a step waits for the ranks that have not committed it.
    """
    name_held: Callable[[StepKey], str] = held.fingerprint if held else lambda _: ""
    # Damaged generations that commits still point to.
    still = {key: damage for key, damage in unreadable.items() if commits.get(key) == damage.fingerprint}
    fresh = {key for key, name in commits.items() if name != name_held(key) and key not in still}
    # Steps of the cubes that were listed, and had no commit when it was read, are gone, too.
    absent = asked - commits.keys() - {*damaged}
    gone = {*gone, *(key for key in absent if name_held(key))}
    rewrite: dict[int, set[int]] = {}
    new: dict[int, set[int]] = {}
    for step, own in sorted(_ranks_by_step(fresh, gone).items()):
        if held and held.has(step):
            keys = {StepKey(rank, step) for rank in held.ranks} - gone
            rewrite[step] = own | {key.rank for key in keys if name_held(key)}
        else:
            new[step] = own
    since = {**dict.fromkeys(new, now), **waiting_since}
    append = {step: has for step, has in new.items() if has == ranks or now - since[step] >= patience_s}
    return RoundPlan(
        fresh,
        rewrite,
        append,
        tuple(sorted(new.keys() - append.keys())),
        {step: at for step, at in since.items() if step not in append},
        still,
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
