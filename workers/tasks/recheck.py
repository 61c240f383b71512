"""`recheck`: the Dask task that reads source files again and compares them with the digests of their commit.

A listing does not reveal a file that was written in place and given its old time. The task reads only the
index from the store: it has the digests of all payloads. It returns the paths of the files that differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from workers.arrays import device_format
from workers.arrays.digest import new_digest
from workers.dump.source import DISK_ERRORS, OpenFile
from workers.errors import SourceChanged
from workers.model import MIB, SourceFile, StepKey
from workers.store import commit
from workers.store.model import RowKind, StoreAddress
from workers.store.opening import open_objects
from workers.store.packed.pool import without_pool
from workers.store.restore import begin_of, is_view, nbytes_of
from workers.store.step import StoredStep
from workers.tasks.read_back import rows_by_file

_PIECE_NBYTES = 4 * MIB


@dataclass(frozen=True, slots=True)
class RecheckJob:
    """Some or all files of a committed step."""

    key: StepKey
    fingerprint: str
    """The generation that must be the committed one."""
    root: str
    store: StoreAddress
    files: tuple[SourceFile, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that are read from the dump."""
        return sum(file.size for file in self.files)


def recheck(job: RecheckJob) -> tuple[str, ...]:
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
    sizes, times = step.tables.number("source_size"), step.tables.number("mtime_ns")
    differing = []
    for number, rows in sorted(rows_by_file(step, job.files).items()):
        file = job.files[number]
        if any((sizes[row], times[row]) != (file.size, file.mtime_ns) for row in rows):
            continue
        if sources[rows[0]] in poison or not all(digests[row].any() for row in rows):
            continue
        if _differs(step, rows, file, job):
            differing.append(file.path)
    return tuple(differing)


def _differs(step: StoredStep, rows: Sequence[int], file: SourceFile, job: RecheckJob) -> bool:
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
    """Return whether a file has the part that a row of the index describes."""
    if is_view(step, row):
        return True  # the parts that it is picked from are compared
    table = step.tables
    begin, end = begin_of(step, row), begin_of(step, row) + nbytes_of(step, row)
    lead, tail = (str(table.label(name)[row]).encode("latin-1") for name in ("lead", "tail"))
    payload_begin, payload_end = begin + len(lead), end - len(tail)
    if opened.read_at(begin, len(lead)) != lead or opened.read_at(payload_end, len(tail)) != tail:
        return False
    pieces = (
        opened.read_at(at, min(_PIECE_NBYTES, payload_end - at))
        for at in range(payload_begin, payload_end, _PIECE_NBYTES)
    )
    return _digest(step, row, pieces) == bytes(table.digest[row])


def _digest(step: StoredStep, row: int, pieces: Iterable[bytes]) -> bytes:
    """Return the digest of a payload as the store would have it."""
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
