"""Export: the original files back into a directory, byte for byte."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ingest.reader.opened_step import OpenedStep
from workers.dump import paths
from workers.errors import DamagedStore, UsageError
from workers.model import MIB, StepKey
from workers.store.model import RowKind
from workers.store.restore import begin_of, part

_PIECE_NBYTES = 16 * MIB


@dataclass(frozen=True, slots=True)
class Exported:
    """One file that was written, or why it was not."""

    key: StepKey
    source: str
    path: Path
    nbytes: int
    problem: str = ""


def export(
    step: OpenedStep, directory: Path, rows: Iterable[int] | None = None, *, overwrite: bool = False
) -> Iterator[Exported]:
    """Write the source files of a step below `directory`, under the paths they had in the dump.

    Every digest is checked before a file appears under its name. A file that was quarantined comes back as it
    was; one that could not be read at the time is reported.

    Args:
        step: the step.
        directory: where to; made if missing.
        rows: rows of the index, whose files are written whole; all of them when None.
        overwrite: whether files that are there already may be replaced.

    Raises:
        UsageError: a file is there already, or `directory` cannot be written.
    """
    table = step.tables
    files = _files(step, directory, range(len(table.labels)) if rows is None else rows)
    if not overwrite:
        # Before anything is written: an export is whole, or it has not begun.
        for file in files:
            if file.target.exists():
                raise UsageError(
                    f"{file.target} exists", hint="Export into an empty directory, or pass --overwrite."
                )
    by_row: dict[int, _File] = {}
    for file in files:
        if problem := _not_to_be_had(step, file):
            yield Exported(step.key, file.source, file.target, 0, problem)
        else:
            by_row.update(dict.fromkeys(file.rows, file))
    try:
        for row, pieces in step.payloads(by_row, _PIECE_NBYTES):
            file = by_row[row]
            if not file.problem:
                file.write(step, row, pieces)
            file.rows.remove(row)
            if not file.rows:
                file.close()
                nbytes = 0 if file.problem else file.nbytes
                yield Exported(step.key, file.source, file.target, nbytes, file.problem)
    finally:
        for file in files:
            file.temporary.unlink(missing_ok=True)


def _files(step: OpenedStep, directory: Path, rows: Iterable[int]) -> list[_File]:
    """Return the files of these rows, each with all rows that have a part of it."""
    table = step.tables
    sources = table.label("source")
    # Statistics have their file too, but no part of it.
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
    """A file that is put together from the rows that have its parts, in whatever order they come."""

    source: str
    target: Path
    nbytes: int
    rows: set[int]
    """What is still to come."""
    problem: str = ""
    temporary: Path = field(init=False)

    def __post_init__(self) -> None:
        self.temporary = self.target.with_name(f".{uuid.uuid4().hex}.tmp")

    def write(self, step: OpenedStep, row: int, pieces: Iterator[bytearray]) -> None:
        """Write the part of one row; note what is wrong with it."""
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
        """Let the file appear under its name, unless something is wrong with it."""
        if self.problem:
            return
        found = self.temporary.stat().st_size
        if found != self.nbytes:
            self.problem = f"{found} bytes came together instead of {self.nbytes}"
            return
        self.temporary.replace(self.target)


def _not_to_be_had(step: OpenedStep, file: _File) -> str:
    """Return why the store does not have the bytes of a file; "" if it has."""
    if not all(map(step.has_payload, file.rows)):
        return str(step.commit.without_tensors)
    unread = [row for row in file.rows if step.tables.number("offset")[row] < 0]
    return f"never read: {step.tables.label('problem')[unread[0]]}" if unread else ""


def _make_directory(directory: Path) -> None:
    """Make a directory and those above it. Not by recursion: a dump may be nested more deeply than that."""
    missing = []
    while not directory.exists():
        missing.append(directory)
        directory = directory.parent
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
