"""The files of a dump that are not tensors, as the store keeps them: found by name, read in pieces."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from workers.errors import DamagedStore, UsageError
from workers.model import MIB
from workers.store.model import RowKind

if TYPE_CHECKING:
    from ingest.reader.catalog import Catalog
    from ingest.reader.step import Step

_PIECE_NBYTES = 4 * MIB
#: Larger files are not read if they would have to be in memory completely.
MAX_WHOLE_NBYTES = 512 * MIB
_MAX_PROBLEMS = 20

_T = TypeVar("_T")


class Problems(list[str]):
    """What is wrong with one file, up to twenty: a damaged file could have a problem in each line."""

    def append(self, problem: str) -> None:
        """Add a problem, unless there are many."""
        if len(self) < _MAX_PROBLEMS:
            super().append(problem)


@dataclass(frozen=True, slots=True, eq=False)
class NonTensorFile:
    """One file in the store that is not a tensor; `source` is its path, relative to the dump."""

    step: Step
    row: int
    source: str

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.source.rpartition("/")[2]

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return int(self.step.tables.number("nbytes")[self.row])


@dataclass(eq=False)
class NonTensorFiles:
    """The files of one rank that are not tensors, by step, and the problems of those that were read."""

    store: Catalog
    rank: int
    problems: list[str] = field(default_factory=list)
    _files: dict[tuple[int, int | None], dict[str, NonTensorFile]] = field(default_factory=dict)
    """By rank and step, then path."""

    def of_step(self, step: int | None) -> Mapping[str, NonTensorFile]:
        """Return the files of a step by path; with None, those that do not belong to a step."""
        return self._of(self.rank, step)

    def nearest_above(self, step: int | None, source: str, name: str) -> NonTensorFile | None:
        """Return the file of that name in the directory of the path `source`, or in the next one above it."""
        files, directory = self.of_step(step), source
        while directory:
            directory = directory.rpartition("/")[0]
            if file := files.get(f"{directory}/{name}" if directory else name):
                return file
        return None

    def of_run(self, name: re.Pattern[str]) -> list[NonTensorFile]:
        """Return the files with a matching name that do not belong to a step.

        If this rank has none, those of the lowest rank that has: MindSpore writes some only for rank 0.
        """
        own = self._of(self.rank, None).values()
        if files := [file for file in own if name.fullmatch(file.name)]:
            return files
        others = (self._of(rank, None).values() for rank in self.store.ranks if rank != self.rank)
        named = ([file for file in files if name.fullmatch(file.name)] for files in others)
        return next(filter(None, named), [])

    def read(self, file: NonTensorFile, *, limit: int = MAX_WHOLE_NBYTES) -> bytes | None:
        """Return the content; None, and a problem, if it is damaged or has more than `limit` bytes."""
        if file.nbytes > limit:
            self.problems.append(f"{file.source}: {file.nbytes} bytes, more than the {limit} that are read")
            return None
        return self.parse(file, b"".join)

    def parse(self, file: NonTensorFile, parse: Callable[[Iterable[bytes]], _T]) -> _T | None:
        """Return what `parse` returns for the content in pieces; None, and a problem, if it is damaged."""
        try:
            for _, pieces in file.step.payloads([file.row], _PIECE_NBYTES):
                return parse(pieces)
        except DamagedStore as exc:
            self.problems.append(f"{file.source}: {exc.message}")
        return None

    def add_problems(self, file: NonTensorFile, problems: Iterable[str]) -> None:
        """Add the problems that a parser reported for a file."""
        self.problems += [f"{file.source}: {problem}" for problem in problems]

    def _of(self, rank: int, step: int | None) -> dict[str, NonTensorFile]:
        if (rank, step) not in self._files:
            files = self._files[rank, step] = {}
            try:
                opened = self.store.step(rank, step)
                kinds, sources = opened.tables.label("kind"), opened.tables.label("source")
            except UsageError:  # it is not in the store
                return files
            except DamagedStore as exc:
                self.problems.append(exc.message)
                return files
            for row in np.flatnonzero(kinds == RowKind.FILE.value).tolist():
                files[str(sources[row])] = NonTensorFile(opened, row, str(sources[row]))
        return self._files[rank, step]


def nearest(files: Iterable[NonTensorFile], source: str) -> NonTensorFile | None:
    """Return the file whose path has the longest beginning in common with `source`: dumps can be nested."""
    parts = source.split("/")

    def shared_parts(file: NonTensorFile) -> int:
        own = file.source.split("/")
        return next((n for n, (a, b) in enumerate(zip(own, parts, strict=False)) if a != b), len(own))

    return max(files, key=shared_parts, default=None)
