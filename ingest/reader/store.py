"""A store, opened for reading."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.reader.tensor import Tensor
from ingest.reader.where import Where
from workers.errors import DamagedStore, UsageError
from workers.formats import dtypes
from workers.formats.dtypes import ElementType
from workers.formats.header import DeviceLayout
from workers.model import Kind, StepKey, StoreAddress
from workers.statistics import FIELDS
from workers.store import commit, metadata, tables
from workers.store.commit import Commit
from workers.store.objects import ObjectStore, open_objects, resolve
from workers.store.shards import ShardReader
from workers.store.tables import Tables

if TYPE_CHECKING:
    from ingest.reader.export import Exported
    from ingest.reader.verify import Damage

Choice: TypeAlias = int | Iterable[int] | None

#: What `where` may name.
COLUMNS = frozenset([*tables.LABELS, *tables.NUMBERS, *FIELDS, "rank", "step", "name"]) - {"header"}
#: Chunks read ahead where a whole step is read in order: 16 MiB with the default grid.
_READ_AHEAD = 16


def open_store(url: str | PathLike[str], **storage_options: Any) -> DumpStore:
    """Open a store for reading.

    Args:
        url: a directory or any fsspec URL.
        storage_options: passed to fsspec; no credentials, which come from the environment.

    Raises:
        UsageError: there is no store.
        StoreFormatError: a newer version of dump-ingest wrote it.
        StoreError: it cannot be reached.
    """
    objects = open_objects(resolve(url, storage_options))
    if commit.read_root(objects) is None:
        raise UsageError(
            f"{url}: no dump-ingest store", hint="Is the URL right? `ingest` and `watch` make one."
        )
    return DumpStore(objects)


@dataclass(eq=False)
class DumpStore:
    """All committed steps of a run, keyed by rank and step. A step that is not committed is not here."""

    objects: ObjectStore
    _steps: dict[StepKey, Step] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<DumpStore {self.url}>"

    @property
    def url(self) -> str:
        """Where the store is."""
        return self.objects.address.url

    @cached_property
    def keys(self) -> list[StepKey]:
        """What is committed, when this was first asked for: by step, then rank; run files first."""
        return [step.key for step in self._open(self._listed)]

    @cached_property
    def _listed(self) -> list[StepKey]:
        return commit.list_keys(self.objects)

    def _open(self, keys: list[StepKey]) -> list[Step]:
        """Return those of these steps that are committed; each commit is read once."""
        unread = [key for key in keys if key not in self._steps]
        found = commit.read_many(self.objects, unread)
        self._steps.update((one.key, Step(self.objects, one)) for one in found)
        return [self._steps[key] for key in keys if key in self._steps]

    @property
    def ranks(self) -> list[int]:
        """The ranks that have anything committed."""
        return sorted({key.rank for key in self.keys})

    @property
    def steps(self) -> list[int]:
        """The steps that any rank has committed."""
        return sorted({key.step for key in self.keys if key.step is not None})

    def step(self, rank: int, step: int | None) -> Step:
        """Return one committed step of one rank; `step` None is its run files.

        Raises:
            UsageError: it is not in the store.
        """
        key = StepKey(rank, step)
        if key not in self._steps:
            found = commit.read(self.objects, key)
            if found is None:
                raise self._absent(key)
            self._steps[key] = Step(self.objects, found)
        return self._steps[key]

    def select(self, rank: Choice = None, step: Choice = None) -> list[Step]:
        """Return the committed steps of these ranks and steps; all where None. With `step`, no run files.

        Reads no commit of any other step: there may be many, and one of them may be damaged.

        Raises:
            UsageError: a rank or step that was asked for is not in the store.
        """
        ranks, steps = _set(rank), _set(step)
        chosen = self._open(
            [
                key
                for key in self._listed
                if (ranks is None or key.rank in ranks) and (steps is None or key.step in steps)
            ]
        )
        without_rank = (ranks or set()) - {one.key.rank for one in chosen}
        without_step = (steps or set()) - {one.key.step for one in chosen}
        if without_rank or without_step:
            raise self._nothing_of(without_rank, without_step)
        return chosen

    def tensors(
        self,
        rank: Choice = None,
        step: Choice = None,
        *,
        graph: str | None = None,
        op_type: str | None = None,
        name: str | re.Pattern[str] | None = None,
        io: str | None = None,
        where: str | None = None,
    ) -> list[Tensor]:
        """Return the tensors that fulfil every condition, by step, rank and time.

        Args:
            rank: one rank, or several.
            step: one step, or several.
            graph: name of the graph.
            op_type: operator type, exactly.
            name: `Tensor.name` as a glob (`*Log*`), or a compiled regular expression that is searched in it.
            io: `input` or `output`.
            where: a condition on columns and statistics, such as `"nan_count > 0 and max > 10"`.

        Raises:
            UsageError: a rank or step is not in the store, or `where` is no condition.
        """
        condition = Where(where, COLUMNS) if where is not None else None
        equal = {"graph": graph, "op_type": op_type, "io": io}
        found: list[Tensor] = []
        for one in self.select(rank, step):
            for row in one.rows(condition, {k: v for k, v in equal.items() if v is not None}):
                tensor = Tensor(one, row)
                if name is None or _matches(name, tensor.name):
                    found.append(tensor)
        return found

    def verify(self, rank: Choice = None, step: Choice = None) -> Iterator[Damage]:
        """Read these steps back, or all, and yield what is not as it was written; see `reader.verify`."""
        from ingest.reader.verify import verify

        everything = rank is None and step is None
        return verify(self, None if everything else [one.key for one in self.select(rank, step)])

    def _nothing_of(self, ranks: set[int], steps: set[int]) -> UsageError:
        what, missing = "such step of rank", ranks
        if unknown := ranks - set(self.ranks):
            what, missing = "rank", unknown
        elif steps:
            what, missing = "step", steps
        return UsageError(
            f"{self.url}: no {what} {', '.join(map(str, sorted(missing)))}",
            hint=f"It holds ranks {_spans(self.ranks)} and steps {_spans(self.steps)}.",
        )

    def _absent(self, key: StepKey) -> UsageError:
        return UsageError(
            f"{self.url}: {key} is not in the store",
            hint=f"It holds ranks {_spans(self.ranks)} and steps {_spans(self.steps)}.",
        )


@dataclass(eq=False)
class Step:
    """One committed step of one rank."""

    objects: ObjectStore
    commit: Commit
    _readers: dict[str, ShardReader] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Step {self.key} {self.commit.summary.status}>"

    @property
    def key(self) -> StepKey:
        """Rank and step."""
        return self.commit.key

    @property
    def address(self) -> StoreAddress:
        """The store it is in."""
        return self.objects.address

    @property
    def fingerprint(self) -> str:
        """The generation that is committed."""
        return self.commit.fingerprint

    @cached_property
    def tables(self) -> Tables:
        """Index and statistics, one row per source file.

        Raises:
            DamagedStore: they are missing or damaged.
        """
        prefix = self.commit.prefix
        found = self.objects.get_many([f"{prefix}/{key}" for key in tables.chunk_keys()])
        chunks = {key[len(prefix) + 1 :]: data for key, data in found.items()}
        return tables.decode(dict(self.commit.nodes), chunks, str(self.key))

    def export(self, directory: str | Path, *, overwrite: bool = False) -> list[Exported]:
        """Write the source files of this step below `directory`, byte for byte; see `reader.export`."""
        from ingest.reader.export import export

        return list(export(self, Path(directory), overwrite=overwrite))

    def tensors(self) -> list[Tensor]:
        """Return all tensors, in order of time."""
        return [Tensor(self, row) for row in self.rows()]

    def rows(self, where: Where | None = None, equal: Mapping[str, str] | None = None) -> list[int]:
        """Return the rows of the tensors that fulfil a condition and have these labels."""
        kinds = self.tables.label("kind")
        mask = (kinds == Kind.TENSOR.value) | (kinds == Kind.STATISTICS.value)
        for label, value in (equal or {}).items():
            mask &= self.tables.label(label) == value
        if where is not None:
            mask &= where.mask(self._columns(), len(mask))
        return [int(row) for row in np.flatnonzero(mask)]

    def element(self, row: int) -> ElementType:
        """Return the element type of a tensor row."""
        big_endian = str(self.tables.label("array")[row]).endswith("_big_endian")
        return dtypes.from_name(str(self.tables.label("dtype")[row]), big_endian=big_endian)

    def shape(self, row: int) -> tuple[int, ...]:
        """Return the lengths of the axes of a tensor row."""
        ndim = int(self.tables.number("ndim")[row])
        return tuple(int(n) for n in self.tables.shape[row, :ndim])

    def device(self, row: int) -> DeviceLayout | None:
        """Return how a tensor row lay in the memory of the accelerator; None for in the order of its axes."""
        lengths = str(self.tables.label("device_shape")[row])
        if not self.tables.label("layout")[row]:
            return None
        try:
            shape = tuple(int(n) for n in lengths.split(",") if n)
        except ValueError as exc:
            raise DamagedStore(f"{self.key}: row {row} has an impossible device shape") from exc
        groups = int(self.tables.number("groups")[row])
        return DeviceLayout(str(self.tables.label("format")[row]), shape, groups)

    def is_in_device_layout(self, row: int) -> bool:
        """Whether the payload of a row is stored as it lay in the memory of the accelerator."""
        return bool(self.tables.label("layout")[row] == "device")

    def read(self, row: int, start: int = 0, stop: int | None = None) -> bytearray:
        """Return payload bytes `start` to `stop` of one row, which must fall on elements of its array.

        Raises:
            DamagedStore: they are missing or damaged.
        """
        reader, first, itemsize = self._place(row, self._readers, read_ahead=0)
        nbytes = int(self.tables.number("nbytes")[row])
        stop = nbytes if stop is None else stop
        if reader is None or start == stop:
            return bytearray()
        # Odd ends occur only where an array of bytes holds larger elements.
        return reader.read(first + start // itemsize, first + stop // itemsize)

    def payloads(self, rows: Iterable[int], piece_nbytes: int) -> Iterator[tuple[int, Iterator[bytearray]]]:
        """Yield each row with its payload in pieces; in the order of the store, so each chunk is read once.

        Pieces must be consumed before the next row; raises `DamagedStore` from them.
        """
        readers: dict[str, ShardReader] = {}
        array, offset = self.tables.label("array"), self.tables.number("offset")
        for row in sorted(rows, key=lambda row: (array[row], offset[row])):
            reader, first, itemsize = self._place(row, readers, read_ahead=_READ_AHEAD)
            size = int(self.tables.number("size")[row])
            pieces = (
                iter(()) if reader is None else reader.pieces(first, first + size, piece_nbytes // itemsize)
            )
            yield row, pieces

    def _place(
        self, row: int, readers: dict[str, ShardReader], *, read_ahead: int
    ) -> tuple[ShardReader | None, int, int]:
        """Return the reader of a row's array, the first element, and the bytes per element."""
        path = str(self.tables.label("array")[row])
        first = int(self.tables.number("offset")[row])
        if int(self.tables.number("size")[row]) == 0:
            return None, 0, 1
        if first < 0:
            problem = self.tables.label("problem")[row]
            raise DamagedStore(f"{self.key}: row {row} has no bytes: {problem}")
        document = self.commit.nodes.get(path)
        if document is None:
            raise DamagedStore(f"{self.key}: the array {path} is missing")
        if path not in readers:
            try:
                spec = metadata.packed_spec(path, document)
            except (KeyError, TypeError, ValueError) as exc:
                raise DamagedStore(f"{self.key}: the metadata of {path} is damaged") from exc
            readers[path] = ShardReader(
                self.objects, f"{self.commit.prefix}/{path}", spec, read_ahead=read_ahead
            )
        return readers[path], first, readers[path].spec.itemsize

    def _columns(self) -> dict[str, Any]:
        found: dict[str, Any] = {name: self.tables.label(name) for name in tables.LABELS}
        found |= {name: self.tables.number(name) for name in tables.NUMBERS}
        found |= {name: self.tables.statistic(name) for name in FIELDS}
        names: npt.NDArray[Any] = np.array(
            [Tensor(self, row).name for row in range(len(self.tables.labels))], object
        )
        return found | {
            "rank": self.key.rank,
            "step": -1 if self.key.step is None else self.key.step,
            "name": names,
        }


@lru_cache(maxsize=64)
def open_step(address: StoreAddress, key: StepKey, fingerprint: str) -> Step:
    """Return a committed step, opened once per process, for tasks that name it.

    Raises:
        DamagedStore: another generation is committed by now.
    """
    objects = open_objects(address)
    found = commit.read(objects, key)
    if found is None or found.fingerprint != fingerprint:
        raise DamagedStore(f"{key}: another generation was committed meanwhile", hint="Open the store again.")
    return Step(objects, found)


def _matches(pattern: str | re.Pattern[str], name: str) -> bool:
    if isinstance(pattern, str):
        return fnmatch.fnmatchcase(name, pattern)
    return pattern.search(name) is not None


def _set(choice: Choice) -> set[int] | None:
    if choice is None:
        return None
    return {int(n) for n in choice} if isinstance(choice, Iterable) else {int(choice)}


def _spans(numbers: list[int]) -> str:
    """Write sorted numbers shortly: `0-3, 7`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts) or "none"
