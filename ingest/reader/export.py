"""Export the original files of a step into a directory, byte for byte."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from workers.dump import paths
from workers.errors import DamagedStore, UsageError
from workers.model import MIB, StepKey
from workers.store.model import RowKind
from workers.store.restore import begin_of, part
from workers.store.step import StoredStep

_PIECE_NBYTES = 16 * MIB


@dataclass(frozen=True, slots=True)
class Exported:
    """One file that was written, or the reason why it was not."""

    key: StepKey
    source: str
    path: Path
    nbytes: int
    problem: str = ""


def export(
    step: StoredStep, directory: Path, rows: Iterable[int] | None = None, *, overwrite: bool = False
) -> Iterator[Exported]:
    """Write source files of a step below `directory`, under the paths that they had in the dump.

    A file appears under its name only after all its digests were checked. Quarantined files come back as they
    were; files that could not be read when they were ingested are reported.

    Args:
        step: the step.
        directory: the target directory; created if it is missing.
        rows: rows of the index; the whole file of each of them is written. All rows if None.
        overwrite: whether to replace existing files.

    Raises:
        UsageError: a file exists already, or `directory` cannot be written.
    """
    table = step.tables
    files = _files(step, directory, range(len(table.labels)) if rows is None else rows)
    if not overwrite:
        _check_targets(files)
    by_row: dict[int, _File] = {}
    for file in files:
        if problem := _why_unavailable(step, file):
            yield Exported(step.key, file.source, file.target, 0, problem)
        else:
            by_row.update(dict.fromkeys(file.rows, file))
    try:
        yield from _write(step, by_row)
    finally:
        for file in files:
            with suppress(FileNotFoundError, NotADirectoryError):
                file.temporary.unlink()


def _check_targets(files: Iterable[_File]) -> None:
    """Refuse to begin an export that could not be completed."""
    for file in files:
        if file.target.exists():
            raise UsageError(
                f"{file.target} exists", hint="Export into an empty directory, or pass --overwrite."
            )


def _write(step: StoredStep, by_row: dict[int, _File]) -> Iterator[Exported]:
    """Write the files of these rows, and yield each file when its last row was written."""
    for row, pieces in step.payloads(by_row, _PIECE_NBYTES):
        file = by_row[row]
        if not file.problem:
            file.write(step, row, pieces)
        file.rows.remove(row)
        if not file.rows:
            file.close()
            nbytes = 0 if file.problem else file.nbytes
            yield Exported(step.key, file.source, file.target, nbytes, file.problem)


def _files(step: StoredStep, directory: Path, rows: Iterable[int]) -> list[_File]:
    """Return the files of these rows, each with all rows that hold a part of it."""
    table = step.tables
    sources = table.label("source")
    # Rows of statistics name a file, too, but do not hold a part of it.
    kinds = table.label("kind")
    wanted = {str(sources[row]) for row in rows}
    parts: dict[str, set[int]] = {}
    for row, source in enumerate(map(str, sources)):
        if source in wanted and kinds[row] != RowKind.STATISTICS.value:
            parts.setdefault(source, set()).add(row)
    sizes = table.number("source_size")
    return [
        _File(source, paths.inside(directory, paths.from_text(source)), int(sizes[min(members)]), members)
        for source, members in parts.items()
    ]


@dataclass(slots=True)
class _File:
    """A file that is put together from the rows that hold its parts, in any order."""

    source: str
    target: Path
    nbytes: int
    rows: set[int]
    """The rows that are still to be written."""
    problem: str = ""
    temporary: Path = field(init=False)

    def __post_init__(self) -> None:
        self.temporary = self.target.with_name(f".{uuid.uuid4().hex}.tmp")

    def write(self, step: StoredStep, row: int, pieces: Iterator[bytearray]) -> None:
        """Write the part of one row; set `problem` if it is damaged."""
        try:
            _make_directory(self.target.parent)
            self.temporary.touch()
            with self.temporary.open("r+b") as file:
                file.seek(begin_of(step, row))
                file.writelines(part(step, row, pieces))
        except DamagedStore as exc:
            self.problem = exc.message
        except OSError as exc:
            raise UsageError(f"cannot write {self.target}: {exc.strerror}") from exc

    def close(self) -> None:
        """Rename the temporary file to its final name, unless the file has a problem."""
        if self.problem:
            return
        written = self.temporary.stat().st_size
        if written != self.nbytes:
            self.problem = f"{written} bytes were put together instead of {self.nbytes}"
            return
        self.temporary.replace(self.target)


def _why_unavailable(step: StoredStep, file: _File) -> str:
    """Return why the store does not have the bytes of a file; "" if it has them."""
    if not all(map(step.has_payload, file.rows)):
        return str(step.commit.without_tensors)
    unread = [row for row in file.rows if step.tables.number("offset")[row] < 0]
    return f"never read: {step.tables.label('problem')[unread[0]]}" if unread else ""


def _make_directory(directory: Path) -> None:
    """Create a directory and its parents, without recursion: a dump may be nested deeper than its limit."""
    missing = []
    while not directory.exists():
        missing.append(directory)
        directory = directory.parent
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
