"""What every layout answers, and the values it answers with."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

from ingest.layouts.pattern import Pattern
from workers.dump.formats.header import Container
from workers.dump.model import ReportedStatistics, TensorName
from workers.model import SourceFile, StepKey

ReadSmall: TypeAlias = Callable[[str], bytes | None]
"""Returns the content of a small file of the dump, by its path; None if it cannot be had now."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in the dump that cannot be taken in, and what to do about it."""

    path: str
    reason: str
    hint: str = ""
    denied: bool = False
    """Whether the user has to do something first (grant a permission, name a rank): then nothing of the step
    is taken until that is done."""

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Place:
    """One directory of a dump that holds a step of one rank, or a part of it."""

    path: str
    """Relative to the dump."""
    fields: Mapping[str, str]
    """What the names of the directories say, by the fields of the pattern: `rank`, `step`, `graph`..."""

    @property
    def series(self) -> tuple[tuple[str, str], ...]:
        """What places that follow one another, step by step, have in common."""
        return tuple(sorted(item for item in self.fields.items() if item[0] not in _NOT_IN_SERIES))


#: A job that starts again goes on in a directory of another time.
_NOT_IN_SERIES = frozenset(["step", "iteration", "previous_step", "time", "pid"])


class TensorFile(NamedTuple):
    """A file that claims to hold tensors."""

    name: TensorName | None
    """What its path tells; None where that is not understood. What the content tells is added later."""
    container: Container = Container.NPY
    dtype: str = ""
    """For `Container.RAW`: the element type, by its name in `workers.arrays.dtypes`."""
    shape: tuple[int, ...] | None = None
    """For `Container.RAW`: the shape, where the name gives it."""
    settled: bool = True
    """False while its real name is still to be written elsewhere (`mapping.csv`)."""
    any_argument: bool = False
    """Whether its writer saves arguments that are no tensors in such files, too, as pickled objects."""


@dataclass(frozen=True, slots=True)
class Description:
    """What the names, and the small files, of one place tell about the files in it."""

    named: Mapping[str, TensorFile] = field(default_factory=dict)
    """By path: the files that hold tensors. All others are kept as files."""
    reported: Sequence[ReportedStatistics] = ()
    problems: Sequence[Problem] = ()
    unfinished: str = ""
    """A file that is still being written, as its content shows (JSON that does not parse); or ""."""


@dataclass(frozen=True, slots=True)
class System:
    """One kind of dump that a layout takes; together they make the table in docs/formats.md."""

    name: str
    """Who writes it, and in which versions."""
    place: str
    """A directory as that system names it, with some rank and step."""
    holds: str
    """What is read there."""


class Layout(Protocol):
    """One family of directory trees."""

    name: str
    """As it stands in commit records."""
    patterns: Sequence[Pattern]
    """The directories that hold steps. The first pattern that fits a directory counts."""
    systems: Sequence[System]
    """What writes such trees."""
    transient: Sequence[Pattern]
    """Directories from which the writer moves files to their place."""

    @property
    def evidence(self) -> re.Pattern[str] | None:
        """The name of an entry without which a place is not this layout's: others use such names, too."""

    def describe(self, place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:
        """Tell what the files of one place are. Opens nothing but what it reads through `read`.

        Args:
            place: the directory.
            files: everything in it and in the directories below it, in order of path.
            read: reads a small file (a mapping, a table, JSON), by its path.
        """


@dataclass(frozen=True, slots=True)
class LayoutPlace:
    """A place, and the layout that knows what it holds."""

    layout: Layout
    place: Place


@dataclass(frozen=True, slots=True)
class Listing:
    """All that one rank has dumped in one step, as seen at one moment."""

    key: StepKey
    files: tuple[SourceFile, ...]
    """In order of path."""
    newest_change: float
    """Unix time of the newest change of content or name; 0 for no files."""
    later_begun: bool
    """Whether a later step of the same rank had begun before this listing was made."""
    directories: tuple[tuple[str, int], ...] = ()
    """Path and modification time of each directory listed."""
    listed_at: float = 0.0
    """Unix time at which the listing began."""
    problems: tuple[Problem, ...] = ()
    layout: str = ""
    """Names of the layouts of its places, as they stand in the commit record."""
    rank_from: str = "path"
    """What gave the rank; see `workers.store.model.Origin`."""
    places: tuple[LayoutPlace, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class DumpScan:
    """One look at a dump."""

    listings: tuple[Listing, ...]
    problems: tuple[Problem, ...]
    """What concerns no single step."""
    expected_steps: frozenset[int] | None = None
    """The steps that the dump's configuration asks for; None when it does not say, or asks for all."""
    unlisted: frozenset[StepKey] = frozenset()
    """Steps that are there, and were not listed because the caller did not want it yet."""


#: Given the steps of a dump, returns those that need not be listed now.
Defer: TypeAlias = Callable[[Collection[StepKey]], Collection[StepKey]]


class Dump(Protocol):
    """One dump directory."""

    root: Path

    def scan(self, known: Mapping[StepKey, Listing], defer: Defer = lambda _: ()) -> DumpScan:
        """List every step now. Reads directories only.

        Args:
            known: listings that may be returned again for directories that have not changed since.
            defer: asked once all names are known, before any file is listed; also for the run files of each
                rank, which are always listed.
        """

    def describe(self, listing: Listing) -> Description:
        """Return what names and small files tell about the files of a step."""
