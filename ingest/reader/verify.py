"""Verify: read everything back, recompute every digest and every statistic, name what is damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ingest.reader.store import DumpStore, Step
from workers.digest import new_digest
from workers.errors import DamagedStore
from workers.model import MIB, Kind, StepKey
from workers.statistics import FIELDS, RunningStatistics, has_statistics
from workers.store import commit, metadata

_PIECE_NBYTES = 16 * MIB


@dataclass(frozen=True, slots=True)
class Damage:
    """Something in the store that is not what was written."""

    key: StepKey
    source: str
    """The dump file that it came from; "" where more than one file is concerned."""
    reason: str


@dataclass(slots=True)
class Verified:
    """What was checked, so far."""

    steps: int = 0
    files: int = 0
    nbytes: int = 0


def verify(
    store: DumpStore, keys: list[StepKey] | None = None, progress: Callable[[Verified], None] = lambda _: None
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
                yield from _verify_step(Step(objects, found), done, progress)
                done.steps += 1
        except DamagedStore as exc:
            yield Damage(key, "", exc.message)
        progress(done)


def _verify_step(step: Step, done: Verified, progress: Callable[[Verified], None]) -> Iterator[Damage]:
    table = step.tables
    sources = table.label("source")
    sizes = step.objects.sizes(step.commit.prefix)
    for path, nbytes in step.commit.record["stored"].items():
        if path not in sizes:
            yield Damage(step.key, "", f"{step.commit.prefix}/{path} is missing")
        elif sizes[path] != nbytes:
            yield Damage(
                step.key, "", f"{step.commit.prefix}/{path} has {sizes[path]} bytes instead of {nbytes}"
            )
    yield from _check_metadata(step)
    rows = [int(row) for row in np.flatnonzero(table.number("offset") >= 0)]
    yield from _verify_totals(step)
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
    is_tensor = table.label("kind") == Kind.TENSOR.value
    counted = {"tensors": int(np.count_nonzero(is_tensor))}
    for name in ("nan_count", "pos_inf_count", "neg_inf_count"):
        counted[name] = int(np.nansum(table.statistic(name)[is_tensor]))
    for name, value in counted.items():
        if getattr(summary, name) != value:
            reason = f"the commit says {name} {getattr(summary, name)}, its rows make {value}"
            yield Damage(step.key, "", reason)


def _check_row(step: Step, row: int, pieces: Iterator[bytearray]) -> str:
    table = step.tables
    running = new_digest()
    statistics = None
    if table.label("kind")[row] == Kind.TENSOR.value:
        dtype = step.dtype(row)
        statistics = RunningStatistics() if has_statistics(dtype) else None
    try:
        for piece in pieces:
            running.update(piece)
            if statistics is not None:
                statistics.update(np.frombuffer(piece, dtype))
    except DamagedStore as exc:
        return exc.message
    if running.digest() != table.digest[row].tobytes():
        return "the digest does not match"
    if statistics is not None:
        stored, found = table.statistics[row], np.array(statistics.result().as_row())
        differ = ~np.isclose(stored, found, rtol=1e-9, atol=_rounding(stored), equal_nan=True)
        if differ.any():
            names = ", ".join(np.array(FIELDS)[differ])
            return f"the statistics do not match: {names}"
    return ""


def _rounding(stored: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return by how much each statistic may differ beside its own size.

    Elements may cancel in a mean and in deviations from it. What is left then depends on the order of the
    summation, hence on machine and version: the largest element gives the scale.
    """
    largest = np.nan_to_num(np.abs(stored[[FIELDS.index("min"), FIELDS.index("max")]])).max()
    return np.where(np.isin(FIELDS, ["mean", "std"]), 1e-9 * largest, 0.0)
