"""The Dask tasks that read source files again and compare them with the store.

`read_back` verifies, before source files are deleted, that the store has them. It reads the payloads of the
files back from the store, recomputes their digests, reassembles each file, and compares it byte by byte with
the file in the dump. Digests alone would not reveal a header that was stored wrongly, a tensor that cannot be
converted back into the layout of an accelerator, or a file that was written in place and given its old time.
The task is given paths and returns a verdict for each.

`recheck` finds files that were written in place and given their old time, which a listing does not reveal. It
reads only the index from the store, which has the digests of all payloads.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np
import numpy.typing as npt

from workers.arrays import device_format
from workers.arrays.digest import new_digest
from workers.dump import paths
from workers.dump.source import DISK_ERRORS, OpenFile
from workers.errors import (
    DamagedStore,
    DumpError,
    SourceChanged,
    SourceDiffers,
    TensorsRemoved,
    UnreadableFile,
)
from workers.model import MIB, SourceFile, StepKey, grouped
from workers.store import commit
from workers.store.commit import Commit
from workers.store.model import RowKind, StoreAddress
from workers.store.opening import open_objects
from workers.store.packed.pool import without_pool
from workers.store.step import StoredStep, begin_of, is_view, nbytes_of, part

_PIECE_NBYTES = 16 * MIB


class ReadBackVerdict(IntEnum):
    """The result for one source file."""

    SAME = 0
    """The store has it, byte for byte."""
    NOT_STORED = 1
    """The commit does not have it, or has it as it was earlier."""
    NOT_UNDERSTOOD = 2
    """The store has it as a file of an unknown format. It is not compared."""


@dataclass(frozen=True, slots=True)
class ReadBackJob:
    """Some or all files of a committed step."""

    key: StepKey
    fingerprint: str
    """The generation that must be the committed one."""
    root: str
    store: StoreAddress
    files: tuple[SourceFile, ...]
    number: int = 0
    """Among the jobs of one step."""

    @property
    def nbytes(self) -> int:
        """Bytes that are read from the dump; about as many are read back from the store."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class ReadBack:
    """The result of a job. Columns are aligned with its files."""

    number: int
    verdicts: npt.NDArray[np.int8]
    """Values of `ReadBackVerdict`, shape (n,)."""
    changed_ns: npt.NDArray[np.int64]
    """When the inode of each file last changed (ctime), at the time of the comparison; shape (n,)."""
    nbytes: int
    seconds: float


def read_back(job: ReadBackJob) -> ReadBack:
    """Compare source files with what the store has of them. Writes nothing.

    Memory: as much as `ShardStream`, and two pieces of 16 MiB; for a tensor that was converted from the
    layout of an accelerator (up to 256 MiB), three times its size.

    Raises:
        DamagedStore: the store does not have what was written.
        TensorsRemoved: the tensors were removed from the store on purpose.
        SourceChanged: a file, or the commit, has been replaced meanwhile.
        SourceDiffers: a file has the size and the time of the stored one, but other bytes.
        UnreadableFile: a file cannot be read from the disk.
        AccessDenied: a file may not be read.
        StoreError: the store refused.
    """
    started = time.perf_counter()
    objects = open_objects(job.store)
    step = StoredStep(objects, _checked(commit.read(objects, job.key), job))
    verdicts, rows_of = _verdicts(step, job.files)
    changed_ns = np.zeros(len(job.files), np.int64)
    files = {row: number for number, rows in rows_of.items() for row in rows}
    nbytes = 0
    for row, payload in step.payloads(files, _PIECE_NBYTES):
        number = files[row]
        ctime_ns = _compare(step, row, payload, job.files[number], Path(job.root))
        if changed_ns[number] not in (0, ctime_ns):
            raise SourceChanged(f"{job.key}: {job.files[number].path} changed while it was read back")
        changed_ns[number] = ctime_ns
        nbytes += nbytes_of(step, row)
    # The store may have read from memory. Nothing is deleted before a power cut can no longer lose it.
    pooled = step.commit.record.pool
    for place in (job.key.path, *pooled, f"rank_{job.key.rank}/{commit.ROOT}", commit.ROOT):
        objects.flush(place)
    return ReadBack(job.number, verdicts, changed_ns, nbytes, time.perf_counter() - started)


def _checked(current: Commit | None, job: ReadBackJob) -> Commit:
    """Return the current commit if it is the one of the job, and complete with all of its tensors."""
    if current is None or current.fingerprint != job.fingerprint:
        raise SourceChanged(f"{job.key}: another generation, or none, is committed by now")
    if current.without_tensors is not None:
        raise TensorsRemoved(f"{job.key}: {current.without_tensors}")
    if current.summary.status != "complete":
        raise DumpError(f"{job.key} is {current.summary.status}: its files may be the only copy")
    return current


def _verdicts(
    step: StoredStep, files: Sequence[SourceFile]
) -> tuple[npt.NDArray[np.int8], dict[int, list[int]]]:
    """Return a verdict for each file, and the rows of each file to compare, by its number."""
    kinds, problems = step.tables.label("kind"), step.tables.label("problem")
    verdicts = np.full(len(files), ReadBackVerdict.NOT_STORED, np.int8)
    to_compare: dict[int, list[int]] = {}
    for number, rows in _rows_by_file(step, files).items():
        if any(kinds[row] == RowKind.FILE.value and problems[row] for row in rows):
            verdicts[number] = ReadBackVerdict.NOT_UNDERSTOOD
            continue
        _check_whole(step, rows, files[number])
        verdicts[number] = ReadBackVerdict.SAME
        to_compare[number] = rows
    return verdicts, to_compare


def _rows_by_file(step: StoredStep, files: Sequence[SourceFile]) -> dict[int, list[int]]:
    """Return the rows that hold parts of each file, by its number, if they have its size and time."""
    table = step.tables
    kinds, sources = table.label("kind"), table.label("source")
    sizes, times = table.number("source_size"), table.number("mtime_ns")
    numbers = {paths.to_text(file.path): number for number, file in enumerate(files)}
    rows = grouped(
        (numbers[source], row)
        for row, source in enumerate(sources.tolist())
        # Reported statistics come from a table, which is a file with its own row.
        if source in numbers and kinds[row] != RowKind.STATISTICS.value
    )
    return {
        number: of_file
        for number, of_file in rows.items()
        if (sizes[of_file] == files[number].size).all() and (times[of_file] == files[number].mtime_ns).all()
    }


def _check_whole(step: StoredStep, rows: Iterable[int], file: SourceFile) -> None:
    """Raise DamagedStore unless the parts of these rows, one after the other, make up the whole file."""
    at = 0
    parts = [row for row in rows if not is_view(step, row)]
    for row in sorted(parts, key=lambda row: (begin_of(step, row), nbytes_of(step, row))):
        if not nbytes_of(step, row):
            continue  # a tensor without elements, anywhere
        if begin_of(step, row) != at:
            raise DamagedStore(f"{step.key}: {file.path}: the store has no part, or two parts, at byte {at}")
        at += nbytes_of(step, row)
    if at != file.size:
        raise DamagedStore(f"{step.key}: {file.path}: the store has {at} of its {file.size} bytes")


def _compare(step: StoredStep, row: int, payload: Iterable[bytes], file: SourceFile, root: Path) -> int:
    """Compare what the store has of a row with the file, and return the ctime of the file."""
    at = begin_of(step, row)
    end = at + nbytes_of(step, row)
    differs_at = -1
    try:
        with OpenFile(root, file, str(step.key)) as opened:
            for piece in part(step, row, payload):
                # To its end, even if it differs: the digest tells whether the store is wrong.
                is_same = opened.read_at(at, len(piece)) == bytes(piece)
                differs_at = at if differs_at < 0 and not is_same else differs_at
                at += len(piece)
            opened.check_unchanged()
            changed_ns = opened.changed_ns
    except DamagedStore as exc:
        raise DamagedStore(f"{step.key}: {file.path}: {exc.message}") from exc
    except OSError as exc:
        if isinstance(exc, DumpError):
            raise
        raise UnreadableFile(
            f"{step.key}: {file.path} cannot be read: {exc.strerror}", path=file.path
        ) from exc
    if at != end:
        raise DamagedStore(f"{step.key}: {file.path}: the store has {at} bytes instead of {end}")
    if differs_at >= 0:
        raise SourceDiffers(
            f"{step.key}: {file.path} differs from the store, at byte {differs_at} or a little later"
        )
    return changed_ns


_RECHECKED_NBYTES = 4 * MIB


def recheck(job: ReadBackJob) -> tuple[str, ...]:
    """Return the paths of the files whose content is not what was committed under their size and time.

    Passes over files that the commit does not have as they are listed, that could not be read when it was
    made, or that kill who reads them. Memory: a piece of 4 MiB, and twice the size of a tensor that was
    converted from the layout of an accelerator (up to 256 MiB).

    Raises:
        SourceChanged: a file, or the commit, has been replaced since the job was made.
        AccessDenied: a file may not be read.
        DamagedStore: the index of the commit cannot be read.
        StoreError: the store refused.
    """
    objects = open_objects(job.store)
    current = commit.read(objects, job.key)
    if current is None or without_pool(current.fingerprint) != job.fingerprint:
        raise SourceChanged(f"{job.key}: another generation, or none, is committed by now")
    step = StoredStep(objects, current)
    poison = {row.source for row in current.record.poison}
    sources, digests = step.tables.label("source"), step.tables.digest
    differing = []
    for number, rows in sorted(_rows_by_file(step, job.files).items()):
        if sources[rows[0]] in poison or not all(digests[row].any() for row in rows):
            continue
        if _differs(step, rows, job.files[number], job):
            differing.append(job.files[number].path)
    return tuple(differing)


def _differs(step: StoredStep, rows: Sequence[int], file: SourceFile, job: ReadBackJob) -> bool:
    try:
        with OpenFile(job.root, file, str(job.key)) as opened:
            is_same = all(_is_same(step, row, opened) for row in rows)
            opened.check_unchanged()
            return not is_same
    except OSError as exc:
        if exc.errno in DISK_ERRORS:  # what the disk does not return cannot be compared; the commit has it
            return False
        raise


def _is_same(step: StoredStep, row: int, opened: OpenFile) -> bool:
    if is_view(step, row):
        return True  # the parts that it is picked from are compared
    table = step.tables
    begin, end = begin_of(step, row), begin_of(step, row) + nbytes_of(step, row)
    lead, tail = (str(table.label(name)[row]).encode("latin-1") for name in ("lead", "tail"))
    payload_begin, payload_end = begin + len(lead), end - len(tail)
    if opened.read_at(begin, len(lead)) != lead or opened.read_at(payload_end, len(tail)) != tail:
        return False
    pieces = (
        opened.read_at(at, min(_RECHECKED_NBYTES, payload_end - at))
        for at in range(payload_begin, payload_end, _RECHECKED_NBYTES)
    )
    return _digest(step, row, pieces) == bytes(table.digest[row])


def _digest(step: StoredStep, row: int, pieces: Iterable[bytes]) -> bytes:
    running = new_digest()
    is_tensor = step.tables.label("kind")[row] in (RowKind.TENSOR.value, RowKind.OVERFLOW.value)
    device = step.device(row) if is_tensor else None
    if device is None or step.is_in_device_layout(row):
        for piece in pieces:
            running.update(piece)
    else:
        payload = np.frombuffer(b"".join(pieces), np.uint8)
        host = device_format.to_host(payload, device, step.shape(row), step.element(row))
        running.update(np.ascontiguousarray(host).reshape(-1).view(np.uint8).data)
    return running.digest()
