"""The keys of a Zarr view: which of them exist, and the bytes behind each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from ingest.reader.zarr_view import attributes
from ingest.reader.zarr_view.arrays import ViewArray
from ingest.reader.zarr_view.shown_steps import ShownSteps, StepNodes
from workers.model import StepKey
from workers.store import metadata
from workers.store.names import rank_named, step_named

_METADATA = "zarr.json"


@dataclass(frozen=True, slots=True, eq=False)
class DocumentObject:
    """The metadata of a node, encoded."""

    data: bytes

    @property
    def nbytes(self) -> int:
        """Its size."""
        return len(self.data)

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes `start` to `stop`."""
        return self.data[start:stop]


@dataclass(frozen=True, slots=True, eq=False)
class ChunkObject:
    """A chunk of an array, which is read when its bytes are requested."""

    array: ViewArray
    index: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Its size."""
        return self.array.chunk_nbytes

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes `start` to `stop`."""
        return self.array.read(self.index, start, stop)


class NodeTree:
    """The tree of ranks, steps, operators and arrays, as the keys of a Zarr store."""

    def __init__(self, steps: ShownSteps) -> None:
        self._steps = steps

    def find(self, key: str) -> DocumentObject | ChunkObject | None:
        """Return the object with this key; None if it does not exist. Reads no chunk.

        Raises:
            UsageError: it belongs to a step that is partial.
            DamagedStore: the commit or the index of its step is damaged.
        """
        node, _, name = key.rpartition("/")
        if name == _METADATA:
            document = self._document(node)
            return None if document is None else DocumentObject(metadata.encode(document))
        nodes, path = self._locate(key)
        if nodes is None or "/c" not in path:
            return None
        # An operator may be called `c`, too, but no array has digits or `c` in its path after `/c`.
        node, _, chunk = path.rpartition("/c")
        array = nodes.array(node)
        index = array.chunk_index(f"c{chunk}") if array else None
        return None if array is None or index is None else ChunkObject(array, index)

    def is_in_memory(self, key: str) -> bool:
        """Return whether `find` answers for a key, and its bytes are returned, without the store."""
        node, _, name = key.rpartition("/")
        if name != _METADATA:
            return name.startswith(".")  # zarr asks for these to find out whether the store has Zarr 2
        step, path = _split(node)
        if step is None:
            return not node
        return self._steps.is_open(step) if path else self._steps.is_known(step)

    def children(self, node: str) -> Iterator[str]:
        """Yield the names directly below a node, or below a place within the chunks of an array.

        Lists the ranks, or reads the commits of a rank or the index of a step.
        """
        if self._document(node) is None:
            yield from self._chunk_names(node)
            return
        yield _METADATA
        if not node:
            yield from (f"rank_{rank}" for rank in self._steps.ranks)
        elif (rank := rank_named(node)) is not None:
            yield from (step.key.path.partition("/")[2] for step in self._steps.of_rank(rank))
        else:
            yield from self._children_in_step(node)

    def _children_in_step(self, node: str) -> Iterator[str]:
        nodes, path = self._locate(node)
        if nodes is None:
            return
        array = nodes.array(path)
        if array is None:
            yield from nodes.names.children(path) or ()
        elif array.elements.size:
            yield "c"  # the parent of all chunks, of which there may be a million

    def _chunk_names(self, node: str) -> Iterator[str]:
        """Yield the names below a place within the chunks of an array."""
        nodes, path = self._locate(node)
        name, _, chunks = f"{path}/".rpartition("/c/")
        if nodes is None or (array := nodes.array(name)) is None:
            return
        start = f"c/{chunks}"
        yield from dict.fromkeys(
            key.removeprefix(start).split("/", 1)[0] for key in array.chunk_keys() if key.startswith(start)
        )

    def keys(self, prefix: str) -> Iterator[str]:
        """Yield all keys that begin with `prefix`. Reads the index of each step among them."""
        node = prefix.rpartition("/")[0]
        while node and self._document(node) is None:  # a place within the chunks of an array
            node = node.rpartition("/")[0]
        yield from self._walk(node, prefix)

    def _walk(self, node: str, prefix: str) -> Iterator[str]:
        """Yield the keys at and below a node that begin with `prefix`."""
        nodes, path = self._locate(node) if node else (None, "")
        array = nodes.array(path) if nodes is not None else None
        start = f"{node}/" if node else ""
        if array is not None:
            keys = (start + name for name in chain([_METADATA], array.chunk_keys()))
            yield from (key for key in keys if key.startswith(prefix))
            return
        for name in self.children(node):
            key = start + name
            if name != _METADATA:
                if f"{key}/".startswith(prefix) or prefix.startswith(f"{key}/"):
                    yield from self._walk(key, prefix)
            elif key.startswith(prefix):
                yield key

    def _document(self, node: str) -> metadata.Document | None:
        """Return the metadata of a node; None if it does not exist."""
        if not node:
            return metadata.group({"dump_store": self._steps.store.url})
        rank = rank_named(node)
        if rank is not None:
            return metadata.group({"rank": rank}) if rank in self._steps.ranks else None
        key, path = _split(node)
        if key is None:
            return None
        if not path:  # the commit is enough, so that a list of steps reads no index
            step = self._steps.step(key)
            return None if step is None else metadata.group(attributes.of_step(step))
        nodes = self._steps.nodes(key)
        return None if nodes is None else nodes.document(path)

    def _locate(self, key: str) -> tuple[StepNodes | None, str]:
        """Return the nodes of the step that a key belongs to, and the rest of the key; None for no step."""
        step, path = _split(key)
        return None if step is None else self._steps.nodes(step), path


def _split(path: str) -> tuple[StepKey | None, str]:
    """Return the step that a path leads to, and the rest of the path; None if it does not lead to a step."""
    rank_name, _, rest = path.partition("/")
    step_name, _, below = rest.partition("/")
    rank, step = rank_named(rank_name), step_named(step_name)
    if rank is None or (step is None and step_name != "run"):
        return None, ""
    return StepKey(rank, step), below
