"""Whether a dump belongs to a store: asked for each rank, before anything of the rank is committed.

On one machine every job is rank 0, so a wrong `--store` mixes two runs, step by step. A rank belongs to the
store if the store has nothing of it, or has it from this dump. A dump that was moved, or is seen under
another path in a container, is known by its steps: one that both have has the same files.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ingest.layouts.base import Dump, Listing
from ingest.planning.plan import fingerprint
from ingest.steps.committed import NO_RANKS, RANK_HINT, CommittedFiles, compare
from workers.dump import paths
from workers.errors import DamagedStore, StepRemoved, UsageError
from workers.model import StepKey
from workers.store import commit
from workers.store.commit import Commit
from workers.store.model import Grid, Origin
from workers.store.objects import ObjectStore
from workers.store.packed.pool import without_pool
from workers.store.step import StoredStep

#: Steps by which it is found out whether a dump was moved: the newest that dump and store both have.
_COMPARED = 8


@dataclass(slots=True)
class ForeignDumpCheck:
    """Compares the ranks of one dump with those of one store."""

    dump: Dump
    objects: ObjectStore
    grid: Grid
    host: str
    roots: set[str] = field(default_factory=set)
    """Other directories in which this dump was, as the user says, or as its steps show."""
    _checked: set[int] = field(default_factory=set)
    _errors: dict[int, UsageError] = field(default_factory=dict)

    def check(self, ranks: Collection[int]) -> dict[int, UsageError]:
        """Return an error by rank, of these and of earlier ones, that the store has from another dump.

        Asks the store once for each rank: for the names of its steps, and for three commits.

        Raises:
            StoreError: the store refused; call again.
        """
        new = sorted(set(ranks) - self._checked)
        if not new:
            return self._errors
        stored: dict[int, list[StepKey]] = {rank: [] for rank in new}
        for key in commit.list_keys(self.objects, new):
            stored[key.rank].append(key)
        sample = [key for keys in stored.values() for key in _sample(keys)]
        commits, _ = commit.read_many(self.objects, sample)
        foreign = [made for made in commits.values() if not self._is_ours(made)]
        self._errors |= self._judge(foreign, stored) if foreign else {}
        self._checked.update(new)
        return self._errors

    def _judge(
        self, foreign: Iterable[Commit], stored: Mapping[int, Sequence[StepKey]]
    ) -> dict[int, UsageError]:
        """Return the errors for commits from another directory or host, unless the dump was moved from there.

        The whole dump is listed.
        """
        errors: dict[int, UsageError] = {}
        listings = {listing.key: listing for listing in self.dump.scan({}).listings if listing.files}
        for made in foreign:
            source, rank = made.record.source, made.key.rank
            if rank in errors or self._is_ours(made):
                continue
            common = [key for key in stored[rank] if key in listings]
            if self._is_same_dump(source.root, common, listings):
                self.roots.add(source.root)
            else:
                errors[rank] = self._error(rank, source)
        return errors

    def _error(self, rank: int, source: Origin) -> UsageError:
        came = f"rank {rank} of {self.objects.address.url} comes from {source.root} on host {source.host}"
        if source.root == self._root:
            other = f"{came}, and this dump is on another host; its {source.rank_from} is not a rank"
            return UsageError(other, hint=RANK_HINT)
        return UsageError(
            f"{came}, and this dump is {self._root}",
            hint="Is --store right? Give each dump a store of its own. If this dump was moved, or the same "
            f"job goes on here, say so: --continues {source.root}. (--replace mixes the two: it replaces the "
            "steps that both have.)",
        )

    def _is_same_dump(
        self, root: str, common: Sequence[StepKey], listings: Mapping[StepKey, Listing]
    ) -> bool:
        """Return whether a step that the dump has, and the store from this directory, is the same in both."""
        # Run files are often copied from one job to the next: they count only without steps.
        steps = [key for key in common if key.step is not None] or common
        commits, _ = commit.read_many(self.objects, sorted(steps, key=lambda key: key.order)[-_COMPARED:])
        return any(
            self._is_same_step(made, listings[key])
            for key, made in commits.items()
            if made.record.source.root == root
        )

    def _is_same_step(self, made: Commit, listing: Listing) -> bool:
        if without_pool(made.fingerprint) == fingerprint(listing.files, listing.naming, self.grid):
            return True
        try:
            committed = CommittedFiles.of(StoredStep(self.objects, made).tables)
        except (DamagedStore, StepRemoved):
            return False
        seen = compare(committed, listing.files)
        return bool(seen.left) and not seen.rewritten and (listing.key.step is not None or not seen.fresh)

    def _is_ours(self, made: Commit) -> bool:
        source = made.record.source
        if source.root != self._root and (
            os.path.realpath(paths.from_text(source.root)) == os.path.realpath(paths.from_text(self._root))
        ):
            self.roots.add(source.root)
        is_other_host = source.rank_from in NO_RANKS and source.host != self.host
        return not is_other_host and source.root in (self._root, *self.roots)

    @property
    def _root(self) -> str:
        return paths.to_text(str(self.dump.root))


def _sample(keys: Sequence[StepKey]) -> Iterator[StepKey]:
    """Yield the run files, the lowest and the highest step of a rank."""
    steps = [key for key in keys if key.step is not None]
    yield from (key for key in keys if key.step is None)
    yield from dict.fromkeys([*steps[:1], *steps[-1:]])
