"""The files of a dump that are not tensors, as the store keeps them: found by name, read in pieces."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from ingest.reader.indexed_step import IndexedStep, StepSource
from workers.errors import DamagedStore, UsageError
from workers.model import MIB
from workers.store.model import RowKind

_PIECE_NBYTES = 4 * MIB
#: Larger files are not read if they would have to be in memory completely.
MAX_WHOLE_NBYTES = 512 * MIB

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, eq=False)
class NonTensorFile:
    """One file of a dump that is not a tensor, in the store."""

    step: IndexedStep
    row: int
    source: str
    """The path, relative to the dump."""

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

    store: StepSource
    rank: int
    problems: list[str] = field(default_factory=list)
    _files: dict[tuple[int, int | None], dict[str, NonTensorFile]] = field(default_factory=dict)
    """By rank and step, then path."""

    def of_step(self, step: int | None) -> Mapping[str, NonTensorFile]:
        """Return the files of a step by path; with None, those that do not belong to a step."""
        return self._list(self.rank, step)

    def nearest_above(self, step: int | None, source: str, name: str) -> NonTensorFile | None:
        """Return the file of that name in the directory of the path `source`, or in the next one above it."""
        files = self.of_step(step)
        directory = source
        while directory:
            directory = directory.rpartition("/")[0]
            if file := files.get(f"{directory}/{name}" if directory else name):
                return file
        return None

    def of_run(self, name: re.Pattern[str]) -> list[NonTensorFile]:
        """Return the files with a matching name that do not belong to a step.

        If this rank has none, those of the lowest rank that has: MindSpore writes some only for rank 0.
        """
        own = _named(self.of_step(None).values(), name)
        if own:
            return own
        for rank in self.store.ranks:
            if rank != self.rank and (files := _named(self._list(rank, None).values(), name)):
                return files
        return []

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

    def _list(self, rank: int, step: int | None) -> dict[str, NonTensorFile]:
        key = (rank, step)
        if key not in self._files:
            try:
                opened = self.store.step(rank, step)
                sources = opened.tables.label("source")
            except UsageError:  # it is not in the store
                self._files[key] = {}
            except DamagedStore as exc:
                self._files[key] = {}
                self.problems.append(exc.message)
            else:
                rows = np.flatnonzero(opened.tables.label("kind") == RowKind.FILE.value)
                files = [NonTensorFile(opened, int(row), str(sources[row])) for row in rows]
                self._files[key] = {file.source: file for file in files}
        return self._files[key]


def nearest(files: Iterable[NonTensorFile], source: str) -> NonTensorFile | None:
    """Return the file whose path has the longest beginning in common with `source`: dumps can be nested."""
    parts = source.split("/")

    def shared_parts(file: NonTensorFile) -> int:
        own = file.source.split("/")
        return next((n for n, (a, b) in enumerate(zip(own, parts, strict=False)) if a != b), len(own))

    return max(files, key=shared_parts, default=None)


def _named(files: Iterable[NonTensorFile], name: re.Pattern[str]) -> list[NonTensorFile]:
    return [file for file in files if name.fullmatch(file.name)]
