"""Export: the original files back into a directory, byte for byte."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ingest.reader.store import Step
from workers import paths
from workers.digest import new_digest
from workers.errors import DamagedStore, UsageError
from workers.model import MIB, StepKey

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
    step: Step, directory: Path, rows: Iterable[int] | None = None, *, overwrite: bool = False
) -> Iterator[Exported]:
    """Write the source files of a step below `directory`, under the paths they had in the dump.

    Every digest is checked before a file appears under its name. A file that was quarantined comes back as it
    was; one that could not be read at the time is reported.

    Args:
        step: the step.
        directory: where to; made if missing.
        rows: rows of the index; all of them when None.
        overwrite: whether files that are there already may be replaced.

    Raises:
        UsageError: a file is there already, or `directory` cannot be written.
    """
    table = step.tables
    sources, headers, problems = table.label("source"), table.label("header"), table.label("problem")
    offsets, nbytes = table.number("offset"), table.number("nbytes")
    chosen = range(len(sources)) if rows is None else list(rows)
    readable = []
    if not overwrite:
        # Before anything is written: an export is whole, or it has not begun.
        for target in (paths.inside(directory, paths.from_text(str(sources[row]))) for row in chosen):
            if target.exists():
                raise UsageError(
                    f"{target} exists", hint="Export into an empty directory, or pass --overwrite."
                )
    for row in chosen:
        if offsets[row] >= 0:
            readable.append(row)
        else:
            source = str(sources[row])
            yield Exported(step.key, source, directory / source, 0, f"never read: {problems[row]}")
    for row, pieces in step.payloads(readable, _PIECE_NBYTES):
        source = str(sources[row])
        target = paths.inside(directory, paths.from_text(source))
        header = str(headers[row]).encode("latin-1")
        try:
            _write(target, header, pieces, table.digest[row].tobytes())
        except DamagedStore as exc:
            yield Exported(step.key, source, target, 0, exc.message)
        except OSError as exc:
            raise UsageError(f"cannot write {target}: {exc.strerror}") from exc
        else:
            yield Exported(step.key, source, target, len(header) + int(nbytes[row]))


def _write(target: Path, header: bytes, pieces: Iterator[bytearray], digest: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{uuid.uuid4().hex}.tmp")
    running = new_digest()
    try:
        with temporary.open("wb") as file:
            file.write(header)
            for piece in pieces:
                running.update(piece)
                file.write(piece)
        if running.digest() != digest:
            raise DamagedStore(f"{target.name}: the digest does not match")
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
