"""Verify a store: read everything back, recompute every digest and statistic, and name what is damaged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ingest.reader.catalog import Catalog
from ingest.reader.damage import Damage
from ingest.reader.step import Step
from ingest.reader.step_tables import findings_of, read_entries, read_marginals
from workers.arrays.digest import new_digest
from workers.arrays.sketches.block_digests import RunningBlockDigests
from workers.arrays.sketches.marginals import Marginal
from workers.arrays.statistics import FIELDS
from workers.errors import DamagedStore, StepRemoved, TensorsRemoved
from workers.model import MIB, StepKey
from workers.store import commit, metadata
from workers.store.model import RowKind
from workers.store.packed import pool
from workers.store.sketches import block_digests, histograms, sketch_tables
from workers.store.sketches.entry_table import rows_of
from workers.store.sketches.sketch_tables import SketchKind
from workers.store.step import RecomputedStatistics

_PIECE_NBYTES = 16 * MIB
#: What is said of a payload whose checksums are right.
WRONG_DIGEST = "the digest does not match"
WRONG_STATISTICS = "the statistics do not match"
#: The same of sketches.
WRONG_SKETCHES = {
    sketch_tables.HISTOGRAMS: "the histogram does not match",
    sketch_tables.BLOCK_DIGESTS: "the digests of its blocks do not match",
    sketch_tables.MARGINALS: "the marginals do not match",
    sketch_tables.MARGINALS_OF_LARGE: "the marginals of large tensors do not match",
}


@dataclass(slots=True)
class Verified:
    """How much was checked so far."""

    steps: int = 0
    files: int = 0
    nbytes: int = 0


def verify(
    store: Catalog, keys: list[StepKey] | None = None, progress: Callable[[Verified], None] = lambda _: None
) -> Iterator[Damage]:
    """Check steps of a store and yield what is damaged.

    Reads every stored byte of them once. Checks checksums, digests and statistics, and looks for missing
    objects.

    Args:
        store: the store.
        keys: the steps to check; all that are committed if None.
        progress: is called with the same object after each file and step.
    """
    done = Verified()
    for key in commit.list_keys(store.objects) if keys is None else keys:
        try:
            committed = commit.read(store.objects, key)
            if committed is not None:
                step = Step(store.objects, committed)
                for damage in verify_step(step, done, progress):
                    if step.removed_meanwhile():
                        break  # what was removed is not damaged
                    yield damage
                done.steps += 1
        except (StepRemoved, TensorsRemoved):
            pass  # removed by another process while it was read
        except DamagedStore as exc:
            yield Damage(key, "", exc.message)
        progress(done)


def verify_step(
    step: Step, done: Verified, progress: Callable[[Verified], None] = lambda _: None
) -> Iterator[Damage]:
    """Check one step; see `verify`.

    Raises:
        DamagedStore: its index is damaged.
        StepRemoved, TensorsRemoved: it was removed by another process while it was read.
    """
    table = step.tables
    yield from _verify_objects(step)
    yield from _verify_metadata(step)
    yield from _verify_pool(step)
    rows = [int(row) for row in np.flatnonzero(table.number("offset") >= 0) if step.has_payload(int(row))]
    yield from _verify_totals(step)
    try:
        findings_of(step)  # its tables carry checksums
    except DamagedStore as exc:
        yield Damage(step.key, "", exc.message)
    sketches, damages = _verify_sketches(step)
    yield from damages
    for row, pieces in step.payloads(rows, _PIECE_NBYTES):
        reason = _payload_damage(step, row, pieces, sketches.get(row))
        if reason:
            # A payload with the right digest is right, whatever else contradicts it.
            is_of_payload = not reason.startswith((WRONG_STATISTICS, *WRONG_SKETCHES.values()))
            source = str(table.label("source")[row])
            yield Damage(step.key, source, reason, row=row if is_of_payload else -1)
        done.files += 1
        done.nbytes += int(table.number("nbytes")[row])
        progress(done)


def _verify_objects(step: Step) -> Iterator[Damage]:
    """Compare the sizes of the stored objects with those that the commit lists."""
    prefix = step.commit.prefix
    sizes = step.objects.sizes(prefix)
    for path, nbytes in step.commit.record.stored.items():
        if (size := sizes.get(path)) != nbytes:
            problem = "is missing" if size is None else f"has {size} bytes instead of {nbytes}"
            yield Damage(step.key, "", f"{prefix}/{path} {problem}", path=f"{prefix}/{path}")


def _verify_pool(step: Step) -> Iterator[Damage]:
    """Compare the arrays in the pool that the commit refers to with what it says about them."""
    pooled = step.commit.record.pool
    nodes = step.objects.get_many([f"{path}/{pool.NODE}" for path in pooled])
    for path, array in pooled.items():
        shard, node = f"{path}/{pool.SHARD}", f"{path}/{pool.NODE}"
        size = step.objects.sizes(path).get(pool.SHARD)
        if size != array.nbytes:
            problem = "is missing" if size is None else f"has {size} bytes instead of {array.nbytes}"
            yield Damage(step.key, "", f"{shard} {problem}", path=shard)
        if nodes.get(node) != metadata.encode(array.node):
            problem = "is not what the commit says" if node in nodes else "is missing"
            yield Damage(step.key, "", f"{node} {problem}", path=node)


def _verify_metadata(step: Step) -> Iterator[Damage]:
    """Compare the metadata of each Zarr node, which other readers use, with that in the commit."""
    names = {path: f"{step.commit.prefix}/{path}/zarr.json".replace("//", "/") for path in step.commit.nodes}
    objects = step.objects.get_many(list(names.values()))
    for path, node in step.commit.nodes.items():
        data = objects.get(names[path])
        if data != metadata.encode(node):
            problem = "is missing" if data is None else "is not what the commit says"
            yield Damage(step.key, "", f"{names[path]} {problem}", path=names[path])


def _verify_totals(step: Step) -> Iterator[Damage]:
    """Compare the totals of the commit record, which listings show, with the sums over its rows."""
    table, summary = step.tables, step.commit.summary
    kinds = table.label("kind")
    is_tensor = kinds == RowKind.TENSOR.value
    has_statistics = is_tensor | (kinds == RowKind.STATISTICS.value)
    totals = {"tensors": int(np.count_nonzero(is_tensor))}
    for name in ("nan_count", "pos_inf_count", "neg_inf_count"):
        totals[name] = int(np.nansum(table.statistic(name)[has_statistics]))
    for name, total in totals.items():
        if getattr(summary, name) != total:
            reason = f"the commit says {name} {getattr(summary, name)}, its rows make {total}"
            yield Damage(step.key, "", reason)


@dataclass(slots=True)
class _RowSketches:
    """What the sketches of a step have of one row; None for nothing."""

    histogram: npt.NDArray[np.int64] | None = None
    blocks: npt.NDArray[np.int64] | None = None
    marginals: dict[SketchKind, dict[int, Marginal]] = field(default_factory=dict)


def _verify_sketches(step: Step) -> tuple[dict[int, _RowSketches], list[Damage]]:
    """Return by row what the sketches have of it, and which of their objects are damaged.

    The sums of histograms are compared with the counts among the statistics, without the tensors.
    """
    by_row: defaultdict[int, _RowSketches] = defaultdict(_RowSketches)
    damages = []
    for kind in (sketch_tables.HISTOGRAMS, sketch_tables.BLOCK_DIGESTS, *sketch_tables.ARRAYS_OF_MARGINALS):
        try:
            if kind is sketch_tables.HISTOGRAMS:
                entries = read_entries(step)
                histograms.of_tables(step.tables, entries, str(step.key))
                for row, own in histograms.TABLE.own(entries).items():
                    by_row[row].histogram = own
            elif kind is sketch_tables.BLOCK_DIGESTS:
                entries = read_entries(step, block_digests.TABLE)
                for row, own in block_digests.TABLE.own(entries).items():
                    by_row[row].blocks = own
            else:
                stored = read_marginals(step, sketch_tables.ARRAYS_OF_MARGINALS[kind])
                for row in rows_of(stored.entries):
                    by_row[row].marginals[kind] = stored.of_row(row)
        except DamagedStore as exc:
            paths = (f"{step.commit.prefix}/{key}" for key in kind.first_chunk_keys)
            damages += [Damage(step.key, "", exc.message, path=path) for path in paths]
    return by_row, damages


def _payload_damage(
    step: Step,
    row: int,
    pieces: Iterator[bytes],
    sketches: _RowSketches | None = None,
) -> str:
    """Describe how the payload of a row contradicts digest, statistics or sketches; "" if it does not."""
    table = step.tables
    payload_digest = new_digest()
    sketches = sketches or _RowSketches()
    recomputed = RecomputedStatistics(
        step,
        row,
        with_histogram=sketches.histogram is not None,
        with_marginals=bool(sketches.marginals),
    )
    blocks = RunningBlockDigests() if sketches.blocks is not None else None
    try:
        for piece in pieces:
            payload_digest.update(piece)
            recomputed.update(piece)
            if blocks is not None:
                blocks.update(memoryview(piece))
    except DamagedStore as exc:
        return exc.message
    wrong_statistics = _differing_statistics(step, row, recomputed.result())
    if payload_digest.digest() != table.digest[row].tobytes():
        return WRONG_DIGEST
    if wrong_statistics:
        return f"{WRONG_STATISTICS}: {', '.join(wrong_statistics)}"
    for kind in _wrong_sketches(sketches, recomputed, blocks):
        return WRONG_SKETCHES[kind]
    return ""


def _wrong_sketches(
    stored: _RowSketches, recomputed: RecomputedStatistics, blocks: RunningBlockDigests | None
) -> Iterator[SketchKind]:
    """Yield the kinds of sketches that contradict the payload."""
    if stored.histogram is not None and _differ(stored.histogram, recomputed.histogram_rows()):
        yield sketch_tables.HISTOGRAMS
    if blocks is not None and stored.blocks is not None and _differ(stored.blocks, blocks.result()):
        yield sketch_tables.BLOCK_DIGESTS
    made = recomputed.marginals().by_axis() if stored.marginals else {}
    for kind, of_axes in stored.marginals.items():
        if not _same_marginals(of_axes, made):
            yield kind


def _differ(stored: npt.NDArray[np.int64], made: npt.NDArray[np.int64]) -> bool:
    return not np.array_equal(stored.ravel(), made.ravel())


def _same_marginals(stored: dict[int, Marginal], made: dict[int, Marginal]) -> bool:
    """Return whether marginals agree but for the order of summation, which depends on the machine."""
    if stored.keys() != made.keys() or any(stored[axis].sum.size != made[axis].sum.size for axis in made):
        return False
    return all(stored[axis].agrees_with(made[axis]) for axis in made)


def _differing_statistics(
    step: Step, row: int, recomputed: npt.NDArray[np.float64] | None
) -> list[str] | None:
    """Return the names of the stored statistics that are not those of the payload; None if none were."""
    if recomputed is None:
        return None
    stored = step.tables.statistics[row]
    if stored.tobytes() == recomputed.tobytes():  # as nearly always: the rest takes as long as a small tensor
        return []
    differ = ~np.isclose(stored, recomputed, rtol=1e-9, atol=_rounding(stored), equal_nan=True)
    differ &= np.isin(FIELDS, step.commit.nodes["statistics"]["attributes"]["fields"])  # not newer ones
    return [name for name, differs in zip(FIELDS, differ, strict=True) if differs]


def _rounding(stored: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the absolute tolerance of each statistic, in addition to the relative one.

    Elements may cancel in the mean and in the deviations from it. The rest then depends on the order of the
    summation, and so on machine and version. The largest element gives the scale of the tolerance.
    """
    largest = np.nan_to_num(np.abs(stored[[FIELDS.index("min"), FIELDS.index("max")]])).max()
    return np.where(np.isin(FIELDS, ["mean", "std"]), 1e-9 * largest, 0.0)
