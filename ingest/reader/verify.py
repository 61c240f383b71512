"""Verify: read everything back, recompute every digest and every statistic, name what is damaged."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ingest.reader.catalog import Catalog, Damage
from ingest.reader.step import Step
from ingest.reader.step_findings import findings_of
from workers.arrays import device_format
from workers.arrays.digest import new_digest
from workers.arrays.dtypes import unpack
from workers.arrays.statistics import FIELDS, RunningStatistics
from workers.errors import DamagedStore, StepRemoved, TensorsRemoved
from workers.model import MIB, StepKey
from workers.store import commit, metadata
from workers.store.model import RowKind

_PIECE_NBYTES = 16 * MIB


@dataclass(slots=True)
class Verified:
    """What was checked, so far."""

    steps: int = 0
    files: int = 0
    nbytes: int = 0


def verify(
    store: Catalog, keys: list[StepKey] | None = None, progress: Callable[[Verified], None] = lambda _: None
) -> Iterator[Damage]:
    """Check these steps, or all that there are, and yield what is damaged.

    Reads every stored byte once. Checks checksums, digests, statistics, and that no object is missing.
    """
    done = Verified()
    objects = store.objects
    for key in commit.list_keys(objects) if keys is None else keys:
        try:
            found = commit.read(objects, key)
            if found is not None:
                step = Step(objects, found)
                for damage in _verify_step(step, done, progress):
                    if step.removed_meanwhile():
                        break  # nobody has it any more
                    yield damage
                done.steps += 1
        except (StepRemoved, TensorsRemoved):
            pass  # by somebody else, while it was looked at
        except DamagedStore as exc:
            yield Damage(key, "", exc.message)
        progress(done)


def _verify_step(step: Step, done: Verified, progress: Callable[[Verified], None]) -> Iterator[Damage]:
    table = step.tables
    sources = table.label("source")
    sizes = step.objects.sizes(step.commit.prefix)
    for path, nbytes in step.commit.record.stored.items():
        if path not in sizes:
            yield Damage(step.key, "", f"{step.commit.prefix}/{path} is missing")
        elif sizes[path] != nbytes:
            yield Damage(
                step.key, "", f"{step.commit.prefix}/{path} has {sizes[path]} bytes instead of {nbytes}"
            )
    yield from _check_metadata(step)
    rows = [int(row) for row in np.flatnonzero(table.number("offset") >= 0) if step.has_payload(int(row))]
    yield from _verify_totals(step)
    yield from _verify_findings(step)
    for row, pieces in step.payloads(rows, _PIECE_NBYTES):
        reason = _check_row(step, row, pieces)
        if reason:
            yield Damage(step.key, str(sources[row]), reason)
        done.files += 1
        done.nbytes += int(table.number("nbytes")[row])
        progress(done)


def _check_metadata(step: Step) -> Iterator[Damage]:
    """Compare the document of each node, which other readers open, with what the commit says of it."""
    names = {path: f"{step.commit.prefix}/{path}/zarr.json".replace("//", "/") for path in step.commit.nodes}
    found = step.objects.get_many(list(names.values()))
    for path, node in step.commit.nodes.items():
        data = found.get(names[path])
        if data != metadata.encode(node):
            what = "is missing" if data is None else "is not what the commit says"
            yield Damage(step.key, "", f"{names[path]} {what}")


def _verify_totals(step: Step) -> Iterator[Damage]:
    """Compare the totals of the commit record, which listings show, with the rows they were made of."""
    table, summary = step.tables, step.commit.summary
    kinds = table.label("kind")
    is_tensor = kinds == RowKind.TENSOR.value
    has_numbers = is_tensor | (kinds == RowKind.STATISTICS.value)
    counted = {"tensors": int(np.count_nonzero(is_tensor))}
    for name in ("nan_count", "pos_inf_count", "neg_inf_count"):
        counted[name] = int(np.nansum(table.statistic(name)[has_numbers]))
    for name, value in counted.items():
        if getattr(summary, name) != value:
            reason = f"the commit says {name} {getattr(summary, name)}, its rows make {value}"
            yield Damage(step.key, "", reason)


def _verify_findings(step: Step) -> Iterator[Damage]:
    """Read what rules found; their tables carry checksums."""
    try:
        findings_of(step)
    except DamagedStore as exc:
        yield Damage(step.key, "", exc.message)


def _check_row(step: Step, row: int, pieces: Iterator[bytearray]) -> str:
    table = step.tables
    running = new_digest()
    summary = _Summary(step, row)
    try:
        for piece in pieces:
            running.update(piece)
            summary.update(piece)
    except DamagedStore as exc:
        return exc.message
    if running.digest() != table.digest[row].tobytes():
        return "the digest does not match"
    found = summary.result()
    if found is not None:
        stored = table.statistics[row]
        differ = ~np.isclose(stored, found, rtol=1e-9, atol=_rounding(stored), equal_nan=True)
        if differ.any():
            names = ", ".join(np.array(FIELDS)[differ])
            return f"the statistics do not match: {names}"
    return ""


class _Summary:
    """The statistics of one row, from its payload; none where none were computed."""

    def __init__(self, step: Step, row: int) -> None:
        self._step, self._row = step, row
        self._running: RunningStatistics | None = None
        if step.tables.label("statistics_from")[row] == "computed":
            self._element = step.element(row)
            self._left = math.prod(step.shape(row))
            self._device = step.device(row) if step.is_in_device_layout(row) else None
            self._payload: list[bytes] = []
            self._running = RunningStatistics()

    def update(self, piece: bytearray) -> None:
        if self._running is None:
            return
        if self._device is not None:
            self._payload.append(bytes(piece))
            return
        values = unpack(piece, self._element, self._left)
        self._left -= values.size
        self._running.update(values)

    def result(self) -> npt.NDArray[np.float64] | None:
        if self._running is None:
            return None
        if self._device is not None:
            payload = np.frombuffer(b"".join(self._payload), np.uint8)
            host = device_format.to_host(payload, self._device, self._step.shape(self._row), self._element)
            self._running.update(host.reshape(-1))
        return np.array(self._running.result().as_row())


def _rounding(stored: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return by how much each statistic may differ beside its own size.

    Elements may cancel in a mean and in deviations from it. What is left then depends on the order of the
    summation, hence on machine and version: the largest element gives the scale.
    """
    largest = np.nan_to_num(np.abs(stored[[FIELDS.index("min"), FIELDS.index("max")]])).max()
    return np.where(np.isin(FIELDS, ["mean", "std"]), 1e-9 * largest, 0.0)
