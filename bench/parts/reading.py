"""Reading from a store: everything, one small tensor; and at the speed of the store, on the disk and in Ceph.

For the latter, the requests of a question are noted and asked again, several at a time: what the store takes.
zarr-python reads the same elements from the same arrays; it is told their places.
"""

from __future__ import annotations

import glob
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import zarr

from bench.load import build
from bench.measure import Measure, in_turns, seconds
from bench.setting import PROFILE, WORKERS, Setting, ingest, object_storage, workers
from ingest.api import open_store
from ingest.reader.catalog import Catalog
from ingest.reader.step import Step
from tests.servers.ceph import PROGRAMS
from workers.model import MIB
from workers.store.backends.wrappers import WrapperObjects
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects, resolve

_SMALL_NBYTES = 4096
#: Steps of the dump of which a tensor is read over all steps; rows that are read of as many tensors.
_STEPS, _ROWS = 4, 1000
#: How many requests are on their way at once.
_AT_ONCE = 4

#: What a question reads: the place of an array below the store, and elements from one to another.
_Ranges: TypeAlias = list[tuple[str, int, int]]


def measure(setting: Setting) -> Iterator[Measure]:
    """Yield times on the disk, and in Ceph where it is installed."""
    yield from _of_commands(setting)
    with setting.target() as dump:
        build(PROFILE, dump, steps=2 if setting.quick else _STEPS)
        with setting.target() as store:
            with workers() as client:
                ingest(client, dump, store)
            yield from _at_speed(setting, str(store), "disk", {})
        if all(map(shutil.which, PROGRAMS)):
            with object_storage() as (ceph, _):
                bucket = ceph.make_bucket("bench")
                with workers() as client:  # they have the credentials of this server
                    ingest(client, dump, bucket.url)
                yield from _at_speed(setting, bucket.url, "Ceph", bucket.storage_options)


def _at_speed(
    setting: Setting, url: str, where: str, storage_options: Mapping[str, Any]
) -> Iterator[Measure]:
    """Yield each question against its requests, and against zarr-python."""
    objects = open_objects(resolve(url))
    for question, (ask, ranges) in _questions(url, _ROWS // 10 if setting.quick else _ROWS).items():
        noted = _Noted(objects)
        ask(Catalog(noted))
        times = in_turns(
            setting.rounds,
            {
                "ours": lambda ask=ask: seconds(lambda: ask(Catalog(objects))),  # type: ignore[misc]
                "requests": lambda noted=noted: seconds(noted.ask_again),  # type: ignore[misc]
                "zarr": lambda ranges=ranges: seconds(lambda: _by_zarr(url, storage_options, ranges)),  # type: ignore[misc]
            },
        )
        requests = f"its {len(noted.requests)} requests"
        # From the page cache, they take no time to speak of.
        least = 0.9 if storage_options else None
        yield Measure(f"{question}, {where}", requests, "s", times["ours"], times["requests"], floor=least)
        yield Measure(f"{question}, {where}", "zarr-python", "s", times["ours"], times["zarr"], floor=1.0)


class _Noted(WrapperObjects):
    """A store that notes what is read from it."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.requests: list[tuple[str, int, int | None]] = []

    def get(self, key: str) -> bytes | None:
        """Note the object, and read it."""
        self.requests.append((key, 0, None))
        return self._inner.get(key)

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Note the objects, and read them."""
        self.requests += [(key, 0, None) for key in keys]
        return self._inner.get_many(keys)

    def get_range(self, key: str, start: int, stop: int | None = None) -> bytes | None:
        """Note the range, and read it."""
        self.requests.append((key, start, stop))
        return self._inner.get_range(key, start, stop)

    def ask_again(self) -> None:
        """Read again what was noted."""
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            for _ in threads.map(lambda request: self._inner.get_range(*request), self.requests):
                pass


def _questions(url: str, count: int) -> dict[str, tuple[Callable[[Catalog], object], _Ranges]]:
    """Return what is read of a store, `count` rows among it, each with the places of the elements."""
    steps = [step for step in open_store(url).select() if step.step is not None]
    first = steps[0]
    sizes = first.tables.number("nbytes")
    largest, rows = int(np.argmax(sizes)), first.rows()
    name = first.tensor_of(largest).name
    of_steps = [
        (step, next(row for row in step.rows() if step.tensor_of(row).name == name)) for step in steps
    ]
    random = np.random.default_rng(0)
    shapes = [first.shape(row) for row in rows]
    chosen = [
        (row, shape) for row, shape in zip(rows, shapes, strict=True) if len(shape) > 1 and 0 not in shape
    ]
    picked = []
    for place in random.integers(0, len(chosen), count).tolist():
        row, shape = chosen[place]
        length = int(np.prod(shape[1:]))
        begin = int(random.integers(0, shape[0])) * length
        picked.append((row, begin, begin + length))

    def step_of(catalog: Catalog, step: Step) -> Step:
        return catalog.step(step.rank, step.step)

    def read_step(catalog: Catalog) -> None:
        for _, pieces in step_of(catalog, first).payloads(rows, 16 * MIB):
            for _ in pieces:
                pass

    def read_rows(catalog: Catalog) -> None:
        step = step_of(catalog, first)
        for row, begin, end in picked:
            step.tensor_of(row).elements(begin, end)

    return {
        "the largest tensor": (
            lambda catalog: step_of(catalog, first).read(largest),
            [_range(first, largest)],
        ),
        "a step": (read_step, _whole_arrays(first, rows)),
        f"a tensor of {len(steps)} steps": (
            lambda catalog: [step_of(catalog, step).read(row) for step, row in of_steps],
            [_range(step, row) for step, row in of_steps],
        ),
        f"{count} rows of tensors": (
            read_rows,
            [_range(first, row, begin, end) for row, begin, end in picked],
        ),
    }


def _whole_arrays(step: Step, rows: list[int]) -> _Ranges:
    """Return the arrays that hold these rows, each as a whole."""
    ends: dict[str, int] = {}
    for array, _, end in (_range(step, row) for row in rows):
        ends[array] = max(ends.get(array, 0), end)
    return [(array, 0, end) for array, end in ends.items() if end]


def _range(step: Step, row: int, begin: int = 0, end: int | None = None) -> tuple[str, int, int]:
    first = int(step.tables.number("offset")[row])
    array = f"{step.commit.prefix}/{step.tables.label('array')[row]}"
    return array, first + begin, first + (int(step.tables.number("size")[row]) if end is None else end)


def _by_zarr(url: str, storage_options: Mapping[str, Any], ranges: _Ranges) -> None:
    arrays: dict[str, Any] = {}
    for path, begin, end in ranges:
        if path not in arrays:
            options = dict(storage_options) or None
            arrays[path] = zarr.open_array(f"{url}/{path}", mode="r", storage_options=options)
        arrays[path][begin:end]


def _of_commands(setting: Setting) -> Iterator[Measure]:
    """Yield the times of everything, and of one small tensor, on the disk."""
    dump = setting.load.directory
    with workers() as client, setting.target() as store:
        ingest(client, dump, store)
        step, row = _small(store)
        name = Path(step.tables.label("source")[row]).name

        def ingest_again() -> float:
            with setting.target() as target:
                return seconds(lambda: ingest(client, dump, target))

        times = in_turns(
            setting.rounds,
            {
                "ingest": ingest_again,
                "all": lambda: seconds(lambda: read_back(store)),
                "one": lambda: seconds(lambda: read_one(store)),
                "file": lambda: seconds(lambda: np.load(next(dump.rglob(glob.escape(name))))),
            },
        )
    against = f"ingest, {WORKERS} workers, disk"
    name = "read every tensor back, one process"
    yield Measure(name, against, "s", times["all"], times["ingest"], floor=1.0)
    yield Measure(
        "open the store, read a tensor of 4 KiB",
        "find and np.load its file",
        "s",
        times["one"],
        times["file"],
    )


def read_back(store: Path) -> int:
    """Read every payload of every step; return the number of bytes."""
    nbytes = 0
    for step in open_store(str(store)).select():
        for _, pieces in step.payloads(step.rows(), 16 * MIB):
            nbytes += sum(len(piece) for piece in pieces)
    return nbytes


def read_one(store: Path | str) -> None:
    """Open the store, and read the tensor whose size is closest to 4 KiB."""
    step, row = _small(store)
    step.read(row)


def _small(store: Path | str) -> tuple[Step, int]:
    opened = open_store(str(store))
    first = opened.keys[0]
    step = opened.step(first.rank, first.step)
    return step, int(np.argmin(np.abs(step.tables.number("nbytes") - _SMALL_NBYTES)))
