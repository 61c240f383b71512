"""Which steps are committed, compared with the steps that the cubes hold. Lists names; reads no commit.

A listing tells what one rank has committed, so listing every rank in every round costs a run of ten thousand
ranks ten thousand requests, most of which tell nothing new. Ranks of one job dump the same steps. So a round
of `follow` lists `WINDOW` ranks in turn, and lists every rank when one of these shows a step that no rank had
before. What is listed is what is committed; only *when* a rank is listed differs. See
docs/design/007-consolidated-view.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ingest.consolidating.cube_writer import CubeWriter
from workers.model import StepKey
from workers.store import commit
from workers.store.objects import ObjectStore

#: Ranks that each round lists in turn. Runs with at most this many ranks are listed whole in every round.
WINDOW = 512
#: An object store answers each listing after tens of milliseconds.
_LISTINGS_AT_ONCE = 64
#: Ranks that are listed before the lease is looked after.
_LISTINGS_OF_A_BATCH = 512

Steps = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CommittedSteps:
    """The steps that are committed, and how they differ from those in the cubes."""

    by_rank: Mapping[int, Steps] = field(default_factory=dict)
    """The steps of each rank that has any, (n,), ascending."""
    new: set[StepKey] = field(default_factory=set)
    """Committed, and not in the cubes."""
    gone: set[StepKey] = field(default_factory=set)
    """In the cubes, and no longer committed."""

    @property
    def keys(self) -> set[StepKey]:
        """All committed steps."""
        return {StepKey(rank, step) for rank, steps in self.by_rank.items() for step in steps.tolist()}

    def __contains__(self, key: StepKey) -> bool:
        return key.rank in self.by_rank and key.step in self.by_rank[key.rank]


@dataclass(slots=True, eq=False)
class CommitListing:
    """The steps of each rank, at the time when the rank was last listed.

    Memory: 8 bytes for each step and rank of the run.
    """

    objects: ObjectStore
    _steps: dict[int, Steps] = field(default_factory=dict)
    _known: set[int] = field(default_factory=set)
    """Every step that any rank had."""
    _listed_last: int = -1
    """The rank at which the last window ended; the next one begins behind it."""

    def list_all(self, *, keep: Callable[[], None]) -> None:
        """List every rank.

        Args:
            keep: called between listings.

        Raises:
            StoreError: the store refused.
        """
        self._known |= self._list(self._current_ranks(), keep)

    def list_due(self, *, lacking: Collection[int], named: Iterable[int], keep: Callable[[], None]) -> None:
        """List the ranks that may have news, and the next `WINDOW` in turn; every rank if a step is new.

        Args:
            lacking: steps that wait for ranks; ranks that lack one of them are listed.
            named: ranks that are listed in any case.
            keep: called between listings.

        Raises:
            StoreError: the store refused.
        """
        ranks = self._current_ranks()
        unlisted = ranks - self._steps.keys()
        wanted = np.array([*lacking], np.int64)
        that_lack = {rank for rank, listed in self._steps.items() if not np.isin(wanted, listed).all()}
        window = sorted(ranks, key=lambda rank: (rank <= self._listed_last, rank))[:WINDOW]
        self._listed_last = window[-1] if window else -1
        chosen = unlisted | that_lack | (ranks & {*named}) | {*window}
        steps = self._list(chosen, keep)
        if not steps <= self._known:
            steps |= self._list(ranks - chosen, keep)
        self._known |= steps

    def compare(self, writer: CubeWriter | None) -> CommittedSteps:
        """Compare the listed steps with those in the cubes of `writer`; None without cubes."""
        held_by_rank = writer.steps_by_rank() if writer else {}
        committed = CommittedSteps({rank: steps for rank, steps in self._steps.items() if len(steps)})
        nothing = np.zeros(0, np.int64)
        for rank in {*committed.by_rank, *held_by_rank}:
            listed, held = committed.by_rank.get(rank, nothing), held_by_rank.get(rank, nothing)
            if np.array_equal(listed, held):
                continue
            in_store, in_cubes = set(listed.tolist()), set(held.tolist())
            committed.new.update(StepKey(rank, step) for step in in_store - in_cubes)
            committed.gone.update(StepKey(rank, step) for step in in_cubes - in_store)
        return committed

    def _current_ranks(self) -> set[int]:
        """Return the ranks of which the store has anything; forget the others."""
        ranks = set(commit.list_ranks(self.objects))
        for rank in self._steps.keys() - ranks:
            del self._steps[rank]
        return ranks

    def _list(self, ranks: Collection[int], keep: Callable[[], None]) -> set[int]:
        """List these ranks, many at once; return the steps that any of them has."""
        all_steps: set[int] = set()
        if not ranks:
            return all_steps
        in_order = sorted(ranks)
        at_once = min(_LISTINGS_AT_ONCE, len(in_order))
        with ThreadPoolExecutor(at_once, thread_name_prefix="dump-ingest-list") as threads:
            for start in range(0, len(in_order), _LISTINGS_OF_A_BATCH):
                keep()
                batch = in_order[start : start + _LISTINGS_OF_A_BATCH]
                listings = threads.map(lambda rank: commit.list_steps(self.objects, rank), batch)
                for rank, steps in zip(batch, listings, strict=True):
                    all_steps |= steps
                    self._steps[rank] = np.array(sorted(steps), np.int64)
        keep()
        return all_steps
