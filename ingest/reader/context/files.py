"""The files of a store that are no tensors, found by name and read in pieces."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from ingest.reader.catalog import Catalog
from ingest.reader.step import Step
from workers.errors import DamagedStore, UsageError
from workers.model import MIB
from workers.store.model import RowKind

_PIECE_NBYTES = 4 * MIB
#: A larger file is not read where it has to be in memory as a whole.
MAX_WHOLE_NBYTES = 512 * MIB

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, eq=False)
class KeptFile:
    """One file of a dump, as the store keeps it."""

    step: Step
    row: int
    source: str
    """Relative to the dump."""

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.source.rpartition("/")[2]

    @property
    def nbytes(self) -> int:
        """Its size."""
        return int(self.step.tables.number("nbytes")[self.row])


@dataclass(eq=False)
class KeptFiles:
    """The kept files of one rank, step by step; and what was wrong with those that were read."""

    store: Catalog
    rank: int
    problems: list[str] = field(default_factory=list)
    _leaves: dict[tuple[int, int | None], dict[str, KeptFile]] = field(default_factory=dict)

    def of_step(self, step: int | None) -> Mapping[str, KeptFile]:
        """Return the files of one step by path, or with None those of no step; empty where there are none."""
        return self._of(self.rank, step)

    def beside(self, step: int | None, source: str, name: str) -> KeptFile | None:
        """Return the file of that name in the directory of the path `source`, or else the next one above."""
        files = self.of_step(step)
        directory = source
        while directory:
            directory = directory.rpartition("/")[0]
            if found := files.get(f"{directory}/{name}" if directory else name):
                return found
        return None

    def of_run(self, name: re.Pattern[str]) -> list[KeptFile]:
        """Return the files of no step whose name matches.

        Where this rank has none, those of the lowest rank that has: MindSpore writes some for rank 0 only.
        """
        own = _named(self.of_step(None).values(), name)
        if own:
            return own
        for rank in self.store.ranks:
            if rank != self.rank and (found := _named(self._of(rank, None).values(), name)):
                return found
        return []

    def read(self, file: KeptFile, *, limit: int = MAX_WHOLE_NBYTES) -> bytes | None:
        """Return the content, or None where it is damaged or larger than `limit`; then it is a problem."""
        if file.nbytes > limit:
            self.problems.append(f"{file.source}: {file.nbytes} bytes are too many to look into")
            return None
        return self.parse(file, b"".join)

    def parse(self, file: KeptFile, parse: Callable[[Iterable[bytearray]], _T]) -> _T | None:
        """Return what `parse` makes of the content in pieces, or None where it is damaged."""
        try:
            for _, pieces in file.step.payloads([file.row], _PIECE_NBYTES):
                return parse(pieces)
        except DamagedStore as exc:
            self.problems.append(f"{file.source}: {exc.message}")
        return None

    def complain(self, file: KeptFile, problems: Iterable[str]) -> None:
        """Keep what a parser found wrong."""
        self.problems += [f"{file.source}: {problem}" for problem in problems]

    def _of(self, rank: int, step: int | None) -> dict[str, KeptFile]:
        key = (rank, step)
        if key not in self._leaves:
            try:
                leaf = self.store.step(rank, step)
            except UsageError:
                self._leaves[key] = {}
            else:
                sources = leaf.tables.label("source")
                rows = np.flatnonzero(leaf.tables.label("kind") == RowKind.FILE.value)
                files = [KeptFile(leaf, int(row), str(sources[row])) for row in rows]
                self._leaves[key] = {file.source: file for file in files}
        return self._leaves[key]


def nearest(files: Iterable[KeptFile], source: str) -> KeptFile | None:
    """Return the file whose directory has most in common with the path `source`: dumps can be nested."""
    parts = source.split("/")

    def shared(file: KeptFile) -> int:
        own = file.source.split("/")
        return next((n for n, (a, b) in enumerate(zip(own, parts, strict=False)) if a != b), len(own))

    return max(files, key=shared, default=None)


def _named(files: Iterable[KeptFile], name: re.Pattern[str]) -> list[KeptFile]:
    return [file for file in files if name.fullmatch(file.name)]
