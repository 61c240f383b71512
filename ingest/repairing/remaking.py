"""A whole generation from the dump: its index, statistics, findings and metadata, as they were committed.

The name of a generation is a digest of what it was made from. So if a dump gives the same name, it gives the
same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from ingest.layouts.base import Dump, Listing
from ingest.layouts.detect import find_dump
from ingest.planning.inspection import Inspected, inspect
from ingest.planning.plan import plan_step
from workers.arrays.sketches.marginal_scope import MarginalScope
from workers.dump.paths import from_text
from workers.errors import DumpIngestError
from workers.model import SourceFile, StepKey
from workers.rules.values import RuleSet
from workers.store.model import Grid, Origin, StoreAddress
from workers.store.record import CommitRecord
from workers.tasks.convert import dry_run
from workers.tasks.model import Receipt, StepPlan
from workers.tasks.publish import Assembled, assemble


@dataclass(frozen=True, slots=True)
class Remade:
    """A generation as the dump gives it. None of it is written."""

    plan: StepPlan
    receipts: tuple[Receipt, ...]
    assembled: Assembled

    @property
    def origin(self) -> str:
        """Where it comes from, for people."""
        return f"the dump {self.plan.origin.root}"


@dataclass(eq=False)
class SourceDump:
    """One dump; it is listed once, when it is needed."""

    dump: Dump

    @property
    def root(self) -> Path:
        """Where its paths begin."""
        return self.dump.root

    @cached_property
    def listings(self) -> dict[StepKey, Listing]:
        """What it has of each step."""
        return {listing.key: listing for listing in self.dump.scan({}).listings if listing.files}

    def inspected(self, key: StepKey, record: CommitRecord | None) -> Inspected | None:
        """Read the headers of a step; None if the dump does not have it."""
        listing = self.listings.get(key)
        if listing is None:
            return None
        poison = {
            SourceFile(from_text(file.source), file.size, file.mtime_ns): file.bytes_kept
            for file in (record.poison if record else ())
        }
        return inspect(self.root, listing, self.dump.describe(listing), poison=poison)


@dataclass(frozen=True, slots=True)
class DumpReading:
    """How paths in dumps tell ranks and steps. Commits do not say with which of these they were ingested."""

    layout: str = ""
    """Patterns for a tree that no layout covers; see `ingest.layouts.declared`."""
    rank_map: Mapping[int, int] | None = None
    """Ranks by device id, for dumps whose paths name only devices."""


@dataclass(eq=False)
class Dumps:
    """The dumps that a repair may read: those that the user names, and those that commits name."""

    store: StoreAddress
    grids: Sequence[Grid]
    """How generations may have been cut: the commit does not say, but the name of the generation shows it."""
    rules: RuleSet | None
    host: str
    named: Sequence[SourceDump] = ()
    reading: DumpReading = DumpReading()
    _by_root: dict[str, SourceDump | None] = field(default_factory=dict)

    def of(self, record: CommitRecord | None) -> Iterator[SourceDump]:
        """Yield the dumps that a step may be in: those that the user names come first."""
        yield from self.named
        root = record.source.root if record else ""
        if root and Path(root) not in {dump.root for dump in self.named}:
            if root not in self._by_root:
                self._by_root[root] = _opened(root, self.reading)
            if dump := self._by_root[root]:
                yield dump

    def remake(
        self,
        key: StepKey,
        names: Collection[str] | None,
        record: CommitRecord | None,
        *,
        sketches: Callable[[str], MarginalScope | None] = lambda _: None,
    ) -> Remade | None:
        """Return a generation as a dump gives it; None if no dump gives one of these names.

        Reads all files of the step, once for each attempt that succeeds.

        Args:
            key: the step.
            names: of generations; None for whatever the dump gives with the first grid.
            record: the commit, if it is known.
            sketches: returns the tensors that have marginals in the generation of this name; None if it has
                no sketches.
        """
        for dump in self.of(record):
            try:
                for planned in self._plans(dump, key, record, names):
                    scope = sketches(planned.fingerprint)
                    plan = planned if scope is None else planned.with_sketches(scope)
                    receipts = tuple(dry_run(job) for job in plan.jobs)
                    return Remade(plan, receipts, assemble(plan, receipts))
            except (DumpIngestError, OSError):
                continue  # this dump cannot be read, or changes just now
        return None

    def _plans(
        self, dump: SourceDump, key: StepKey, record: CommitRecord | None, names: Collection[str] | None
    ) -> Iterator[StepPlan]:
        inspected = dump.inspected(key, record)
        if inspected is None or inspected.denied:
            return
        listing = inspected.listing
        origin = Origin(listing.layout, self.host, str(dump.root), listing.rank_from)
        without = record.without_tensors if record else None
        reasons = ["", without.reason] if without is not None and without.by == "policy" else [""]
        for grid in self.grids if names is not None else self.grids[:1]:
            for reason in reasons:
                plan = plan_step(inspected, origin, self.store, grid, self.rules, leave_out_tensors=reason)
                if names is None or plan.fingerprint in names:
                    yield plan


def name_dump(directory: Path, reading: DumpReading | None = None) -> SourceDump:
    """Return the dump at a directory that the user names.

    Args:
        directory: the directory.
        reading: how paths in it tell ranks and steps, if that is not to be seen.

    Raises:
        UsageError: it is not a dump.
        DumpError: it cannot be read.
    """
    reading = reading or DumpReading()
    return SourceDump(find_dump(directory, rank_map=reading.rank_map, layout=reading.layout))


def grids_like(grid: Grid) -> tuple[Grid, ...]:
    """Return the ways in which a generation may have been cut: as now, and by default."""
    grids = [
        replace(known, keep_device_layout=keep)
        for known in (grid, Grid())
        for keep in (known.keep_device_layout, not known.keep_device_layout)
    ]
    return tuple(dict.fromkeys(grids))


def _opened(root: str, reading: DumpReading) -> SourceDump | None:
    """Return the dump that a commit names; None if it is not there any more."""
    try:
        return name_dump(Path(from_text(root)), reading)
    except (DumpIngestError, OSError):
        return None
