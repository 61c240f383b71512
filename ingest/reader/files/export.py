"""Export the original files of a step into a directory, byte for byte."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ingest.reader.files.output_file import translated
from ingest.reader.files.target import Parts, TargetDirectory
from workers.dump import paths
from workers.errors import DamagedStore, UsageError
from workers.model import MIB, StepKey
from workers.store.model import RowKind
from workers.store.step import StoredStep, begin_of, part

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
        UsageError: a file exists already, `directory` cannot be written, or it is or holds a symbolic link on
            the way to a file: no link is followed.
    """
    table = step.tables
    with TargetDirectory(directory) as target:
        files = _files(step, directory, target, range(len(table.labels)) if rows is None else rows)
        _check_targets(files, overwrite=overwrite)
        by_row: dict[int, _File] = {}
        for file in files:
            if problem := _why_unavailable(step, file):
                yield Exported(step.key, file.source, file.path, 0, problem)
            else:
                by_row.update(dict.fromkeys(file.rows, file))
        try:
            yield from _write(step, by_row)
        finally:
            for file in files:
                file.discard()


def _check_targets(files: Iterable[_File], *, overwrite: bool) -> None:
    """Refuse to begin an export that could not be completed."""
    for file in files:
        if file.exists() and not overwrite:
            raise UsageError(
                f"{file.path} exists", hint="Export into an empty directory, or pass --overwrite."
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
            yield Exported(step.key, file.source, file.path, nbytes, file.problem)


def _files(step: StoredStep, directory: Path, target: TargetDirectory, rows: Iterable[int]) -> list[_File]:
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
    files = []
    for source, members in parts.items():
        path = paths.inside(directory, paths.from_text(source))
        files.append(
            _File(source, path, path.relative_to(directory), target, int(sizes[min(members)]), members)
        )
    return files


@dataclass(slots=True)
class _File:
    """A file that is put together from the rows that hold its parts, in any order."""

    source: str
    path: Path
    relative: Path
    """Its path below the target directory."""
    target: TargetDirectory
    nbytes: int
    rows: set[int]
    """The rows that are still to be written."""
    problem: str = ""
    _temporary: str = ""
    """Its name until it is complete; empty if nothing was written yet."""

    @property
    def _parts(self) -> Parts:
        return self.relative.parts[:-1]

    def exists(self) -> bool:
        """Return whether there is a file already where it will be."""
        return self.target.check(self._parts, self.relative.name)

    def write(self, step: StoredStep, row: int, pieces: Iterator[bytes]) -> None:
        """Write the part of one row; set `problem` if it is damaged."""
        self._temporary = self._temporary or f".{uuid.uuid4().hex}.tmp"
        try:
            with translated(self.path), self.target.open(self._parts, self._temporary) as file:
                file.seek(begin_of(step, row))
                file.writelines(part(step, row, pieces))
        except DamagedStore as exc:
            self.problem = exc.message

    def close(self) -> None:
        """Rename the temporary file to its final name, unless the file has a problem."""
        if self.problem:
            return
        written = self.target.nbytes(self._parts, self._temporary)
        if written != self.nbytes:
            self.problem = f"{written} bytes were put together instead of {self.nbytes}"
            return
        self.target.rename(self._parts, self._temporary, self.relative.name)
        self._temporary = ""

    def discard(self) -> None:
        """Remove what was written, unless the file is complete."""
        if self._temporary:
            self.target.remove(self._parts, self._temporary)


def _why_unavailable(step: StoredStep, file: _File) -> str:
    """Return why the store does not have the bytes of a file; "" if it has them."""
    if not all(map(step.has_payload, file.rows)):
        return str(step.commit.without_tensors)
    unread = [row for row in file.rows if step.tables.number("offset")[row] < 0]
    return f"never read: {step.tables.label('problem')[unread[0]]}" if unread else ""
