"""What the store already holds of the ranks of a dump: the state of the service, kept by the store alone."""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ingest.steps.caches import keep_only
from workers.dump import paths
from workers.errors import UsageError
from workers.model import SourceFile, StepKey
from workers.store import commit, removed
from workers.store.commit import Commit
from workers.store.model import Origin
from workers.store.objects import ObjectStore
from workers.store.removed import Tombstone
from workers.store.step import StoredStep

#: Commits that are fetched before the clock is looked at: at least, and at most.
_FEWEST, _MOST = 16, 256
#: How long a look waits for commits to be fetched, in seconds; the others are fetched after it.
_AT_LOOK_S = 0.25
#: So many new steps of a rank are not asked for: the store is asked again before they are offered.
_FEW = 16
_REPLACE_HINT = "Give each dump a store of its own; --replace replaces what came from another one."
_RANK_HINT = "The ids repeat from host to host. Give the ranks of this one: --rank-map 0=8,1=9."
#: What gives a number that is no rank, for want of one.
_NO_RANKS = frozenset(["device id", "process id"])


@dataclass(slots=True)
class Committed:
    """A cache of the fingerprints in the store, of the steps that the dump has. Bounded by those."""

    objects: ObjectStore
    take_removed: bool = False
    """Whether a step that was removed on purpose is one that is missing."""
    _fingerprints: dict[StepKey, str] = field(default_factory=dict)
    _covered: dict[StepKey, str] = field(default_factory=dict)
    """Listings for which the commit of the step stands, though it was made from another one."""
    _listed: set[int] = field(default_factory=set)
    """Ranks that were listed in the store."""
    _expected: set[StepKey] = field(default_factory=set)
    """What the dump has."""
    _unchecked: dict[StepKey, None] = field(default_factory=dict)
    """Steps of the dump of which the store has something, and that it was not asked for yet; in order."""
    _tombstones: dict[int, dict[int, list[Tombstone]]] = field(default_factory=dict)
    """By rank and step: what was removed on purpose."""
    _per_s: float = 0.0
    """Commits that the store gave in a second, when it was asked last."""

    def expect(self, keys: Collection[StepKey]) -> Collection[StepKey]:
        """Take note of the steps that the dump has, and forget all others.

        Asks the store for those that are new, for a moment only, so that a dump of many committed steps does
        not keep new ones waiting.

        Returns:
            Those for which the store is still to be asked, by `check`: nothing is known of them.

        Raises:
            StoreError: the store refused; call again.
        """
        present = set(keys)
        for key in self._expected - present:
            # When it comes back, nothing is known of it: it may have been removed from the store meanwhile.
            self._tombstones.pop(key.rank, None)
        keep_only(present, self._fingerprints, self._covered, self._unchecked)
        new: dict[int, list[StepKey]] = {}
        for key in keys:
            if key not in self._expected:
                new.setdefault(key.rank, []).append(key)
        for rank, of_rank in new.items():
            if rank not in self._listed or len(of_rank) > _FEW:
                stored = set(commit.list_keys(self.objects, [rank]))
                self._unchecked.update((key, None) for key in of_rank if key in stored)
                self._listed.add(rank)
        self._expected = present
        self.check(_AT_LOOK_S)
        return self._unchecked.keys()

    def check(self, for_s: float) -> bool:
        """Ask the store for steps it was not asked for yet, for about so many seconds; whether any are left.

        Raises:
            StoreError: the store refused; call again.
        """
        until = time.monotonic() + for_s
        while self._unchecked:
            started = time.monotonic()
            at_once = min(max(int(self._per_s * for_s), _FEWEST), _MOST)
            keys = list(itertools.islice(self._unchecked, at_once))
            # A damaged commit is no commit here: the source is still there, and makes a good one.
            self._fingerprints.update(commit.read_fingerprints(self.objects, keys))
            for key in keys:
                del self._unchecked[key]
            now = time.monotonic()
            self._per_s = len(keys) / max(now - started, 1e-3)
            if now >= until:
                break
        return bool(self._unchecked)

    @property
    def is_checked(self) -> bool:
        """Whether the store was asked for everything that it may have of the dump."""
        return not self._unchecked

    def holds(self, key: StepKey, fingerprint: str) -> bool:
        """Whether what this fingerprint names is committed, or was removed on purpose; as far as is known."""
        known = self._fingerprints.get(key)
        return fingerprint in (known, self._covered.get(key)) or (
            known is None and self.was_removed(key, fingerprint)
        )

    def has(self, key: StepKey) -> bool:
        """Whether any generation of a step is committed, as far as is known."""
        return key in self._fingerprints

    def was_removed(self, key: StepKey, fingerprint: str, files: Sequence[SourceFile] = ()) -> bool:
        """Whether a listing of a step is of what was removed on purpose, or of what is left of that.

        Not if `take_removed`. Asks the store once for each rank.
        """
        if self.take_removed or key.step is None:
            return False
        if key.rank not in self._tombstones:
            self._tombstones[key.rank] = removed.read(self.objects, key.rank)
        found = self._tombstones[key.rank].get(key.step, [])
        return any(one.covers(fingerprint, files) for one in found)

    def read(self, keys: Sequence[StepKey]) -> dict[StepKey, Commit]:
        """Ask the store for the commits of steps: another watcher may have made some meanwhile."""
        found, _ = commit.read_many(self.objects, keys)
        for key in keys:
            if key in found:
                self._fingerprints[key] = found[key].fingerprint
            elif self._fingerprints.pop(key, None) is not None:
                self._tombstones.pop(key.rank, None)  # it was there: ask again what was removed
        return found

    def recheck(self, most: int) -> list[StepKey]:
        """Ask the store again for so many of the steps, each in its turn, and return those that went back.

        A step went back if its commit does not know of the one that was seen here. It was written by a task
        that was stopped, or by a request that reached the store long after it was given up. What others, who
        knew of that one, have committed since, stands.

        Raises:
            StoreError: the store refused; call again.
        """
        keys = list(itertools.islice(self._fingerprints, most))
        found, _ = commit.read_many(self.objects, keys)
        back = []
        for key in keys:
            known = self._fingerprints.pop(key)
            there = found.get(key)
            if there is not None and known not in there.record.generations:
                back.append(key)
                self._covered.pop(key, None)
                known = there.fingerprint
            self._fingerprints[key] = known  # behind all others: their turn comes first
        return back

    def cover(self, key: StepKey, fingerprint: str) -> None:
        """Note that the commit of this step stands for the listing with this fingerprint too."""
        self._covered[key] = fingerprint

    def files_gone(self, found: Commit, files: Sequence[SourceFile], *, any_less: bool = False) -> int:
        """Return how many files of a commit the dump no longer has, if what it has is less; 0 otherwise.

        Files that turn up late beside deleted ones are less. Files that were written again, or as many new
        ones, are another dump of the step.

        Args:
            found: the commit.
            files: what the dump has of the step.
            any_less: whether fewer files are less even where some were written again. So it is after the
                others were deleted here: a writer that comes late may write a table anew, too.

        Raises:
            DamagedStore: the index of the commit cannot be read.
            StepRemoved: the step was removed since its commit was read.
        """
        table = StoredStep(self.objects, found).tables
        sizes, times = table.number("source_size").tolist(), table.number("mtime_ns").tolist()
        committed = dict(zip(table.label("source"), zip(sizes, times, strict=True), strict=True))
        now = {paths.to_text(file.path): (file.size, file.mtime_ns) for file in files}
        gone = committed.keys() - now.keys()
        rewritten = any(committed.get(path, seen) != seen for path, seen in now.items())
        is_less = len(now) < len(committed) and (any_less or not rewritten)
        return len(gone) if gone and is_less else 0


def comes_from_elsewhere(key: StepKey, origin: Origin, found: Commit) -> UsageError | None:
    """Return why a committed step is another one than that of this origin, of the same rank and step."""
    source = found.record.source
    if source.root != paths.to_text(origin.root):
        return UsageError(f"{key} is in the store already, from {source.root}", hint=_REPLACE_HINT)
    if origin.rank_from in _NO_RANKS and source.host != origin.host:
        return UsageError(
            f"{key} is in the store already, from host {source.host}, and neither is known by its "
            f"rank but by its {origin.rank_from}",
            hint=_RANK_HINT,
        )
    return None
