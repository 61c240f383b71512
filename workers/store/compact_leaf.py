"""The `zarr.json` of a committed step, compact in memory: steps share what they have in common.

A run has one for each rank and step. The metadata of the nodes is most of it, thirty times as large once it
is unpacked, and the same in most steps of a run but for the name of the generation. So it is compressed, and
compressed only once: that takes longer than to read and check all of a commit.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from workers.store import metadata
from workers.store.record import decode_nodes

#: Where the metadata of the nodes begins in what `metadata.leaf` makes.
_NODES_BEGIN = b'"consolidated_metadata"'
#: Stands for the name of the generation. JSON has no such byte.
_NAME = b"\0"


@dataclass(frozen=True, slots=True)
class CompactLeaf:
    """The content of one `zarr.json`, byte for byte: equal content, equal values."""

    before_nodes: bytes
    """All that precedes the metadata of the nodes: the commit record."""
    packed_nodes: bytes
    """The rest, compressed by zlib, with `_NAME` for each occurrence of `name`."""
    name: bytes
    """Of the generation."""

    @classmethod
    def of(cls, data: bytes, fingerprint: str) -> CompactLeaf:
        """Pack a checked `zarr.json`, which is the commit of this generation."""
        start = max(data.find(_NODES_BEGIN), 0)
        nodes, name = data[start:], fingerprint.encode()
        if _NAME in nodes:  # damage that JSON decoders pass over
            name = _NAME
        return cls(data[:start], _compressed(nodes.replace(name, _NAME)), name)

    @property
    def data(self) -> bytes:
        """The `zarr.json`."""
        return self.before_nodes + zlib.decompress(self.packed_nodes).replace(_NAME, self.name)


@lru_cache(maxsize=64)
def _compressed(nodes: bytes) -> bytes:
    return zlib.compress(nodes, 1)


class Nodes(Mapping[str, metadata.Document]):
    """The metadata of the nodes of a generation, by path in it; unpacked when it is needed."""

    __slots__ = ("_leaf",)

    def __init__(self, leaf: CompactLeaf) -> None:
        """Hold a checked leaf."""
        self._leaf = leaf

    def __getitem__(self, path: str) -> metadata.Document:
        return _unpacked(self._leaf)[path]

    def __iter__(self) -> Iterator[str]:
        return iter(_unpacked(self._leaf))

    def __len__(self) -> int:
        return len(_unpacked(self._leaf))

    def __reduce__(self) -> tuple[type[Nodes], tuple[CompactLeaf]]:
        return Nodes, (self._leaf,)


@lru_cache(maxsize=64)
def _unpacked(leaf: CompactLeaf) -> dict[str, metadata.Document]:
    return decode_nodes(leaf.data)
