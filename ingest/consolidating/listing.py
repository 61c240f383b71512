"""Which steps are committed, compared with the steps that the cubes hold. Lists names; reads no commit."""

from __future__ import annotations

from dataclasses import dataclass, field

from ingest.consolidating.cube_writer import CubeWriter
from workers.model import StepKey
from workers.store import commit
from workers.store.objects import ObjectStore


@dataclass(frozen=True, slots=True)
class CommittedSteps:
    """The steps that are committed, and how they differ from those in the cubes."""

    by_rank: dict[int, set[int]] = field(default_factory=dict)
    """The steps of each rank that has any."""
    new: set[StepKey] = field(default_factory=set)
    """Committed, and not in the cubes."""
    gone: set[StepKey] = field(default_factory=set)
    """In the cubes, and no longer committed."""

    @property
    def keys(self) -> set[StepKey]:
        """All committed steps."""
        return {StepKey(rank, step) for rank, steps in self.by_rank.items() for step in steps}

    def __contains__(self, key: StepKey) -> bool:
        return key.step in self.by_rank.get(key.rank, ())


def list_committed(objects: ObjectStore, writer: CubeWriter | None) -> CommittedSteps:
    """List the steps of all ranks, and compare them with what `writer` has in the cubes; None for nothing.

    Raises:
        StoreError: the store refused.
    """
    committed = CommittedSteps()
    ranks = commit.list_ranks(objects)
    for rank in {*ranks, *(writer.ranks if writer else ())}:
        # Sets of plain numbers: with a run of a thousand steps, this is all that grows with it.
        listed = commit.list_steps(objects, rank) if rank in ranks else set()
        held = set(writer.steps_of(rank).tolist()) if writer else set()
        if listed:
            committed.by_rank[rank] = listed
        committed.new.update(StepKey(rank, step) for step in listed - held)
        committed.gone.update(StepKey(rank, step) for step in held - listed)
    return committed
