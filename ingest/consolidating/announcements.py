"""What commits announce: an object for each commit that was replaced, or removed, since the cubes took it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from workers.model import StepKey
from workers.store.commit import CHANGED, REMOVED, Commit
from workers.store.objects import ObjectStore


def read_announcements(objects: ObjectStore) -> dict[StepKey, list[str]]:
    """Return the steps of which a commit was replaced or removed, each with its new generations.

    For a removal, `REMOVED` replaces the generation.
    """
    announced: dict[StepKey, list[str]] = {}
    for name in objects.children(CHANGED):
        rank, _, rest = name.partition(".")
        step, _, generation = rest.partition(".")
        if rank.isdecimal() and step.isdecimal() and generation and "." not in generation:
            announced.setdefault(StepKey(int(rank), int(step)), []).append(generation)
    return announced


def clear_announcements(
    objects: ObjectStore,
    announced: Mapping[StepKey, Sequence[str]],
    commits: Mapping[StepKey, Commit],
    damaged: Collection[StepKey],
) -> None:
    """Delete the announcements that are dealt with.

    These are announcements of commits that were read, of commits that others have replaced since, and of
    removals that have happened.

    Args:
        objects: the store.
        announced: from `read_announcements`.
        commits: the commits that were read afterwards.
        damaged: the steps whose commits could not be read.
    """
    for key, generations in announced.items():
        committed = commits.get(key)
        for generation in generations:
            if committed is not None:
                is_settled = generation in committed.record.generations
            else:
                # A removal is announced before it happens: the announcement stands until it has happened.
                is_settled = generation == REMOVED and key not in damaged
            if is_settled:
                objects.delete(f"{CHANGED}/{key.rank}.{key.step}.{generation}")
