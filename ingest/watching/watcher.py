"""The watcher: looks at a dump and says which steps are complete. No sleeping, no store, no Dask."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Literal

from ingest.layouts.base import Dump, Listing, Problem
from ingest.planning.inspection import Inspected, inspect
from ingest.planning.plan import fingerprint, without_tensors
from ingest.steps.bad_files import BadFiles
from ingest.steps.caches import keep_only
from ingest.watching.completeness import (
    CompletenessPolicy,
    QuietClock,
    Waiting,
    waits_for_content,
    waits_for_time,
)
from workers.errors import SourceChanged
from workers.events import Event
from workers.model import StepKey
from workers.store.model import Grid


@dataclass(frozen=True, slots=True)
class DumpState(Event):
    """What one look at a dump showed."""

    present: dict[StepKey, Listing]
    pending: dict[StepKey, Listing]
    """Those of `present` that are not committed as they are now, complete or not."""
    problems: tuple[Problem, ...]
    expected_steps: frozenset[int] | None = None
    unlisted: frozenset[StepKey] = frozenset()
    """Steps of which the store has something, and is still to be asked what: they were not listed yet, and
    are neither `present` nor `pending`."""

    @property
    def there(self) -> frozenset[StepKey]:
        """Every step that is there, listed or not."""
        return self.unlisted.union(self.present)


@dataclass(slots=True)
class Watcher:
    """Looks at one dump again and again. All state is a cache: losing it costs a closer look."""

    dump: Dump
    policy: CompletenessPolicy
    grid: Grid
    order: Literal["oldest", "newest"] = "oldest"
    """Which steps of a backlog come first."""
    newest_first: bool = False
    """Whether the newest come first for now, whatever `order` says."""
    tensors_may_wait: bool = False
    """Whether steps that are committed without their tensors count as committed, for now."""
    clock: QuietClock = field(default_factory=QuietClock)
    waiting: dict[StepKey, Waiting] = field(default_factory=dict)
    """Why the pending steps that were examined last are not complete."""
    denied: dict[StepKey, tuple[Problem, ...]] = field(default_factory=dict)
    """Pending steps that wait for permissions, and on what."""
    bad_files: BadFiles = field(default_factory=BadFiles)
    _known: dict[StepKey, Listing] = field(default_factory=dict)
    _inspected: dict[StepKey, Inspected] = field(default_factory=dict)
    _names: dict[StepKey, tuple[Listing, str]] = field(default_factory=dict)
    """Fingerprints, with the listings that they are of."""
    _to_examine: deque[tuple[Listing, float]] = field(default_factory=deque)

    def look(
        self,
        is_committed: Callable[[StepKey, str], bool],
        expect: Callable[[Collection[StepKey]], Collection[StepKey]] = lambda _: (),
    ) -> DumpState:
        """List the dump now.

        Args:
            is_committed: given a step and a fingerprint, tells whether the store already holds it.
            expect: is told first which steps there are, and returns those that the store is still to be
                asked for. They are not listed, which takes long where there are many.
        """
        unknown: Collection[StepKey] = ()

        def defer(keys: Collection[StepKey]) -> Collection[StepKey]:
            nonlocal unknown
            unknown = expect(keys)
            return unknown

        scan = self.dump.scan(self._known, defer)
        # Without files there is nothing to wait for: a job that is killed leaves an empty directory behind.
        present = {
            listing.key: listing for listing in scan.listings if listing.files or _denied(listing.problems)
        }
        self._forget(present.keys() | scan.unlisted)
        pending: dict[StepKey, Listing] = {}
        self._to_examine = deque()
        newest_first = self.newest_first or self.order == "newest"
        for key, listing in sorted(present.items(), key=lambda item: item[0].order, reverse=newest_first):
            quiet_for_s = self.clock.quiet_for(listing)
            if key in unknown:  # run files
                pending[key] = listing
                continue
            name = self._name(listing)
            if is_committed(key, name) or (
                self.tensors_may_wait and is_committed(key, without_tensors(name))
            ):
                self._known[key] = listing
                self._inspected.pop(key, None)
            else:
                self._keep(listing, quiet_for_s)
                pending[key] = listing
                self._to_examine.append((listing, quiet_for_s))
        problems = [*scan.problems, *(p for listing in scan.listings for p in listing.problems)]
        problems += [p for found in self.denied.values() for p in found]
        return DumpState(present, pending, tuple(dict.fromkeys(problems)), scan.expected_steps, scan.unlisted)

    def take(self, room: int, *, busy: Collection[StepKey]) -> list[Inspected]:
        """Return up to `room` complete steps of the last look, each once; `busy` ones are passed over.

        Only here are files opened, so a large backlog is inspected little by little.
        """
        taken: list[Inspected] = []
        while self._to_examine and len(taken) < room:
            listing, quiet_for_s = self._to_examine.popleft()
            if listing.key in busy:
                continue
            self.waiting.pop(listing.key, None)
            self.denied.pop(listing.key, None)
            result = self._examine(listing, quiet_for_s)
            if isinstance(result, Waiting):
                self.waiting[listing.key] = result
                self._known.pop(listing.key, None)
            else:
                taken.append(result)
        return taken

    def note_committed(self, key: StepKey, fingerprint: str) -> None:
        """Note that a step is in the store; its listing may be used again if it is the one that is there."""
        listing, name = self._names.get(key, (None, ""))
        if listing is not None and name == fingerprint:
            self._known[key] = listing

    def forget(self, key: StepKey) -> None:
        """List a step again and look into its files, whatever was found there before."""
        self._known.pop(key, None)
        self._inspected.pop(key, None)

    def _keep(self, listing: Listing, quiet_for_s: float) -> None:
        """Use the listing of a step that only waits for its turn again, or a backlog would take long to list.

        Whoever opens its files, here or in a worker, compares them with the listing.
        """
        waits = listing.key.step is None or waits_for_time(listing, quiet_for_s, self.policy)
        if waits:
            self._known.pop(listing.key, None)
        else:
            self._known[listing.key] = listing

    def _name(self, listing: Listing) -> str:
        """Return the fingerprint of a listing: of one that is used again, as it was."""
        before, name = self._names.get(listing.key, (None, ""))
        if before is None or before.files is not listing.files or before.layout != listing.layout:
            name = fingerprint(listing.files, listing.layout, self.grid)
            self._names[listing.key] = (listing, name)
        return name

    def _examine(self, listing: Listing, quiet_for_s: float) -> Inspected | Waiting:
        if denied := _denied(listing.problems):
            self.denied[listing.key] = denied
            return Waiting(f"{denied[0]}")
        if waits := waits_for_time(listing, quiet_for_s, self.policy):
            return waits
        inspected = self._inspected.get(listing.key)
        if inspected is None or inspected.listing.files != listing.files or inspected.denied:
            try:
                inspected = inspect(
                    self.dump.root,
                    listing,
                    self.dump.describe(listing),
                    self.bad_files.unreadable(listing.key),
                    self.bad_files.poison(listing.key),
                )
            except SourceChanged as exc:
                return Waiting(exc.message)
            self._inspected[listing.key] = inspected
        if inspected.denied:
            self.denied[listing.key] = inspected.denied
            return Waiting(f"{inspected.denied[0]}")
        return waits_for_content(inspected, quiet_for_s, self.policy) or inspected

    def _forget(self, present: Collection[StepKey]) -> None:
        self.clock.forget(present)
        self.bad_files.forget(present)
        keep_only(present, self._known, self._names, self._inspected, self.waiting, self.denied)


def _denied(problems: Collection[Problem]) -> tuple[Problem, ...]:
    return tuple(problem for problem in problems if problem.denied)
