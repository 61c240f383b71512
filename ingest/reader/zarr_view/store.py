"""A read-only zarr-python store in which every tensor is an array of its own.

Imported only where the view is asked for: it needs zarr-python, which nothing else of the reader does.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype

from ingest.reader.catalog import Catalog, Damage
from ingest.reader.snapshot import NOT_COMMITTED, LeftOut, partial_reason
from ingest.reader.step import Step
from ingest.reader.zarr_view import attributes
from ingest.reader.zarr_view.arrays import ViewArray
from ingest.reader.zarr_view.elements import Elements
from ingest.reader.zarr_view.names import StepNames, name_tensors
from workers.errors import UsageError
from workers.model import StepKey
from workers.store import commit, metadata, zarr_dtypes
from workers.store.commit import Commit
from workers.store.model import StoreAddress
from workers.store.opening import open_objects

# Not in the class, where `list` is a method.
_LeftOut: TypeAlias = list[LeftOut]
_Buffers: TypeAlias = list[Buffer | None]

_NODE = "zarr.json"
_RANK = re.compile(r"rank_(0|[1-9][0-9]{0,17})")
_STEP = re.compile(r"step_(0|[1-9][0-9]{0,17})")
#: Steps whose index is kept.
_STEPS_KEPT = 16

# zarr 3.1 does not load them by itself.
zarr_dtypes.register()


@dataclass(frozen=True, slots=True, eq=False)
class _OpenStep:
    """One generation of one step, with its index."""

    step: Step
    names: StepNames

    def document(self, path: str) -> metadata.Document | None:
        """Return the metadata of the node at a path in the step; None where there is none."""
        if (row := self.names.row_of(path)) is not None:
            array = ViewArray.of(Elements(self.step, row))
            return array.document(attributes.of_tensor(self.step, row))
        if (operator := self.names.operators.get(path)) is not None:
            return metadata.group(attributes.of_operator(self.step, operator))
        if path in self.names.graphs:
            return metadata.group({"graph": path})
        return None

    def array(self, path: str) -> ViewArray | None:
        row = self.names.row_of(path)
        return None if row is None else ViewArray.of(Elements(self.step, row))


@dataclass(frozen=True, slots=True, eq=False)
class _Chunk:
    array: ViewArray
    place: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return self.array.chunk_nbytes

    def read(self, start: int, stop: int) -> bytes:
        return self.array.read(self.place, start, stop)


@dataclass(frozen=True, slots=True, eq=False)
class _Document:
    data: bytes

    @property
    def nbytes(self) -> int:
        return len(self.data)

    def read(self, start: int, stop: int) -> bytes:
        return self.data[start:stop]


class TensorView(Store):
    """Every tensor of a store as a Zarr array: `rank_1/step_2/Log.Default_net-Log-op0/output.0`.

    Nothing is written anywhere: metadata and chunks are made from the index and the packed arrays when zarr
    asks for them. To open an array by its path costs the commit and the index of its step, and no listing.
    Chunks have about 1 MiB along the slowest axis; `Elements` says how types are shown that Zarr lacks.

    A step stays as it was when it was first looked at, also for who gets the view pickled; what is committed
    later is seen where nothing was looked at yet. Steps that are partial are refused, unless
    `include_partial`, and not listed; `left_out` names them.

    Memory: the index of 16 steps (some 10 MiB for 5000 tensors), the commit of every step that was looked at,
    and the chunks on their way.

    Reading raises `DamagedStore` where bytes are missing or damaged, and never fills in anything.
    """

    supports_writes = False
    supports_deletes = False
    supports_listing = True
    supports_consolidated_metadata = False

    def __init__(self, store: Catalog, *, include_partial: bool = False) -> None:
        """Look at `store` as it is now."""
        super().__init__(read_only=True)
        self._store = store.reopened()
        self._include_partial = include_partial
        self._steps: dict[StepKey, Step] = {}
        self._opened: OrderedDict[StepKey, _OpenStep] = OrderedDict()
        self._lock = threading.Lock()
        self._opening: dict[StepKey, threading.Lock] = {}

    def __repr__(self) -> str:
        return f"<TensorView {self._store.url}>"

    def __str__(self) -> str:
        return f"dump-ingest:{self._store.url}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorView) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __reduce__(self) -> tuple[Any, ...]:
        with self._lock:
            commits = tuple(step.commit for step in self._steps.values())
        return _reopen, (*self._identity, commits)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        with self._lock:
            generations = [(str(key), step.fingerprint) for key, step in self._steps.items()]
        return *map(str, self._identity), sorted(generations)

    @property
    def _identity(self) -> tuple[StoreAddress, bool]:
        return self._store.objects.address, self._include_partial

    @property
    def left_out(self) -> _LeftOut:
        """What is in the store and not in the view, and why. Asks for the commit of every step.

        Raises:
            StoreError: the store cannot be reached.
        """
        found: _LeftOut = []
        for rank in self._ranks:
            self._shown_of(rank, found)
        return found

    def with_read_only(self, read_only: bool = False) -> TensorView:  # noqa: FBT001, FBT002  (as zarr has it)
        """Return the view itself; it is never anything but read-only."""
        if not read_only:
            super().with_read_only(read_only)  # raises what zarr expects
        return self

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return an object, or a range of it; None where there is none.

        Raises:
            DamagedStore: what it is made from is missing or damaged.
            UsageError: it belongs to a step that is partial.
        """
        await self._ensure_open()
        # Chunks and indexes come from disk or network; what is in memory is not worth a thread.
        if self._is_at_hand(key):
            data = self._get(key, byte_range)
        else:
            data = await asyncio.to_thread(self._get, key, byte_range)
        buffer = (prototype or default_buffer_prototype()).buffer
        return None if data is None else buffer.from_bytes(data)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> _Buffers:
        """Return several objects, or ranges of them, in their order; all at once."""
        return list(await asyncio.gather(*(self.get(key, prototype, one) for key, one in key_ranges)))

    async def exists(self, key: str) -> bool:
        """Whether there is an object of this name; reads no payload."""
        await self._ensure_open()
        return await asyncio.to_thread(self._find, key) is not None

    async def getsize(self, key: str) -> int:
        """Return the bytes of an object; reads no payload.

        Raises:
            FileNotFoundError: there is none of this name.
        """
        await self._ensure_open()
        found = await asyncio.to_thread(self._find, key)
        if found is None:
            raise FileNotFoundError(key)
        return found.nbytes

    async def set(self, key: str, value: Buffer) -> None:
        """Refuse to write.

        Raises:
            ValueError: always.
        """
        del key, value
        self._check_writable()

    async def delete(self, key: str) -> None:
        """Refuse to delete.

        Raises:
            ValueError: always.
        """
        del key
        self._check_writable()

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names right below a node. Lists the ranks, or reads the commits of a rank or an index."""
        await self._ensure_open()
        for name in await asyncio.to_thread(lambda: list(self._children(prefix.strip("/")))):
            yield name

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Yield every key that begins with `prefix`, chunks too. Reads the index of each step on the way."""
        await self._ensure_open()
        keys = self._keys(prefix)
        while batch := await asyncio.to_thread(_next, keys):
            for key in batch:
                yield key

    async def list(self) -> AsyncIterator[str]:
        """Yield every key. Reads the index of every step."""
        async for key in self.list_prefix(""):
            yield key

    def _get(self, key: str, byte_range: ByteRequest | None) -> bytes | None:
        found = self._find(key)
        return None if found is None else found.read(*_bounds(byte_range, found.nbytes))

    def _find(self, key: str) -> _Document | _Chunk | None:
        """Return what a key stands for."""
        node, _, name = key.rpartition("/")
        if name == _NODE:
            document = self._document(node)
            return None if document is None else _Document(metadata.encode(document))
        opened, path = self._locate(key)
        if opened is None or "/c" not in path:
            return None
        # `c` may be the name of an operator, too; digits and `c` behind it are no part of any array.
        node, _, chunk = path.rpartition("/c")
        array = opened.array(node)
        place = array.place(f"c{chunk}") if array else None
        return None if array is None or place is None else _Chunk(array, place)

    def _document(self, node: str) -> metadata.Document | None:
        if not node:
            return metadata.group({"dump_store": self._store.url})
        rank = _number(_RANK, node)
        if rank is not None:
            return metadata.group({"rank": rank}) if rank in self._ranks else None
        key, path = _split(node)
        if key is None:
            return None
        if not path:  # the commit tells all of it: a list of steps reads no index
            step = self._step(key)
            return None if step is None else metadata.group(attributes.of_step(step))
        opened = self._open_step(key)
        return None if opened is None else opened.document(path)

    def _children(self, node: str) -> Iterator[str]:
        if self._document(node) is None:
            yield from self._chunk_names(node)
            return
        yield _NODE
        if not node:
            yield from (f"rank_{rank}" for rank in self._ranks)
        elif (rank := _number(_RANK, node)) is not None:
            yield from (step.key.path.partition("/")[2] for step in self._shown_of(rank))
        else:
            opened, path = self._locate(node)
            if opened is not None and (array := opened.array(path)) is not None:
                # One name, though there may be a million chunks.
                yield from ["c"] if array.elements.size else []
            elif opened is not None:
                yield from opened.names.children(path) or ()

    def _chunk_names(self, node: str) -> Iterator[str]:
        """Yield the names below a place within the chunks of an array."""
        opened, path = self._locate(node)
        name, _, chunks = f"{path}/".rpartition("/c/")
        if opened is None or (array := opened.array(name)) is None:
            return
        start = f"c/{chunks}"
        yield from dict.fromkeys(
            key[len(start) :].split("/", 1)[0] for key in array.chunk_keys() if key.startswith(start)
        )

    def _keys(self, prefix: str) -> Iterator[str]:
        """Yield the keys that begin with `prefix`."""
        node = prefix.rpartition("/")[0]
        while node and self._document(node) is None:  # a place within the chunks of an array
            node = node.rpartition("/")[0]
        yield from self._walk(node, prefix)

    def _walk(self, node: str, prefix: str) -> Iterator[str]:
        """Yield the keys at and below a node that begin with `prefix`."""
        opened, path = self._locate(node) if node else (None, "")
        array = opened.array(path) if opened is not None else None
        start = f"{node}/" if node else ""
        if array is not None:
            names = chain([_NODE], array.chunk_keys())
            yield from (start + name for name in names if (start + name).startswith(prefix))
            return
        for name in self._children(node):
            key = start + name
            if name == _NODE:
                if key.startswith(prefix):
                    yield key
            elif f"{key}/".startswith(prefix) or prefix.startswith(f"{key}/"):
                yield from self._walk(key, prefix)

    def _locate(self, key: str) -> tuple[_OpenStep | None, str]:
        """Return the step that a key is in, and the rest of the key; None where it is in none."""
        step, path = _split(key)
        return None if step is None else self._open_step(step), path

    def _is_at_hand(self, key: str) -> bool:
        node, _, name = key.rpartition("/")
        if name != _NODE:
            return name.startswith(".")  # what zarr asks for to see whether this is Zarr 2
        step, path = _split(node)
        if step is None:
            return not node
        return step in (self._opened if path else self._steps)

    def _open_step(self, key: StepKey) -> _OpenStep | None:
        with self._lock:
            if key in self._opened:
                self._opened.move_to_end(key)
                return self._opened[key]
            opening = self._opening.setdefault(key, threading.Lock())
        with opening:  # many chunks of one step are asked for at once
            with self._lock:
                if key in self._opened:
                    return self._opened[key]
            step = self._step(key)
            if step is None:
                return None
            opened = _OpenStep(step, name_tensors(step.tables))
            with self._lock:
                self._opened[key] = opened
                while len(self._opened) > _STEPS_KEPT:
                    old, _ = self._opened.popitem(last=False)
                    # The same generation, with nothing read of it.
                    self._steps[old] = Step(self._store.objects, self._steps[old].commit)
            return opened

    def _step(self, key: StepKey) -> Step | None:
        """Return the generation of a step that this view shows.

        Raises:
            UsageError: it is partial.
        """
        with self._lock:
            if key in self._steps:
                return self._steps[key]
        found = commit.read(self._store.objects, key)
        if found is None or _is_empty_run(found):
            return None
        if not self._shows(found):
            raise UsageError(
                f"{self._store.url}: {key} is {partial_reason(found.summary)}",
                hint="`as_zarr(include_partial=True)` takes partial steps.",
            )
        with self._lock:
            return self._steps.setdefault(key, Step(self._store.objects, found))

    def _shows(self, found: Commit) -> bool:
        return self._include_partial or found.summary.status == "complete"

    @cached_property
    def _ranks(self) -> Sequence[int]:
        ranks = (_number(_RANK, name) for name in self._store.objects.children())
        return sorted(rank for rank in ranks if rank is not None)

    def _shown_of(self, rank: int, left_out: _LeftOut | None = None) -> Sequence[Step]:
        """Return the steps of a rank that this view shows, in order; note those that it does not."""
        damages: list[Damage] = []
        try:
            found = self._store.select(rank, damages=damages)
        except UsageError:  # nothing of it is committed
            found = []
        others = [LeftOut(damage.key, f"damaged: {damage.reason}") for damage in damages]
        shown = []
        for step in found:
            if _is_empty_run(step.commit):
                continue
            if self._shows(step.commit):
                with self._lock:
                    shown.append(self._steps.setdefault(step.key, step))
            else:
                others.append(LeftOut(step.key, partial_reason(step.commit.summary)))
        if left_out is not None:
            known = {*(step.key for step in found), *(one.key for one in others)}
            listed = commit.list_keys(self._store.objects, [rank])
            others += [LeftOut(key, NOT_COMMITTED) for key in listed if key not in known]
            left_out += sorted(others, key=lambda one: one.key.order)
        return shown


def _is_empty_run(found: Commit) -> bool:
    """Whether this is what belongs to no step, and none of it is a tensor: a graph, an execution order."""
    return found.key.step is None and not found.summary.tensors and not found.summary.statistics_only


def _next(keys: Iterator[str]) -> list[str]:
    return list(islice(keys, 256))


#: Views that arrived in this process and are in use: the tasks of one array share one.
_VIEWS: WeakValueDictionary[Any, TensorView] = WeakValueDictionary()
_VIEWS_LOCK = threading.Lock()


def _reopen(address: StoreAddress, include_partial: bool, commits: tuple[Commit, ...]) -> TensorView:  # noqa: FBT001  (unpickled by position)
    key = (address, include_partial, frozenset((one.key, one.fingerprint) for one in commits))
    with _VIEWS_LOCK:
        view = _VIEWS.get(key)
        if view is None:
            view = TensorView(Catalog(open_objects(address)), include_partial=include_partial)
            view._steps.update({one.key: Step(view._store.objects, one) for one in commits})  # noqa: SLF001
            _VIEWS[key] = view
        return view


def _split(path: str) -> tuple[StepKey | None, str]:
    """Return the step that a path leads to, and the rest of it; None where it leads to none."""
    rank_name, _, rest = path.partition("/")
    step_name, _, below = rest.partition("/")
    rank, step = _number(_RANK, rank_name), _number(_STEP, step_name)
    if rank is None or (step is None and step_name != "run"):
        return None, ""
    return StepKey(rank, step), below


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.fullmatch(text)
    return int(found[1]) if found else None


def _bounds(byte_range: ByteRequest | None, nbytes: int) -> tuple[int, int]:
    """Return the first byte of a range and the one behind its last, within the object."""
    match byte_range:
        case RangeByteRequest(start=start, end=end):
            return min(start, nbytes), max(min(end, nbytes), min(start, nbytes))
        case OffsetByteRequest(offset=offset):
            return min(offset, nbytes), nbytes
        case SuffixByteRequest(suffix=suffix):
            return max(nbytes - suffix, 0), nbytes
        case None:
            return 0, nbytes
    raise ValueError(f"Unexpected byte_range, got {byte_range!r}")
