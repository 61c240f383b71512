"""`repair`: a whole store, or some of its steps.

What is byte for byte as it was is written under its own key. The commit of a step goes last, in one PUT.
Nothing that is undamaged is written again. Steps come first: the consolidated view is made again from them.

Payloads are made again here, or a generation that names what is lost. The encoding is deterministic: the same
payloads in the same places give the same bytes.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from ingest.consolidating.consolidator import Consolidator
from ingest.consolidating.lease import LeaseHeld
from ingest.layouts.detect import find_dump
from ingest.reader import verifying
from ingest.reader.catalog import Catalog, Damage
from ingest.reader.choice import Choice
from ingest.reader.require import require_store
from ingest.reader.step import Step
from ingest.repairing import commits
from ingest.repairing.work import (
    Dumps,
    Lost,
    Mended,
    Payload,
    RepairReport,
    StepRepair,
    StepWork,
    Unmendable,
    find_copies,
    first_same,
    grids_like,
    in_dump,
)
from workers.errors import DamagedStore, SourceChanged, StepRemoved, TensorsRemoved
from workers.model import MIB, StepKey, grouped
from workers.rules.schema import load_rules
from workers.rules.values import RuleSet
from workers.store import commit, metadata, tables
from workers.store.consolidated.cubes import GROUP
from workers.store.model import Grid
from workers.store.objects import Gathered, ObjectStore
from workers.store.opening import open_objects, resolve
from workers.store.packed import pool
from workers.store.packed.pool_packer import PackedInPool, PoolPacker, encode, is_named
from workers.store.packed.shards import ShardPacker
from workers.store.record import new_record
from workers.store.sketches import sketch_chunk_keys
from workers.store.step import StoredStep
from workers.store.tables import LABELS, NUMBERS, Tables, checksums_of
from workers.tasks.publish import MAX_PROBLEMS_IN_RECORD, count_rows

_PIECE_NBYTES = 16 * MIB
#: What the label `problem` of a lost row begins with.
LOST = "lost"


@dataclass(frozen=True, slots=True)
class PlaceInArray:
    """A range of elements of a packed array, which one row or several equal ones refer to."""

    start: int
    stop: int
    rows: tuple[int, ...]


def _zeros(nbytes: int) -> Iterator[bytes]:
    yield from (bytes(min(_PIECE_NBYTES, nbytes - start)) for start in range(0, nbytes, _PIECE_NBYTES))


def mend_payloads(work: StepWork, step: Step, damages: Sequence[Damage]) -> None:
    """Write damaged shards again. What is found nowhere is lost: named, and left out if that is accepted."""
    payloads = _Payloads(work, step, {damage.row for damage in damages}, {damage.path for damage in damages})
    payloads.find_sources()
    is_odd = False
    for shard, places in payloads.shards.items():
        if None not in map(payloads.source, places):
            is_odd |= not payloads.mend(*shard)
    said = {damage.row: damage.reason for damage in damages}
    lost = sorted(row for place, found in payloads.sources.items() if found is None for row in place.rows)
    reasons = {row: said.get(row, f"{step.key}: its place is damaged") for row in lost}
    sources = step.tables.label("source")
    work.repair.lost += [Lost(str(sources[row]), reason) for row, reason in reasons.items()]
    if work.accept_loss if reasons else is_odd:
        named = {row: f"{LOST}: {reason}" for row, reason in reasons.items()}
        work.repair.generation = name_of_rest(step.commit.fingerprint, named)
        if work.apply:
            payloads.commit_rest(work.repair.generation, named)


def name_of_rest(fingerprint: str, lost: Collection[int]) -> str:
    """Return the name of the generation that is another one without the payloads of some rows."""
    text = f"{fingerprint}\nlost\n{' '.join(map(str, sorted(lost)))}\n"
    return xxhash.xxh3_128(text.encode()).hexdigest()


@dataclass(eq=False)
class _Payloads:
    """The payloads of one step, some of which are damaged."""

    work: StepWork
    step: Step
    rows: Collection[int]
    paths: Collection[str]
    sources: dict[PlaceInArray, Payload | None] = field(default_factory=dict)
    """What each damaged payload is taken from; None for one that is found nowhere."""

    @cached_property
    def places(self) -> dict[str, list[PlaceInArray]]:
        table = self.step.tables
        offsets, sizes, arrays = table.number("offset"), table.number("size"), table.label("array")
        rows = grouped(
            ((str(arrays[row]), int(offsets[row]), int(sizes[row])), row)
            for row in np.flatnonzero((offsets >= 0) & (sizes > 0)).tolist()
            if self.step.has_payload(row)
        )
        return grouped(
            (array, PlaceInArray(offset, offset + size, tuple(members)))
            for (array, offset, size), members in sorted(rows.items())
        )

    @cached_property
    def shards(self) -> dict[tuple[str, int], list[PlaceInArray]]:
        """By array and number: what lies in each shard that is damaged, or holds a damaged payload."""
        wanted: set[tuple[str, int]] = set()
        for path in self.paths:
            array, _, number = path.removeprefix(f"{self.step.commit.prefix}/").partition("/c/")
            if number.isdecimal() and array in self.places:
                wanted.add((array, int(number)))
        for array, place in self._damaged():
            size = self.step.packed_spec(array).shard
            wanted |= {(array, shard) for shard in range(place.start // size, (place.stop - 1) // size + 1)}
        return {shard: self._in_shard(*shard) for shard in sorted(wanted)}

    def _in_shard(self, array: str, number: int) -> list[PlaceInArray]:
        size = self.step.packed_spec(array).shard
        first, last = number * size, (number + 1) * size
        return [place for place in self.places[array] if place.start < last and place.stop > first]

    def _damaged(self) -> list[tuple[str, PlaceInArray]]:
        every = ((array, place) for array, places in self.places.items() for place in places)
        return [(array, place) for array, place in every if not set(self.rows).isdisjoint(place.rows)]

    def source(self, place: PlaceInArray) -> Payload | None:
        """Return what lies in a place, after `find_sources`; None if it is found nowhere."""
        if place in self.sources:
            return self.sources[place]
        return Payload("the store", lambda start, stop: self.step.read(place.rows[0], start, stop))

    def find_sources(self) -> None:
        """Find what each damaged payload can be taken from: dump files first, then copies in the store.

        Raises:
            Unmendable: rows that share a damaged place do not agree what lies there.
        """
        work, table = self.work, self.step.tables
        missing: dict[tuple[bytes, int], list[PlaceInArray]] = {}
        for array, place in self._damaged():
            digests = {table.digest[row].tobytes() for row in place.rows}
            if len(digests) > 1:
                raise Unmendable(
                    f"{self.step.commit.prefix}/index/digest",
                    f"{table.label('source')[place.rows[0]]} shares its place with rows of other digests, "
                    "and nothing tells which of them is right: name the dump with --dump",
                )
            nbytes, digest = int(table.number("nbytes")[place.rows[0]]), digests.pop()
            self.sources[place] = first_same(self._in_dumps(array, place), nbytes, digest)
            if self.sources[place] is None:
                missing.setdefault((digest, nbytes), []).append(place)
        if missing:
            earlier: list[StoredStep] = []
            for name in reversed(self.step.commit.record.previous):
                with suppress(DamagedStore):  # it cannot be read any more
                    earlier.append(
                        StoredStep(work.objects, commits.commit_from_objects(work.objects, work.key, name))
                    )
            copies = find_copies(work.catalog, work.key, earlier, [digest for digest, _ in missing])
            for (digest, nbytes), places in missing.items():
                self.sources |= dict.fromkeys(places, first_same(copies[digest], nbytes, digest))

    def _in_dumps(self, array: str, place: PlaceInArray) -> Iterator[Payload]:
        work = self.work
        for dump in work.dumps.of(self.step.commit.record):
            yield from (in_dump(self.step, row, dump.root) for row in place.rows)
        # Other ranks that refer to an array in the pool have dumps of it, too.
        for rank in commit.list_ranks(work.objects) if pool.is_pooled(array) else ():
            with suppress(DamagedStore):
                other = commit.read(work.objects, StepKey(rank, work.key.step))
                if rank != work.key.rank and other is not None and array in other.record.pool:
                    step = StoredStep(work.objects, other)
                    table = step.tables
                    same = (table.label("array") == array) & (table.number("offset") == place.start)
                    for row in np.flatnonzero(same & (table.number("size") == place.stop - place.start)):
                        for dump in work.dumps.of(other.record):
                            yield in_dump(step, int(row), dump.root)

    def elements(self, array: str, number: int) -> Iterator[bytes | bytearray]:
        """Yield the elements of a shard in pieces of at most 16 MiB; zeros in the place of what is lost.

        Raises:
            DumpIngestError, OSError: a payload cannot be read.
            DamagedStore: the places overlap.
        """
        spec = self.step.packed_spec(array)
        first, last = number * spec.shard, (number + 1) * spec.shard
        position = first
        for place in sorted(self.shards[array, number], key=lambda place: place.start):
            start, stop = max(place.start, first), min(place.stop, last)
            if start < position:
                raise DamagedStore(f"{spec.path}/c/{number}: two rows claim element {start}")
            yield from _zeros((start - position) * spec.itemsize)
            payload = self.source(place)
            if payload is None:
                yield from _zeros((stop - start) * spec.itemsize)
            else:
                first_byte, last_byte = ((at - place.start) * spec.itemsize for at in (start, stop))
                piece_nbytes = max(_PIECE_NBYTES // spec.itemsize, 1) * spec.itemsize
                for begin in range(first_byte, last_byte, piece_nbytes):
                    yield payload.read(begin, min(begin + piece_nbytes, last_byte))
            position = stop

    def encode(self, array: str, number: int) -> bytes:
        """Return the bytes of a shard; zeros in the place of what is lost.

        Memory: the encoded shard, and one piece of 16 MiB.
        """
        encoded: list[bytes] = []
        spec = self.step.packed_spec(array)
        with ShardPacker(spec, number, lambda _shard: Gathered(encoded.append)) as packer:
            for piece in self.elements(array, number):
                packer.append(memoryview(piece))
        return encoded[0] if encoded else b""

    def mend(self, array: str, number: int) -> bool:
        """Write a shard again; return whether it is what it was.

        Digests of payloads were compared already. They are not cryptographic, and other ranks rely on an
        array in the pool, too: a dump that was forged must not get into it.
        """
        committed, path = self.step.commit, f"{array}/c/{number}"
        if pool.is_pooled(array):
            pooled, elements = committed.record.pool[array], list(self.elements(array, number))
            if not is_named(pool.name_in(array), pooled.node, elements):
                return False
            data, nbytes = encode(self.step.packed_spec(array), elements), pooled.nbytes
        else:
            data, nbytes = self.encode(array, number), committed.record.stored.get(path, -1)
            path = f"{committed.prefix}/{path}"
        if len(data) != nbytes:
            return False  # another version of the compressor: the commit has another size
        if self.work.objects.get(path) != data:
            found = [self.sources.get(place) for place in self.shards[array, number]]
            origins = dict.fromkeys(source.origin for source in found if source is not None)
            self.work.put(path, data, ", ".join(origins) or "its own payloads")
        return True

    def commit_rest(self, name: str, lost: Mapping[int, str]) -> None:
        """Commit the step again without the payloads that are lost.

        Lost rows keep their labels, digests and statistics. Their offset is -1, and their label `problem`
        says why. The committed generation stays as it is until `gc` removes it.

        Args:
            name: of the generation.
            lost: by row, why its payload is lost.

        Raises:
            SourceChanged: another generation was committed meanwhile.
            StoreError: the store refused.
        """
        step, committed, objects = self.step, self.step.commit, self.work.objects
        record, prefix = committed.record, committed.prefix
        in_pool = self._replace_pooled()
        stored = self._copy_shards(f"{committed.key.path}/{name}")
        pooled = {path: array for path, array in record.pool.items() if path not in in_pool}
        pooled |= {made.path: made.array for made in in_pool.values() if made is not None}
        built = _without(step.tables, lost, in_pool)
        documents, chunks = tables.encode(built)
        # Those of findings and sketches stay.
        keys = [
            f"{path}/c/0/0"
            for path, node in committed.nodes.items()
            if path.startswith("findings/") and node.get("node_type") == "array"
        ]
        kept = objects.get_many([f"{prefix}/{key}" for key in (*keys, *sketch_chunk_keys(committed.nodes))])
        chunks |= {key[len(prefix) + 1 :]: data for key, data in kept.items()}
        nodes = _nodes(step, documents, stored)
        summary = replace(
            committed.summary,
            fingerprint=name,
            status="partial" if lost else committed.summary.status,
            stored_bytes=sum(stored.values())
            + sum(map(len, chunks.values()))
            + sum(array.nbytes for array in pooled.values()),
            objects=len(stored) + len(chunks) + len(nodes) + 2 * len(pooled) + 1,
            **count_rows(built),
        )
        sources = built.label("source")
        problems = [f"{sources[row]}: {reason}" for row, reason in sorted(lost.items())]
        remade = new_record(
            summary,
            origin=record.source,
            stored=stored,
            without_tensors=record.without_tensors,
            nets=record.nets,
            graphs=record.graphs,
            problems=(*problems, *record.problems)[:MAX_PROBLEMS_IN_RECORD],
            poison=record.poison,
            pool=pooled,
            checksums=checksums_of(chunks),
        )
        commit.write(objects, remade, nodes, chunks, replaces=committed.fingerprint)

    def _replace_pooled(self) -> dict[str, PackedInPool | None]:
        """Write what is left of arrays in the pool that cannot be made again as other arrays there.

        Returns:
            By path of a damaged array: what takes its place; None if nothing of it is left.
        """
        replaced: dict[str, PackedInPool | None] = {}
        for (array, number), places in self.shards.items():
            found = list(map(self.source, places))
            if not pool.is_pooled(array) or (None not in found and self.mend(array, number)):
                continue
            replaced[array] = None
            if any(found):
                with PoolPacker(self.step.packed_spec(array), self.step.key, self.step.objects) as packer:
                    for piece in self.elements(array, number):
                        packer.append(memoryview(piece))
                (replaced[array],) = packer.arrays
        return replaced

    def _copy_shards(self, prefix: str) -> dict[str, int]:
        stored: dict[str, int] = {}
        for path in self.step.commit.record.stored:
            array, _, number = path.partition("/c/")
            places = self.shards.get((array, int(number)))
            if places is None:
                data = self.work.objects.get(f"{self.step.commit.prefix}/{path}")
            else:
                data = self.encode(array, int(number)) if any(map(self.source, places)) else None
            if data is not None:
                self.work.objects.put(f"{prefix}/{path}", data)
                stored[path] = len(data)
        return stored


def _without(
    built: Tables, lost: Mapping[int, str], made_in_pool: Mapping[str, PackedInPool | None]
) -> Tables:
    numbers, labels = built.numbers.copy(), built.labels.copy()
    for path, made in made_in_pool.items():
        if made is not None:
            labels[built.label("array") == path, LABELS.index("array")] = made.path
    problem = LABELS.index("problem")
    for row, reason in lost.items():
        numbers[row, NUMBERS.index("offset")] = -1
        before = labels[row, problem]
        labels[row, problem] = f"{before}; {reason}" if before else reason
    return Tables(labels, numbers, built.shape, built.digest, built.statistics)


def _nodes(
    step: Step, documents: Mapping[str, metadata.Document], stored: Collection[str]
) -> dict[str, metadata.Document]:
    kept = {path.partition("/c/")[0] for path in stored}
    sizes, array = step.tables.number("size"), step.tables.label("array")
    nodes = {
        path: node
        for path, node in step.commit.nodes.items()
        if not path.startswith(("files", "tensors/")) or path in kept or not sizes[array == path].any()
    }
    if not any(path.startswith("tensors/") for path in nodes):
        nodes.pop("tensors", None)
    return {**nodes, **documents}


def mend_step(
    catalog: Catalog, key: StepKey, dumps: Dumps, *, apply: bool, accept_loss: bool
) -> StepRepair | None:
    """Repair one step; return what became of it, or None if it is undamaged or gone.

    Memory: the index of the step and of one other, one shard, and a few pieces of 16 MiB. Tables that are
    made from the dump take a conversion of the whole step, which writes nothing.

    Raises:
        StoreError: the store refused. What was repaired stays repaired.
    """
    damages = list(verifying.verify(catalog, [key]))
    if not damages:
        return None
    work = StepWork(catalog, key, dumps, StepRepair(key, tuple(map(str, damages))), apply, accept_loss)
    try:
        _mend(work)
    except Unmendable as exc:
        work.repair.lost.append(exc.lost)
    except SourceChanged as exc:
        work.repair.lost.append(Lost(str(key), f"{exc.message}; run it again"))
    except (StepRemoved, TensorsRemoved):
        return None
    except DamagedStore as exc:  # other steps must not wait for what is wrong with this one
        work.repair.lost.append(Lost(key.path, exc.message))
    if apply:
        work.repair.remains = tuple(map(str, verifying.verify(catalog.reopened(), [key])))
    return work.repair


def _mend(work: StepWork) -> None:
    """Repair a step that is damaged.

    Raises:
        Unmendable: something could not be made again that the rest needs.
        StoreError: the store refused.
    """
    leaf = work.objects.get(work.leaf_path)
    if leaf is None:
        return
    committed = commits.commit_of(work, leaf)
    work.put_changed(verifying.documents_of(committed), "the commit")
    step = commits.tables_of(work, committed)
    if step is None:
        return  # a new generation was committed from the dump
    step = commits.mend_findings(work, step)
    step = commits.mend_totals(work, step)
    damages = list(verifying.verify_step(step, verifying.Verified()))
    step = commits.mend_sketches(work, step, damages)
    mend_payloads(work, step, damages)
    commits.write_commit(work, leaf, step.commit)


def damage_of_root(objects: ObjectStore) -> verifying.StoreDamage | None:
    """Return what is wrong with the root of a store; None if nothing is.

    Raises:
        StoreFormatError: it is the root of something else, or of a later version.
    """
    try:
        version = commit.read_root(objects)
    except DamagedStore as exc:
        return verifying.StoreDamage(commit.ROOT, exc.message)
    if version is None and commit.holds_commits(objects):
        return verifying.StoreDamage(commit.ROOT, f"{commit.ROOT} is missing")
    return None


def mend_surroundings(objects: ObjectStore, *, apply: bool) -> StepRepair | None:
    """Repair root, groups of ranks and view; return what became of them, or None if nothing is damaged.

    The view is made again from the steps, so these are to be repaired first.

    Raises:
        StoreFormatError: the place holds something else.
        StoreError: the store refused.
    """
    root = damage_of_root(objects)
    damages = [
        *filter(None, [root]),
        *verifying.verify_surroundings(objects),
        *verifying.verify_copies(objects),
    ]
    if not damages:
        return None
    repair = StepRepair(None, tuple(map(str, damages)))
    beside = [damage for damage in damages if damage.path != GROUP]
    for damage in beside:
        rank = damage.path.partition("/")[0].removeprefix("rank_")
        is_root = damage.path == commit.ROOT
        if apply:
            document = commit.root_document() if is_root else commit.rank_document(int(rank))
            objects.put(damage.path, document)
        repair.mended.append(Mended(damage.path, "its place in the store"))
    if len(beside) < len(damages):
        # From the commits; if only copies of commits are damaged, only those.
        try:
            if apply:
                with Consolidator(objects) as consolidator:
                    consolidator.once(check=True)
            repair.mended.append(Mended(GROUP, "the steps"))
        except LeaseHeld as exc:
            repair.lost.append(Lost(GROUP, exc.message))
    if apply:
        repair.remains = tuple(
            map(str, [*verifying.verify_surroundings(objects), *verifying.verify_copies(objects)])
        )
    return repair


def repair(
    store: str | PathLike[str],
    dumps: Sequence[str | PathLike[str]] = (),
    *,
    rank: Choice = None,
    step: Choice = None,
    apply: bool = False,
    accept_loss: bool = False,
    grid: Grid | None = None,
    rules: RuleSet | None = None,
    host: str | None = None,
    rank_map: Mapping[int, int] | None = None,
    layout: str = "",
    progress: Callable[[StepKey], None] = lambda _: None,
    timeout_s: float | None = None,
    **storage_options: Any,
) -> RepairReport:
    """Make what is damaged in a store again, as `dump-ingest repair` does.

    Everything is read and checked, as by `verify`. A damaged payload is taken from the dump if it still has
    the file, else from an earlier generation or another step that has the same digest. Objects are written
    under their own keys if they are byte for byte what was lost, and never if they are undamaged.

    Args:
        store: a directory or any fsspec URL.
        dumps: directories of dumps, besides those that the commits name.
        rank: one rank, or several; all if None.
        step: one step, or several; all, and what lies beside the steps, if None.
        apply: whether to write. By default the report says what would be written.
        accept_loss: whether a step is committed again, as `partial`, without the payloads that are found
            nowhere.
        grid: how the store was written, if not by default: chunk, shard and job sizes.
        rules: evaluated for steps whose findings are lost; the built-in ones if None.
        host: what this host is called in commits.
        rank_map: ranks by device id, for dumps whose paths name only devices, as for `ingest`.
        layout: patterns for dumps that no layout covers, as for `ingest`.
        progress: called with each step before it is read.
        timeout_s: how long a request may go on without progress, in seconds; default: what the variable
            `DUMP_INGEST_STORE_TIMEOUT_S` says, else a minute.
        storage_options: passed to fsspec.

    Raises:
        UsageError: the store does not exist, one of the dumps is not a dump, or a rank or step is missing.
        StoreFormatError: a later version of dump-ingest wrote the store, or it is something else.
        StoreError: the store refused. What was repaired stays repaired.
    """
    find = partial(find_dump, rank_map=rank_map, layout=layout)
    objects = open_objects(resolve(store, storage_options, timeout_s=timeout_s))
    catalog = Catalog(objects)
    if damage_of_root(objects) is None:
        require_store(objects, objects.address.url)
    sources = Dumps(
        objects.address,
        grids_like(grid or Grid()),
        rules or load_rules().enabled,
        host or socket.gethostname(),
        tuple(find(Path(directory)) for directory in dumps),
        find,
    )
    report = RepairReport(objects.address.url, apply)
    if rank is None and step is None:
        keys = commit.list_keys(objects)
    else:
        unread: list[Damage] = []
        chosen = catalog.select(rank, step, damages=unread)
        keys = [*(one.key for one in chosen), *(damage.key for damage in unread)]
    for key in keys:
        progress(key)
        report.checked += 1
        outcome = mend_step(catalog, key, sources, apply=apply, accept_loss=accept_loss)
        report.repairs += [outcome] if outcome else []
    if rank is None and step is None and (outcome := mend_surroundings(objects, apply=apply)):
        report.repairs.append(outcome)
    return report
