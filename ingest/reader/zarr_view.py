"""A read-only zarr-python store in which every tensor is an array of its own.

Import this module only when a view is needed: importing zarr-python takes 0.2 s, and nothing else needs it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable
from itertools import islice
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype

from ingest.reader.catalog import Catalog
from ingest.reader.snapshot import LeftOut
from ingest.reader.zarr_nodes import NodeTree
from workers.store import zarr_dtypes
from workers.store.commit import Commit
from workers.store.model import StoreAddress
from workers.store.opening import open_objects

# Defined here because in the class body `list` is a method.
_LeftOutList: TypeAlias = list[LeftOut]
_Buffers: TypeAlias = list[Buffer | None]

#: Keys that are listed at once, in another thread.
_KEYS_AT_ONCE = 256

# zarr 3.1 does not load these types by itself.
zarr_dtypes.register()


class TensorView(Store):
    """Every tensor of a store as a Zarr array: `rank_1/step_2/Log.Default_net-Log-op0/output.0`.

    Nothing is written: metadata and chunks are made from the index and the packed arrays when zarr requests
    them. Opening an array by its path reads the commit and the index of its step, and lists nothing. Chunks
    have about 1 MiB, along the slowest axis. `ViewElements` describes how types that Zarr does not have are
    shown.

    A step stays in the generation in which it was first looked at, also in pickled copies of the view. Steps
    that were not looked at yet are shown as they are committed then. Partial steps are refused and not
    listed, unless `include_partial` is set; `left_out` names them.

    Memory: what `NodeTree` takes, and the chunks that are being read.

    Reading raises `DamagedStore` if bytes are missing or damaged; zeros are never returned in their place.
    """

    supports_writes = False
    supports_deletes = False
    supports_listing = True
    supports_consolidated_metadata = False

    def __init__(self, store: Catalog, *, include_partial: bool = False) -> None:
        super().__init__(read_only=True)
        self._tree = NodeTree(store, include_partial=include_partial)

    def __repr__(self) -> str:
        return f"<TensorView {self._tree.store.url}>"

    def __str__(self) -> str:
        return f"dump-ingest:{self._tree.store.url}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorView) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (*self._identity, tuple(self._tree.commits))

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        generations = [(str(commit.key), commit.fingerprint) for commit in self._tree.commits]
        return *map(str, self._identity), sorted(generations)

    @property
    def _identity(self) -> tuple[StoreAddress, bool]:
        return self._tree.store.objects.address, self._tree.include_partial

    @property
    def left_out(self) -> _LeftOutList:
        """The steps in the store that are not shown, with the reason. Reads the commit of every step.

        Raises:
            StoreError: the store cannot be reached.
        """
        return self._tree.left_out()

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return an object, or a range of it; None if it does not exist.

        Raises:
            DamagedStore: what it is made from is missing or damaged.
            UsageError: it belongs to a step that is partial.
        """
        await self._ensure_open()
        # Chunks and indexes come from disk or network. For what is in memory, another thread would be slower.
        if self._tree.is_in_memory(key):
            data = self._read(key, byte_range)
        else:
            data = await asyncio.to_thread(self._read, key, byte_range)
        buffer = (prototype or default_buffer_prototype()).buffer
        return None if data is None else buffer.from_bytes(data)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> _Buffers:
        """Return several objects, or ranges of them, in their order; reads them at the same time."""
        requests = (self.get(key, prototype, byte_range) for key, byte_range in key_ranges)
        return list(await asyncio.gather(*requests))

    async def exists(self, key: str) -> bool:
        """Return whether an object with this key exists. Reads no chunk."""
        await self._ensure_open()
        return await asyncio.to_thread(self._tree.find, key) is not None

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
        """Yield the names directly below a node; see `NodeTree.children`."""
        await self._ensure_open()
        for name in await asyncio.to_thread(lambda: list(self._tree.children(prefix.strip("/")))):
            yield name

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Yield every key that begins with `prefix`, those of chunks included; see `NodeTree.keys`."""
        await self._ensure_open()
        keys = self._tree.keys(prefix)
        while batch := await asyncio.to_thread(lambda: list(islice(keys, _KEYS_AT_ONCE))):
            for key in batch:
                yield key

    async def list(self) -> AsyncIterator[str]:
        """Yield every key. Reads the index of every step."""
        async for key in self.list_prefix(""):
            yield key

    def _read(self, key: str, byte_range: ByteRequest | None) -> bytes | None:
        object_ = self._tree.find(key)
        if object_ is None:
            return None
        nbytes, read = object_
        return read(*_bounds(byte_range, nbytes))


#: Views that were unpickled in this process and are in use: the tasks of one array share one of them.
_VIEWS: WeakValueDictionary[Any, TensorView] = WeakValueDictionary()
_VIEWS_LOCK = threading.Lock()


def _reopen(address: StoreAddress, include_partial: bool, commits: tuple[Commit, ...]) -> TensorView:  # noqa: FBT001  (unpickled by position)
    key = (address, include_partial, frozenset((commit.key, commit.fingerprint) for commit in commits))
    with _VIEWS_LOCK:
        view = _VIEWS.get(key)
        if view is None:
            view = TensorView(Catalog(open_objects(address)), include_partial=include_partial)
            for committed in commits:
                view._tree.pin(committed)  # noqa: SLF001  (this function is a part of the class)
            _VIEWS[key] = view
        return view


def _bounds(byte_range: ByteRequest | None, nbytes: int) -> tuple[int, int]:
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
