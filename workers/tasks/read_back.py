"""`read_back`: what a Dask worker runs before source files are deleted, to see that the store has them.

Reads the payloads of the files back from the store, recomputes their digests, puts each file together again
and compares it with the one that is in the dump, byte by byte. The digests alone would not show a header
that was kept wrongly, a tensor that does not come back out of the layout of an accelerator, or a file that
was written in place and given its old time. Paths go in, and a verdict for each comes out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np
import numpy.typing as npt

from workers.dump import paths
from workers.dump.source import OpenFile
from workers.errors import (
    DamagedStore,
    DumpError,
    SourceChanged,
    SourceDiffers,
    TensorsRemoved,
    UnreadableFile,
)
from workers.model import MIB, SourceFile, StepKey
from workers.store import commit
from workers.store.commit import Commit
from workers.store.model import RowKind, StoreAddress
from workers.store.opening import open_objects
from workers.store.restore import begin_of, nbytes_of, part
from workers.store.step import StoredStep

_PIECE_NBYTES = 16 * MIB


class ReadBackVerdict(IntEnum):
    """What was found out about a source file."""

    SAME = 0
    """The store has it, byte for byte."""
    NOT_STORED = 1
    """The commit does not have it, or not as it is now."""
    NOT_UNDERSTOOD = 2
    """The store has it as a file, for nobody knew what it is. It is not compared."""


@dataclass(frozen=True, slots=True)
class ReadBackJob:
    """Some files of a committed step, or all."""

    key: StepKey
    number: int
    """Of the jobs of one step."""
    fingerprint: str
    """The generation that is to be committed."""
    root: str
    store: StoreAddress
    files: tuple[SourceFile, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the files: so many are read of the dump, and about as many of the store."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class ReadBack:
    """What a job came to. Columns are aligned with its files."""

    number: int
    verdicts: npt.NDArray[np.int8]
    """Values of `ReadBackVerdict`, shape (n,)."""
    changed_ns: npt.NDArray[np.int64]
    """When the inode of a file changed last (ctime), as it was when it was compared; shape (n,)."""
    nbytes: int
    """Bytes that were compared."""
    seconds: float


def read_back(job: ReadBackJob) -> ReadBack:
    """Compare source files with what the store has of them. Writes nothing.

    Memory: that of `ShardStream` and two pieces of 16 MiB; for a tensor that was brought out of the layout of
    an accelerator (up to 256 MiB) three times its size.

    Raises:
        DamagedStore: the store does not have what was written.
        TensorsRemoved: the store is not to have the tensors any more.
        SourceChanged: a file, or the commit, is another one by now.
        SourceDiffers: a file has the size and the time of the stored one, and other bytes.
        UnreadableFile: the disk does not give a file.
        AccessDenied: a file may not be read.
        StoreError: the store refused.
    """
    started = time.perf_counter()
    objects = open_objects(job.store)
    step = StoredStep(objects, _checked(commit.read(objects, job.key), job))
    verdicts, rows = _verdicts(step, job.files)
    changed_ns = np.zeros(len(job.files), np.int64)
    files = {row: number for number, members in rows.items() for row in members}
    nbytes = 0
    for row, payload in step.payloads(files, _PIECE_NBYTES):
        number = files[row]
        found = _compare(step, row, payload, job.files[number], Path(job.root))
        if changed_ns[number] not in (0, found):
            raise SourceChanged(f"{job.key}: {job.files[number].path} changed while it was read back")
        changed_ns[number] = found
        nbytes += nbytes_of(step, row)
    # What was read may have come from memory. The dump goes only when a power cut does no harm any more.
    for place in (job.key.path, f"rank_{job.key.rank}/{commit.ROOT}", commit.ROOT):
        objects.flush(place)
    return ReadBack(job.number, verdicts, changed_ns, nbytes, time.perf_counter() - started)


def _checked(found: Commit | None, job: ReadBackJob) -> Commit:
    """Return the commit, if it is the one that is asked about and all of its files are in the store."""
    if found is None or found.fingerprint != job.fingerprint:
        raise SourceChanged(f"{job.key}: another generation, or none, is committed by now")
    if found.without_tensors is not None:
        raise TensorsRemoved(f"{job.key}: {found.without_tensors}")
    if found.summary.status != "complete":
        raise DumpError(f"{job.key} is {found.summary.status}: its files may be all that there is")
    return found


def _verdicts(
    step: StoredStep, files: Sequence[SourceFile]
) -> tuple[npt.NDArray[np.int8], dict[int, list[int]]]:
    """Return a verdict for each file, and the rows by number of the file of those that are to be compared."""
    table = step.tables
    kinds, problems, sources = table.label("kind"), table.label("problem"), table.label("source")
    sizes, times = table.number("source_size"), table.number("mtime_ns")
    numbers = {paths.to_text(file.path): number for number, file in enumerate(files)}
    rows: dict[int, list[int]] = {}
    for row, source in enumerate(sources.tolist()):
        # The statistics of a tensor stand in a table, which is a file of its own.
        if source in numbers and kinds[row] != RowKind.STATISTICS.value:
            rows.setdefault(numbers[source], []).append(row)
    verdicts = np.full(len(files), ReadBackVerdict.NOT_STORED, np.int8)
    for number, members in list(rows.items()):
        file = files[number]
        if any((sizes[row], times[row]) != (file.size, file.mtime_ns) for row in members):
            del rows[number]
        elif any(kinds[row] == RowKind.FILE.value and problems[row] for row in members):
            verdicts[number] = ReadBackVerdict.NOT_UNDERSTOOD
            del rows[number]
        else:
            _check_whole(step, members, file)
            verdicts[number] = ReadBackVerdict.SAME
    return verdicts, rows


def _check_whole(step: StoredStep, rows: Iterable[int], file: SourceFile) -> None:
    """Raise DamagedStore unless the parts of these rows make the whole file, one behind the other."""
    at = 0
    for row in sorted(rows, key=lambda row: (begin_of(step, row), nbytes_of(step, row))):
        if begin_of(step, row) != at:
            raise DamagedStore(f"{step.key}: {file.path}: the store has nothing, or two things, at byte {at}")
        at += nbytes_of(step, row)
    if at != file.size:
        raise DamagedStore(f"{step.key}: {file.path}: the store has {at} of its {file.size} bytes")


def _compare(step: StoredStep, row: int, payload: Iterable[bytearray], file: SourceFile, root: Path) -> int:
    """Compare what the store has of a row with the file, and return the ctime of that."""
    at = begin_of(step, row)
    end = at + nbytes_of(step, row)
    differs_at = -1
    try:
        with OpenFile(root, file, str(step.key)) as opened:
            for piece in part(step, row, payload):
                # To its end, whatever differs: the digest tells whether it is the store that is wrong.
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
        message = f"{step.key}: {file.path} cannot be read: {exc.strerror}"
        raise UnreadableFile(message, path=file.path) from exc
    if at != end:
        raise DamagedStore(f"{step.key}: {file.path}: the store has {at} bytes where there must be {end}")
    if differs_at >= 0:
        raise SourceDiffers(
            f"{step.key}: {file.path} is not what the store has, from byte {differs_at} on or a little later"
        )
    return changed_ns
