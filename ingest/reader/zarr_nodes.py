"""The nodes of a Zarr view: rank, step, operator, then slot; their attributes, and the keys of their objects.

    rank_1/step_2/Log.Default_net-LogLoss_Log-op0/output.0
    rank_1/step_2/{graph}/...                                  if a step has several graphs
    rank_1/run/...                                             what does not belong to a step

Names in a dump may contain any characters. A part of a path is a valid name of a node (zarr-specs, "Node
names"), does not lead out of its group, and cannot control a terminal: all other bytes are written as `%XX`.

Attributes are plain JSON: text, whole numbers, finite numbers, and lists of them. Infinity is the text
`Infinity`. What is not known is left out. Names that xarray would use to decode an array (`dtype`, `units`,
...) do not occur.

The elements of an array are in types that Zarr has.

Format: zarr-specs, "Zarr core specification" version 3.1; codecs `transpose` (for tensors in Fortran order)
and `bytes`. Chunks are not compressed: each is read from the stored tensor when it is requested.
"""

from __future__ import annotations

import math
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import product
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.reader.array_like import ArrayLike
from ingest.reader.catalog import Catalog, Damage
from ingest.reader.snapshot import NOT_COMMITTED, LeftOut, partial_reason
from ingest.reader.step import Step, summary_row
from ingest.reader.tensor import Tensor
from workers.arrays import dtypes
from workers.arrays.digest import digest
from workers.arrays.dtypes import ElementType
from workers.errors import DamagedStore, UsageError
from workers.model import MIB, StepKey, ceil_div
from workers.store import commit, metadata
from workers.store.commit import Commit
from workers.store.consolidated.blocks import TensorKey, tensors_of
from workers.store.model import RowKind, rank_named, slot_name, step_named
from workers.store.tables import Tables

#: The approximate size of a chunk, in bytes.
CHUNK_NBYTES = MIB
_CHUNK_KEY = re.compile(r"c(?:/(?:0|[1-9][0-9]{0,18}))*")


class ViewElements(ArrayLike):
    """A tensor as an array of a type that Zarr has: `dtype`, `shape`.

    Types that Zarr does not have are shown as follows:

    - packed integers (int4, uint4, int2, uint2, uint1) as int8 or uint8, and float4_e2m1fn as float16, with
      the same values;
    - complex32 as float16 with another axis of length 2 at the end: real and imaginary part;
    - strings, structures and other types of numpy as uint8 with another axis at the end: their bytes;
    - opaque types as uint8, with a byte for each element.

    All other types are shown bit for bit, in the byte order of the dump.

    Raises:
        DamagedStore: the index contradicts itself.
    """

    shape: tuple[int, ...] = ()

    def __init__(self, step: Step, row: int) -> None:
        self.step, self.row = step, row
        try:
            self.element = step.element(row)
        except ValueError as exc:
            raise DamagedStore(f"{step.key}: row {row}: {exc}") from exc
        shape = step.shape(row)
        if any(length < 0 for length in shape):
            raise DamagedStore(f"{step.key}: row {row} has an impossible shape {shape}")
        self.dtype, parts = _shown(self.element)
        #: Whether parts of it can be read; false if it is stored in the layout of an accelerator.
        self.is_plain = not step.is_in_device_layout(row)
        axes = tuple(range(len(shape)))
        is_fortran = self.is_plain and step.tables.number("fortran_order")[row]
        self.shape = (*shape, *([parts] if parts else []))
        #: The axes of `shape` in the order of the store, the slowest first.
        self.axes = (*(axes[::-1] if is_fortran else axes), *([len(shape)] if parts else []))
        if self.is_plain and step.tables.number("nbytes")[row] < self.element.nbytes(math.prod(shape)):
            raise DamagedStore(f"{step.key}: row {row} has fewer bytes than its shape takes")

    def __reduce__(self) -> tuple[Any, ...]:
        # Of the index of the step, only its own row is sent along.
        return ViewElements, (self.step.only(self.row), 0)

    @property
    def stored_axes(self) -> tuple[int, ...] | None:
        """The axes in the order of the store; None if it is not plain."""
        return self.axes if self.is_plain else None

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The lengths of the axes in the order of the store."""
        return tuple(self.shape[axis] for axis in self.axes)

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The names of the axes, as in `d0_16`: axes of the same name have the same length in all tensors."""
        return tuple(f"d{axis}_{length}" for axis, length in enumerate(self.shape))

    def stored(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return elements `start` to `stop` in the order of the store, 1-D of `dtype`.

        Reads the inner chunks of the store that hold them, or the whole tensor if it is not plain. Checks the
        digest only if all elements are read.

        Raises:
            DamagedStore: chunks are missing or damaged, or the digest differs.
        """
        step, row, element = self.step, self.row, self.element
        if not self.is_plain:
            return Tensor(step, row).read().reshape(-1).view(self.dtype)[start:stop]
        bits = element.bits if element.is_packed else 8 * self.dtype.itemsize
        first, last = start * bits // 8, ceil_div(stop * bits, 8)
        payload = step.read(row, first, last)
        is_whole = first == 0 and last == step.tables.number("nbytes")[row]
        if is_whole and digest(payload) != step.tables.digest[row].tobytes():
            raise DamagedStore(f"{step.key}: row {row}: the digest does not match")
        if not element.is_packed:
            return np.frombuffer(payload, self.dtype)
        skipped = start - first * 8 // bits
        return dtypes.unpack(payload, element, skipped + stop - start)[skipped:].astype(self.dtype)

    def read(self, *, verify: bool = True) -> npt.NDArray[Any]:  # noqa: ARG002  (the whole is always verified)
        """Return all elements, in the order of the axes."""
        whole = self.stored(0, math.prod(self.shape)).reshape(self.stored_shape)
        return whole.transpose(np.argsort(self.axes))


def chunk_shape(elements: ViewElements, nbytes: int) -> tuple[int, ...]:
    """Return the lengths of a chunk of about `nbytes`, axes in the order of the store.

    Tensors are cut along their slowest axis, so that every chunk is contiguous in the store. A tensor that is
    not plain is one chunk.
    """
    shape = elements.stored_shape
    chunk = [max(length, 1) for length in shape]
    for axis, length in enumerate(shape if elements.is_plain else ()):
        row = math.prod(chunk[axis + 1 :]) * elements.dtype.itemsize
        if row <= nbytes:
            count = ceil_div(length, max(nbytes // row, 1))
            chunk[axis] = max(ceil_div(length, max(count, 1)), 1)
            break
        chunk[axis] = 1
    return tuple(chunk)


def _shown(element: ElementType) -> tuple[np.dtype[Any], int]:
    """Return the type by which elements are shown, and the length of the additional axis; 0 for none."""
    if element.is_packed:
        types = {"float": np.float16, "uint": np.uint8, "int": np.int8}
        return np.dtype(types[re.sub(r"\d.*", "", element.name)]), 0
    dtype = element.to_numpy()
    if element.name == "complex32":
        return np.dtype("<f2"), 2
    # Opaque types, and a byte order that other readers do not know, are native but for their name.
    is_native = dtype.kind in "biufc" and dtypes.from_name(dtype.name).is_native
    return (dtype, 0) if element.is_native or is_native else (np.dtype(np.uint8), dtype.itemsize)


@dataclass(frozen=True, slots=True, eq=False)
class ViewArray:
    """The array of one tensor."""

    elements: ViewElements
    chunk: tuple[int, ...]
    """The lengths of a chunk, with the axes in the order of the store."""

    def document(self, attributes: Mapping[str, Any]) -> metadata.Document:
        """Return the Zarr metadata of the array, with these attributes."""
        elements, axes = self.elements, self.elements.axes
        dtype = elements.dtype
        codecs: list[metadata.Document] = [{"name": "bytes"}]
        if dtype.itemsize > 1:
            codecs[0]["configuration"] = {"endian": "big" if dtype.byteorder == ">" else "little"}
        if axes != tuple(range(len(axes))):
            codecs.insert(0, {"name": "transpose", "configuration": {"order": list(axes)}})
        data_type = dtype.newbyteorder("=").name
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(elements.shape),
            "data_type": data_type,
            "chunk_grid": {
                "name": "regular",
                "configuration": {"chunk_shape": [self.chunk[axes.index(axis)] for axis in sorted(axes)]},
            },
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": metadata.fill_value(data_type),
            "codecs": codecs,
            "dimension_names": list(elements.dimensions),
            "attributes": dict(attributes),
            "storage_transformers": [],
        }

    @property
    def chunk_nbytes(self) -> int:
        """The size of a chunk in bytes. Chunks at the ends of the axes are padded with zeros."""
        return math.prod(self.chunk) * self.elements.dtype.itemsize

    @property
    def _counts(self) -> list[int]:
        return list(map(ceil_div, self.elements.stored_shape, self.chunk))

    def chunk_keys(self) -> Iterator[str]:
        """Yield the keys of all chunks, relative to the array."""
        axes = self.elements.axes
        for index in product(*map(range, self._counts)):
            yield "/".join(["c", *(str(index[axes.index(axis)]) for axis in sorted(axes))])

    def chunk_index(self, key: str) -> tuple[int, ...] | None:
        """Return the index of the chunk with this key, axes in the order of the store; None for no chunk."""
        numbers = list(map(int, key.split("/")[1:])) if _CHUNK_KEY.fullmatch(key) else None
        if numbers is None or len(numbers) != len(self.chunk):
            return None
        index = tuple(numbers[axis] for axis in self.elements.axes)
        return index if all(map(int.__lt__, index, self._counts)) else None

    def extent(self, index: tuple[int, ...]) -> tuple[int, int]:
        """Return the first element of a chunk in the order of the store, and the number of its elements.

        The elements are contiguous: at most one axis is cut into chunks longer than 1 and shorter than it.
        """
        first, count = 0, 1
        for i, length, n in zip(index, self.elements.stored_shape, self.chunk, strict=True):
            first = first * length + i * n
            count *= min(n, length - i * n)
        return first, count

    def read(self, index: tuple[int, ...], start: int, stop: int) -> bytes:
        """Return bytes `start` to `stop` of one chunk. Reads only the parts of the store that hold them.

        Raises:
            DamagedStore: these parts are missing or damaged.
        """
        itemsize = self.elements.dtype.itemsize
        first, count = self.extent(index)
        begin, end = start // itemsize, min(ceil_div(stop, itemsize), count)
        elements = self.elements.stored(first + begin, first + end).tobytes() if begin < end else b""
        return elements[start - begin * itemsize :][: stop - start].ljust(stop - start, b"\0")


#: The graph of operators without one, in a step in which other operators have one.
NO_GRAPH = "no_graph"
_METADATA = "zarr.json"
#: Steps whose index is kept.
_INDEXES_KEPT = 16
#: Fields of `Tensor.to_dict` that the array has itself, or that other attributes replace.
_LEFT_OUT = frozenset(["shape", "dtype", "is_dumped"])


def escape(name: str) -> str:
    """Return a name as one part of a path. Different names give different parts.

    `%XX` stands for a byte, in UTF-8, of a separator, of a character that cannot be printed, of `%` itself,
    or of the first character of a name that Zarr reserves.
    """
    if name.isascii() and name.isidentifier() and not name.startswith("__"):
        return name
    escaped = "".join(c if c.isprintable() and c not in "/\\%" else _quoted(c) for c in name)
    if not escaped:
        return "%"
    return _quoted(escaped[0]) + escaped[1:] if _is_reserved(escaped) else escaped


def _is_reserved(name: str) -> bool:
    """Return whether Zarr, or a file system, gives this part of a path a meaning of its own."""
    return name.startswith("__") or not name.strip(".") or name == _METADATA


def _quoted(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def attributes_of_tensor(step: Step, row: int) -> dict[str, Any]:
    """Return the attributes of one tensor: `Tensor.to_dict`, with `logical_dtype` and `logical_shape`."""
    fields = Tensor(step, row).to_dict()
    attributes = {"logical_dtype": fields["dtype"], "logical_shape": fields["shape"]}
    attributes |= {name: value for name, value in fields.items() if name not in _LEFT_OUT}
    if step.device(row) is not None:
        attributes["stored_layout"] = "device" if step.is_in_device_layout(row) else "host"
    return _plain(attributes)


def attributes_of_step(step: Step) -> dict[str, Any]:
    """Return the attributes of one step of one rank: its totals, and when it was committed."""
    return _plain({**summary_row(step.commit.summary), "committed_at": step.commit.record.committed_at})


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    known = {}
    for name, value in fields.items():
        if isinstance(value, float) and math.isinf(value):
            known[name] = "Infinity" if value > 0 else "-Infinity"
        elif value is None or (isinstance(value, float) and math.isnan(value)):
            continue
        elif name not in {"timestamp", "slot"} or value != -1:
            known[name] = value
    return known


def _tensors(tables: Tables) -> list[tuple[int, TensorKey, bool]]:
    """Return the row of each tensor, its key, and whether its elements were dumped."""
    rows, keys = tensors_of(tables)
    is_dumped = tables.label("kind")[rows] == RowKind.TENSOR.value
    return list(zip(rows.tolist(), keys, is_dumped.tolist(), strict=True))


def _graph_levels(keys: Iterable[TensorKey]) -> dict[tuple[str, str], str]:
    """Return the name of each graph, by net and graph; an empty dictionary if there is only one graph."""
    distinct = list(dict.fromkeys((key.net, key.graph) for key in keys))
    graphs = [graph for _, graph in distinct]
    levels: dict[tuple[str, str], str] = {}
    for net, graph in distinct if len(distinct) > 1 else ():
        # Two networks may each have a graph 0.
        level = f"{net}.{graph or NO_GRAPH}" if graphs.count(graph) > 1 and net else graph or NO_GRAPH
        levels[net, graph] = _unused(escape(level), levels.values())
    return levels


def _unused(name: str, taken: Collection[str]) -> str:
    candidate, copy = name, 0
    while candidate in taken:
        copy += 1
        candidate = f"{name}~{copy}"
    return candidate


def variable_names(tables: Tables) -> dict[str, int]:
    """Return a name for each tensor that was dumped, unique in the step, and its row.

    The name is `Tensor.name`, with the graph in front of it if another graph has a tensor of that name.
    """
    dumped = [(row, key, escape(key.name)) for row, key, is_dumped in _tensors(tables) if is_dumped]
    levels = _graph_levels(key for _, key, _ in dumped)
    graphs: dict[str, set[tuple[str, str]]] = {}
    for _, key, shown in dumped:
        graphs.setdefault(shown, set()).add((key.net, key.graph))
    rows: dict[str, int] = {}
    for row, key, shown in dumped:
        full = f"{levels[key.net, key.graph]}:{shown}" if len(graphs[shown]) > 1 else shown
        rows[_unused(full, rows.keys())] = row
    return rows


@dataclass(slots=True)
class OperatorGroup:
    """A group of the view: the tensors of one operator, by name."""

    row: int
    """A row of the index that belongs to the operator."""
    arrays: dict[str, int] = field(default_factory=dict)
    statistics_only: dict[str, int] = field(default_factory=dict)


class StepNodes:
    """The nodes below one step, in order of execution: graphs, operators and arrays, by path in the step."""

    def __init__(self, step: Step) -> None:
        """Read the index of a step, and name its tensors. The same index always gives the same names."""
        self.step = step
        self.operators: dict[str, OperatorGroup] = {}
        self.graphs: dict[str, list[str]] = {}
        """The names of the operators of each graph, by its name; empty if the step has only one graph."""
        tensors = _tensors(step.tables)
        levels = _graph_levels(key for _, key, _ in tensors)
        for row, key, is_dumped in tensors:
            path = operator_name = escape(f"{key.op_type}.{key.op_name}")
            if level := levels.get((key.net, key.graph)):
                path = f"{level}/{operator_name}"
            if path not in self.operators:
                self.operators[path] = OperatorGroup(row)
                if level:
                    self.graphs.setdefault(level, []).append(operator_name)
            operator = self.operators[path]
            members = operator.arrays if is_dumped else operator.statistics_only
            array = escape(slot_name(key.io, key.slot, key.occurrence))
            members[_unused(array, operator.arrays.keys() | operator.statistics_only.keys())] = row

    def array(self, path: str) -> ViewArray | None:
        """Return the array at a path; None if no array is there."""
        group, _, name = path.rpartition("/")
        row = self.operators[group].arrays.get(name) if group in self.operators else None
        if row is None:
            return None
        elements = ViewElements(self.step, row)
        return ViewArray(elements, chunk_shape(elements, CHUNK_NBYTES))

    def document(self, path: str) -> metadata.Document | None:
        """Return the metadata of a node; None if it does not exist."""
        if (array := self.array(path)) is not None:
            return array.document(attributes_of_tensor(self.step, array.elements.row))
        if path in self.graphs:
            return metadata.group({"graph": path})
        if (operator := self.operators.get(path)) is None:
            return None
        tensor = Tensor(self.step, operator.row)
        names = ("rank", "step", "net", "graph", "op_type", "op_name", "full_name")
        attributes = _plain({name: getattr(tensor, name) for name in names})
        if operator.statistics_only:
            without = operator.statistics_only.items()
            attributes["statistics_only"] = {
                name: attributes_of_tensor(self.step, row) for name, row in without
            }
        return metadata.group(attributes)

    def children(self, path: str) -> Iterable[str]:
        """Return the names directly below a group."""
        if not path:
            return self.graphs or self.operators
        return self.graphs.get(path) or self.operators[path].arrays


#: The size of an object of the view, and what returns its bytes from a first one up to an end.
ViewObject: TypeAlias = tuple[int, Callable[[int, int], bytes]]


class NodeTree:
    """The tree of ranks, steps, operators and arrays, as the keys of a Zarr store. Thread-safe.

    Shown are complete steps or, if wanted, partial ones, too.

    Each is shown in the generation in which it was first looked at.

    Memory: the index of 16 steps (some 10 MiB for 5000 tensors), and the commit of every step that was
    looked at.
    """

    def __init__(self, store: Catalog, *, include_partial: bool) -> None:
        self.store = store.reopened()
        self.include_partial = include_partial
        self._steps: dict[StepKey, Step] = {}
        self._nodes: OrderedDict[StepKey, StepNodes] = OrderedDict()
        self._lock = threading.RLock()

    @property
    def commits(self) -> list[Commit]:
        """The commits of the steps that were looked at."""
        with self._lock:
            return [step.commit for step in self._steps.values()]

    def pin(self, committed: Commit) -> Step:
        """Show this generation of a step, unless another was looked at; return what is shown."""
        with self._lock:
            return self._steps.setdefault(committed.key, Step(self.store.objects, committed))

    @cached_property
    def ranks(self) -> list[int]:
        """The ranks of which the store has any object, in order."""
        return commit.list_ranks(self.store.objects)

    def of_rank(self, rank: int) -> list[Step]:
        """Return the steps of a rank that are shown, in order. Reads their commits."""
        committed = self.store.committed(commit.list_keys(self.store.objects, [rank]), [])
        return [self.pin(step.commit) for step in committed if self._is_shown(step.commit)]

    def left_out(self) -> list[LeftOut]:
        """Return the steps in the store that are not shown, by rank. Reads the commit of every step."""
        damages: list[Damage] = []
        keys = commit.list_keys(self.store.objects, self.ranks)
        steps = self.store.committed(keys, damages)
        reasons = {key: LeftOut(key, NOT_COMMITTED) for key in keys}
        reasons |= {damage.key: LeftOut.damaged(damage.key, damage.reason) for damage in damages}
        for step in steps:
            del reasons[step.key]
            if self._is_shown(step.commit):
                self.pin(step.commit)
            elif not _is_empty_run(step.commit):
                reasons[step.key] = LeftOut(step.key, partial_reason(step.commit.summary))
        return sorted(reasons.values(), key=lambda left: (left.key.rank, left.key.order))

    def step(self, key: StepKey) -> Step | None:
        """Return the generation of a step that is shown; None if the step is not committed.

        Raises:
            UsageError: the step is partial.
            DamagedStore: its commit is damaged.
        """
        with self._lock:
            if key in self._steps:
                return self._steps[key]
        committed = commit.read(self.store.objects, key)
        if committed is None or _is_empty_run(committed):
            return None
        if not self._is_shown(committed):
            raise UsageError(
                f"{self.store.url}: {key} is {partial_reason(committed.summary)}",
                hint="`as_zarr(include_partial=True)` shows partial steps.",
            )
        return self.pin(committed)

    def nodes(self, key: StepKey) -> StepNodes | None:
        """Return the nodes of a step, whose index is read if needed; None if the step is not committed.

        Raises:
            UsageError: the step is partial.
            DamagedStore: its commit or index is damaged.
        """
        with self._lock:  # zarr requests many chunks of one step at once: they wait for the same index
            if key not in self._nodes:
                step = self.step(key)
                if step is None:
                    return None
                self._nodes[key] = StepNodes(step)
                if len(self._nodes) > _INDEXES_KEPT:
                    oldest, _ = self._nodes.popitem(last=False)
                    # The same generation, without its index; who reads an array of it has the other one.
                    self._steps[oldest] = Step(self.store.objects, self._steps[oldest].commit)
            self._nodes.move_to_end(key)
            return self._nodes[key]

    def _is_shown(self, committed: Commit) -> bool:
        is_allowed = self.include_partial or committed.summary.status == "complete"
        return is_allowed and not _is_empty_run(committed)

    def find(self, key: str) -> ViewObject | None:
        """Return the object with this key; None if it does not exist. Reads no chunk.

        Raises:
            UsageError: it belongs to a step that is partial.
            DamagedStore: the commit or the index of its step is damaged.
        """
        node, _, name = key.rpartition("/")
        if name == _METADATA:
            document = self._document(node)
            data = b"" if document is None else metadata.encode(document)
            return None if document is None else (len(data), lambda start, stop: data[start:stop])
        # An operator may be called `c`, too, but no array has digits or `c` in its path after `/c`.
        node, _, chunk = key.rpartition("/c")
        array = self._array(node) if node else None
        index = array.chunk_index(f"c{chunk}") if array else None
        if array is None or index is None:
            return None
        return array.chunk_nbytes, partial(array.read, index)

    def is_in_memory(self, key: str) -> bool:
        """Return whether `find` answers for a key, and its bytes are returned, without the store."""
        node, _, name = key.rpartition("/")
        if name != _METADATA:
            return name.startswith(".")  # zarr asks for these to find out whether the store has Zarr 2
        step, path = _split(node)
        if step is None:
            return not node
        return step in (self._nodes if path else self._steps)

    def children(self, node: str) -> Iterator[str]:
        """Yield the names directly below a node, or below a place within the chunks of an array.

        Lists the ranks, or reads the commits of a rank or the index of a step.
        """
        if self._document(node) is None or self._array(node) is not None:
            start = f"{node}/"
            below = (key.removeprefix(start).partition("/")[0] for key in self.keys(start))
            yield from dict.fromkeys(below)
            return
        yield _METADATA
        step, path = _split(node)
        if not node:
            yield from (f"rank_{rank}" for rank in self.ranks)
        elif step is None:
            rank = rank_named(node)
            of_rank = () if rank is None else self.of_rank(rank)
            yield from (opened.key.path.partition("/")[2] for opened in of_rank)
        elif (nodes := self.nodes(step)) is not None:
            yield from nodes.children(path)

    def keys(self, prefix: str) -> Iterator[str]:
        """Yield all keys that begin with `prefix`. Reads the index of each step among them."""
        node = prefix.rpartition("/")[0]
        while node and self._document(node) is None:  # a place within the chunks of an array
            node = node.rpartition("/")[0]
        yield from (key for key in self._walk(node, prefix) if key.startswith(prefix))

    def _walk(self, node: str, prefix: str) -> Iterator[str]:
        start = f"{node}/" if node else ""
        if (array := self._array(node)) is not None:
            yield start + _METADATA
            yield from (start + key for key in array.chunk_keys())
            return
        for name in self.children(node):
            key = start + name
            if name == _METADATA:
                yield key
            elif f"{key}/".startswith(prefix) or prefix.startswith(f"{key}/"):
                yield from self._walk(key, prefix)

    def _document(self, node: str) -> metadata.Document | None:
        if not node:
            return metadata.group({"dump_store": self.store.url})
        rank = rank_named(node)
        if rank is not None:
            return metadata.group({"rank": rank}) if rank in self.ranks else None
        key, path = _split(node)
        if key is not None and not path:  # the commit is enough, so that a list of steps reads no index
            step = self.step(key)
            return None if step is None else metadata.group(attributes_of_step(step))
        nodes = None if key is None else self.nodes(key)
        return None if nodes is None else nodes.document(path)

    def _array(self, node: str) -> ViewArray | None:
        key, path = _split(node)
        nodes = self.nodes(key) if key is not None and path else None
        return None if nodes is None else nodes.array(path)


def _is_empty_run(committed: Commit) -> bool:
    """Return whether this is the commit of run files without tensors: graphs and execution orders alone."""
    summary = committed.summary
    return committed.key.step is None and not summary.tensors and not summary.statistics_only


def _split(path: str) -> tuple[StepKey | None, str]:
    """Return the step that a path leads to, and the rest of the path; None if it does not lead to a step."""
    rank_name, _, rest = path.partition("/")
    step_name, _, below = rest.partition("/")
    rank, step = rank_named(rank_name), step_named(step_name)
    if rank is None or (step is None and step_name != "run"):
        return None, ""
    return StepKey(rank, step), below
