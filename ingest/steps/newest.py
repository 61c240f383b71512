"""The newest steps of each rank: what both retention and gc keep."""

from __future__ import annotations

from collections.abc import Iterable

from workers.model import StepKey


def newest_steps(keys: Iterable[StepKey], count: int) -> set[StepKey]:
    """Return the `count` newest steps of each rank, by step number. Run files are not steps."""
    steps_by_rank: dict[int, list[int]] = {}
    for key in keys:
        if key.step is not None:
            steps_by_rank.setdefault(key.rank, []).append(key.step)
    return {
        StepKey(rank, step)
        for rank, steps in steps_by_rank.items()
        for step in sorted(steps, reverse=True)[:count]
    }
