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
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ingest.layouts.base import Dump, Listing
from ingest.layouts.detect import find_dump
from ingest.planning.inspection import inspect
from ingest.planning.plan import plan_step
from ingest.reader.catalog import Catalog
from ingest.reader.text import Plain
from workers.arrays import device_format
from workers.arrays.arrangements import elements_of
from workers.arrays.device_format import DeviceLayout
from workers.arrays.digest import new_digest
from workers.arrays.marginals import MarginalScope
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
from workers.tasks.model import StepPlan
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
    repairs: list[StepRepair] = field(default_factory=list)
    """One for each damaged step, and one for what lies beside the steps if that is damaged."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing is damaged now: nothing was, or all of it was repaired and nothing is lost."""
        return not self.repairs or (self.applied and all(repair.is_whole for repair in self.repairs))


_PIECE_NBYTES = 16 * MIB


@dataclass(frozen=True, slots=True)
class Payload:
    """The payload of a row as it is to be stored."""

    origin: str
    read: Callable[[int, int], bytes | bytearray]
    """Returns the bytes from one position to another, both multiples of the size of a stored element; raises
    DumpIngestError or OSError."""


def in_dump(step: StoredStep, row: int, root: Path) -> Payload:
    """Return the payload of a row in the dump file that the row was made from.

    Memory: a view, and a tensor that was stored in the order of its axes and dumped in device layout, are
    read as a whole, which is at most 256 MiB; of other payloads, what is asked for.
    """
    table = step.tables
    begin = int(table.number("source_offset")[row])

    def in_file(start: int, stop: int) -> bytes:
        path = from_text(str(table.label("source")[row]))
        status = os.lstat(root / paths.relative(path))
        source = SourceFile(path, status.st_size, bounded_ns(status.st_mtime_ns))
        with OpenFile(root, source, str(step.key)) as file:
            return file.read_at(begin + start, stop - start)

    @cache
    def viewed() -> bytes:
        view = view_of(step, row)
        if view is None:
            return b""
        elements = elements_of(
            lambda start, size: in_file(start, start + size), view, step.shape(row), step.element(row)
        )
        return bytes(elements)

    @cache
    def host(layout: DeviceLayout) -> bytes:
        payload = np.frombuffer(in_file(0, int(table.number("source_nbytes")[row])), np.uint8)
        return device_format.to_host(payload, layout, step.shape(row), step.element(row)).tobytes()

    def read(start: int, stop: int) -> bytes:
        device = step.device(row)
        if is_view(step, row):
            return viewed()[start:stop]
        if device is not None and not step.is_in_device_layout(row):
            return host(device)[start:stop]
        return in_file(start, stop)

    return Payload(f"the dump {root}", read)


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
) -> dict[bytes, list[Payload]]:
    """Return rows of other steps that have these digests, by digest; at most a few of each.

    Reads the indexes of the steps, one at a time.

    Args:
        catalog: of the store.
        key: the step that needs them, which is not searched.
        earlier: earlier generations of it, which are searched first.
        digests: what to look for.
    """
    found: dict[bytes, list[Payload]] = {digest: [] for digest in digests}
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
                    rows.append(Payload(origin, partial(step.read, row)))
    return found


class Remade(NamedTuple):
    """A generation as the dump gives it. None of it is written."""

    plan: StepPlan
    assembled: Assembled

    @property
    def origin(self) -> str:
        """Where it comes from, for people."""
        return f"the dump {self.plan.origin.root}"


def _reasons_in(record: CommitRecord | None) -> list[str]:
    without = record.without_tensors if record else None
    return ["", without.reason] if without is not None and without.by == "policy" else [""]


def grids_like(grid: Grid) -> tuple[Grid, ...]:
    """Return the ways in which a generation may have been cut: as now, and by default."""
    keeps = (grid.keep_device_layout, not grid.keep_device_layout)
    grids = [replace(known, keep_device_layout=keep) for known in (grid, Grid()) for keep in keeps]
    return tuple(dict.fromkeys(grids))


@dataclass(eq=False)
class Dumps:
    """The dumps that a repair may read: those that the user names, and those that commits name."""

    store: StoreAddress
    grids: Sequence[Grid]
    """How generations may have been cut: the commit does not say, but the name of the generation shows it."""
    rules: RuleSet
    host: str
    named: Sequence[Dump] = ()
    find: Callable[[Path], Dump] = find_dump
    """Opens a dump. Commits do not say by which layout and rank map they were ingested."""
    _by_root: dict[str, Dump | None] = field(default_factory=dict)
    _listings: dict[Path, dict[StepKey, Listing]] = field(default_factory=dict)

    def of(self, record: CommitRecord | None) -> Iterator[Dump]:
        """Yield the dumps that a step may be in: those that the user names come first."""
        yield from self.named
        root = record.source.root if record else ""
        if root and Path(root) not in {dump.root for dump in self.named}:
            if root not in self._by_root:
                self._by_root[root] = None
                with suppress(DumpIngestError, OSError):  # it is not there any more
                    self._by_root[root] = self.find(Path(from_text(root)))
            if dump := self._by_root[root]:
                yield dump

    def remake(
        self,
        key: StepKey,
        names: Collection[str] | None,
        record: CommitRecord | None,
        sketches: Callable[[str], MarginalScope | None] = lambda _: None,
    ) -> Remade | None:
        """Return a generation as a dump gives it; None if no dump gives one of these names.

        Reads all files of the step, once for each attempt that succeeds.

        Args:
            key: the step.
            names: of generations; None for whatever the dump gives with the first grid.
            record: the commit, if it is known.
            sketches: returns the tensors that have marginals, for the generation of a name; None for no
                sketches.
        """
        for dump in self.of(record):
            with suppress(DumpIngestError, OSError):  # it cannot be read, or changes just now
                for plan in self._plans(dump, key, record, names):
                    scope = sketches(plan.fingerprint)
                    made = plan if scope is None else plan.with_sketches(scope)
                    return Remade(made, assemble(made, [dry_run(job) for job in made.jobs]))
        return None

    def _listing(self, dump: Dump, key: StepKey) -> Listing | None:
        if dump.root not in self._listings:
            listed = dump.scan({}).listings
            self._listings[dump.root] = {listing.key: listing for listing in listed if listing.files}
        return self._listings[dump.root].get(key)

    def _plans(
        self, dump: Dump, key: StepKey, record: CommitRecord | None, names: Collection[str] | None
    ) -> Iterator[StepPlan]:
        listing = self._listing(dump, key)
        if listing is None:
            return
        poison = {
            SourceFile(from_text(file.source), file.size, file.mtime_ns): file.bytes_kept
            for file in (record.poison if record else ())
        }
        inspected = inspect(dump.root, listing, dump.describe(listing), poison=poison)
        if inspected.denied:
            return
        origin = Origin(listing.layout, self.host, str(dump.root), listing.rank_from)
        grids = self.grids if names is not None else self.grids[:1]
        for grid, reason in product(grids, _reasons_in(record)):
            plan = plan_step(inspected, origin, self.store, grid, self.rules, leave_out_tensors=reason)
            if names is None or plan.fingerprint in names:
                yield plan


class Unmendable(Exception):
    """Nothing is known that an object can be made from."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(reason)
        self.lost = Lost(what, reason)


@dataclass(eq=False)
class StepWork:
    """The repair of one step."""

    catalog: Catalog
    key: StepKey
    dumps: Dumps
    repair: StepRepair
    apply: bool = False
    accept_loss: bool = False
    """Whether the step is committed again without the payloads that are found nowhere."""
    remade: list[Remade | None] = field(default_factory=list)
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
        if self.apply:
            self.objects.put(path, data)
        self.mended(path, origin)

    def put_changed(self, contents: Mapping[str, bytes], origin: str) -> None:
        """Write the objects that are missing or not like this, unless this is a dry run."""
        stored = self.objects.get_many(list(contents))
        for path, data in contents.items():
            if stored.get(path) != data:
                self.put(path, data, origin)

    def mended(self, path: str, origin: str) -> None:
        """Note that an object is made again, and where from."""
        self.repair.mended.append(Mended(path, origin))

    def from_dump(self, committed: Commit) -> Remade | None:
        """Return the committed generation as the dump gives it. The dump is read once."""
        if not self.remade:
            self.remade.append(self.dumps.remake(self.key, [committed.fingerprint], committed.record))
        return self.remade[0]
