"""The repair of one step: what may be done, what was done, and where bytes can be taken from.

Payloads are named by their digest, XXH3-128: whatever has the same digest and the same length is the same.
The name of a generation is a digest of what it was made from: if a dump gives the same name, it gives the
same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ingest.layouts.base import Dump, Listing
from ingest.layouts.detect import find_dump
from ingest.planning.inspection import Inspected, inspect
from ingest.planning.plan import plan_step
from ingest.reader.catalog import Catalog
from ingest.reader.plain import Plain
from workers.arrays import device_format
from workers.arrays.digest import new_digest
from workers.arrays.sketches.marginal_scope import MarginalScope
from workers.arrays.strided import elements_of
from workers.dump import paths
from workers.dump.paths import from_text
from workers.dump.source import OpenFile
from workers.errors import DumpIngestError
from workers.model import MIB, SourceFile, StepKey, bounded_ns
from workers.rules.values import RuleSet
from workers.store.commit import Commit
from workers.store.model import Grid, Origin, StoreAddress
from workers.store.objects import ObjectStore
from workers.store.record import LEAF, CommitRecord
from workers.store.step import StoredStep, is_view, view_of
from workers.tasks.convert import dry_run
from workers.tasks.model import Receipt, StepPlan
from workers.tasks.publish import Assembled, assemble


@dataclass(frozen=True, slots=True)
class Mended:
    """One object that was made again, or would be."""

    path: str
    """The object, or the group, relative to the store."""
    origin: str
    """Where its content comes from, for people: `the dump /data/dump`, `rank 1 step 3`, `the commit`."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Something that nothing could be found for."""

    what: str
    """A dump file, or an object relative to the store."""
    reason: str


@dataclass(slots=True)
class StepRepair:
    """What became of one damaged step, or of what lies beside the steps."""

    key: StepKey | None
    """None for the root, the groups of ranks and the consolidated view."""
    damages: tuple[str, ...]
    """What was found to be damaged."""
    mended: list[Mended] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    generation: str = ""
    """The new generation that the commit points to now, or would; "" if the committed one was repaired."""
    remains: tuple[str, ...] = ()
    """What is still damaged after everything was written; empty in a dry run."""

    @property
    def is_whole(self) -> bool:
        """Whether everything is, or would be, as it was written."""
        return not self.lost and not self.remains

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "rank": None if self.key is None else self.key.rank,
            "step": None if self.key is None else self.key.step,
            "damages": list(self.damages),
            "mended": [{"path": mended.path, "from": mended.origin} for mended in self.mended],
            "lost": [{"what": lost.what, "reason": lost.reason} for lost in self.lost],
            "generation": self.generation or None,
            "remains": list(self.remains),
        }


@dataclass(slots=True)
class RepairReport(Plain):
    """The outcome of a repair, or of its dry run."""

    store: str
    applied: bool
    """Whether anything was written; a dry run only says what would be."""
    checked: int = 0
    """How many steps were read."""
    repairs: list[StepRepair] = field(default_factory=list)
    """One for each damaged step, and one for what lies beside the steps if that is damaged."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing is damaged now: nothing was, or all of it was repaired and nothing is lost."""
        return not self.repairs or (self.applied and all(repair.is_whole for repair in self.repairs))


_PIECE_NBYTES = 16 * MIB


class Payload(Protocol):
    """The payload of a row as it is to be stored."""

    @property
    def origin(self) -> str:
        """Where it is, for people."""

    def read(self, start: int, stop: int) -> bytes | bytearray:
        """Return bytes `start` to `stop`, both multiples of the size of a stored element.

        Raises:
            DumpIngestError, OSError: they cannot be read.
        """


@dataclass(frozen=True, slots=True)
class StoredPayload:
    """The payload of a row of a stored step."""

    step: StoredStep
    row: int
    origin: str

    def read(self, start: int, stop: int) -> bytearray:
        """Return bytes `start` to `stop`."""
        return self.step.read(self.row, start, stop)


@dataclass(eq=False)
class DumpedPayload:
    """The payload of a row in the dump file that the row was made from.

    Memory: a tensor that was stored in the order of its axes and dumped in device layout is read as a whole,
    which is at most 256 MiB; of other payloads, what is asked for.
    """

    step: StoredStep
    """The step whose index says where the payload is in the file."""
    row: int
    root: Path
    origin: str = field(init=False)

    def __post_init__(self) -> None:
        """Name the dump."""
        self.origin = f"the dump {self.root}"

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes `start` to `stop`."""
        if is_view(self.step, self.row):
            return self._viewed[start:stop]
        device = self.step.device(self.row)
        if device is not None and not self.step.is_in_device_layout(self.row):
            return self._host[start:stop]
        return self._in_file(start, stop)

    @cached_property
    def _host(self) -> bytes:
        """The whole tensor in the order of its axes."""
        device = self.step.device(self.row)
        assert device is not None  # noqa: S101 (for mypy)
        nbytes = int(self.step.tables.number("source_nbytes")[self.row])
        payload = np.frombuffer(self._in_file(0, nbytes), np.uint8)
        host = device_format.to_host(payload, device, self.step.shape(self.row), self.step.element(self.row))
        return host.tobytes()

    @cached_property
    def _viewed(self) -> bytes:
        """All elements of a view."""
        view = view_of(self.step, self.row)
        if view is None:
            return b""
        shape, element = self.step.shape(self.row), self.step.element(self.row)
        return bytes(
            elements_of(lambda start, size: self._in_file(start, start + size), view, shape, element)
        )

    def _in_file(self, start: int, stop: int) -> bytes:
        table = self.step.tables
        path = paths.from_text(str(table.label("source")[self.row]))
        begin = int(table.number("source_offset")[self.row])
        status = os.lstat(self.root / paths.relative(path))
        source = SourceFile(path, status.st_size, bounded_ns(status.st_mtime_ns))
        with OpenFile(self.root, source, str(self.step.key)) as file:
            return file.read_at(begin + start, stop - start)


def is_same(payload: Payload, nbytes: int, digest: bytes) -> bool:
    """Read a payload, and return whether it has this digest."""
    running = new_digest()
    try:
        for start in range(0, nbytes, _PIECE_NBYTES):
            stop = min(start + _PIECE_NBYTES, nbytes)
            piece = payload.read(start, stop)
            if len(piece) != stop - start:
                return False
            running.update(piece)
    except (DumpIngestError, OSError, ValueError):  # it is gone, or another file by now: not a source
        return False
    return running.digest() == digest


def first_same(candidates: Iterable[Payload], nbytes: int, digest: bytes) -> Payload | None:
    """Return the first payload that has this digest; None if there is none."""
    return next((payload for payload in candidates if is_same(payload, nbytes, digest)), None)


#: Rows with the same digest that are kept: the first may turn out to be damaged, too.
_ENOUGH = 3


def find_copies(
    catalog: Catalog, key: StepKey, earlier: Sequence[StoredStep], digests: Iterable[bytes]
) -> dict[bytes, list[StoredPayload]]:
    """Return rows of other steps that have these digests, by digest; at most a few of each.

    Reads the indexes of the steps, one at a time.

    Args:
        catalog: of the store.
        key: the step that needs them, which is not searched.
        earlier: earlier generations of it, which are searched first.
        digests: what to look for.
    """
    found: dict[bytes, list[StoredPayload]] = {digest: [] for digest in digests}
    # Nearest first: replicas of the same step, then neighbouring steps.
    number = key.order[0]
    others = (step for step in catalog.select(damages=[]) if step.key != key)
    places: list[tuple[StoredStep, str]] = [
        *((step, f"an earlier generation, {step.commit.fingerprint}") for step in earlier),
        *(
            (step, str(step.key))
            for step in sorted(others, key=lambda step: (abs(step.key.order[0] - number), step.key.rank))
        ),
    ]
    for step, origin in places:
        if all(len(rows) >= _ENOUGH for rows in found.values()):
            break
        # The rows that are found keep their own reference; of other steps nothing stays in memory.
        with suppress(DumpIngestError):  # its index is damaged
            table = step.tables
            offsets = table.number("offset")
            for row, digest in enumerate(table.digest):
                rows = found.get(digest.tobytes(), [])
                wanted = digest.tobytes() in found and len(rows) < _ENOUGH
                if wanted and offsets[row] >= 0 and step.has_payload(row):
                    rows.append(StoredPayload(step, row, origin))
    return found


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
        sketches: Callable[[str], MarginalScope | None] | MarginalScope | None = None,
    ) -> Remade | None:
        """Return a generation as a dump gives it; None if no dump gives one of these names.

        Reads all files of the step, once for each attempt that succeeds.

        Args:
            key: the step.
            names: of generations; None for whatever the dump gives with the first grid.
            record: the commit, if it is known.
            sketches: the tensors that have marginals, or what returns them for the generation of a name; None
                for no sketches.
        """
        for dump in self.of(record):
            try:
                for planned in self._plans(dump, key, record, names):
                    scope = sketches(planned.fingerprint) if callable(sketches) else sketches
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
        for grid, reason in product(self.grids if names is not None else self.grids[:1], reasons):
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


@dataclass(frozen=True, slots=True)
class RepairPolicy:
    """What a repair may do."""

    apply: bool = False
    """Whether to write; otherwise it only says what it would write."""
    accept_loss: bool = False
    """Whether a step is committed again without the payloads that are found nowhere."""


class Unmendable(Exception):
    """Nothing is known that an object can be made from."""

    def __init__(self, what: str, reason: str) -> None:
        """Name the object, and say what to do."""
        super().__init__(reason)
        self.lost = Lost(what, reason)


@dataclass(eq=False)
class StepWork:
    """The repair of one step."""

    catalog: Catalog
    key: StepKey
    dumps: Dumps
    policy: RepairPolicy
    repair: StepRepair
    """What was done so far."""
    _remade: list[Remade | None] = field(default_factory=list)
    """What the dump gives for the committed generation; empty before it was asked."""

    @property
    def objects(self) -> ObjectStore:
        """The objects of the store."""
        return self.catalog.objects

    @property
    def leaf_path(self) -> str:
        """The key of the commit."""
        return f"{self.key.path}/{LEAF}"

    def put(self, path: str, data: bytes, origin: str) -> None:
        """Write one object, unless this is a dry run."""
        if self.policy.apply:
            self.objects.put(path, data)
        self.mended(path, origin)

    def mended(self, path: str, origin: str) -> None:
        """Note that an object is made again, and where from."""
        self.repair.mended.append(Mended(path, origin))

    def remember(self, remade: Remade) -> None:
        """Keep what the dump gives for the committed generation."""
        self._remade.append(remade)

    def remade(self, committed: Commit) -> Remade | None:
        """Return the committed generation as the dump gives it. The dump is read once."""
        if not self._remade:
            self._remade.append(self.dumps.remake(self.key, [committed.fingerprint], committed.record))
        return self._remade[0]
