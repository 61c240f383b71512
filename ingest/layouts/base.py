"""What every layout provides, and the values that describe a dump."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Protocol, TypeAlias

import msgspec

from ingest.layouts.pattern import Pattern
from workers.dump.formats.distcp import Chunk
from workers.dump.formats.header import Container
from workers.dump.model import ReportedStatistics, TensorName
from workers.model import SourceFile, StepKey

ReadSmall: TypeAlias = Callable[[str], bytes | None]
"""Returns the content of a small file of the dump, by its path; None if it cannot be read now."""


class ProblemKind(StrEnum):
    """What keeps something from being ingested."""

    DENIED = "denied"
    """The user has to grant a permission, or to name a rank."""
    NAME = "name"
    """A directory of a rank whose name no dump system uses: nothing in it is ingested."""
    OTHER = "other"
    """Its content or its kind of file; the rest of its step is ingested."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in the dump that cannot be ingested, and what to do about it."""

    path: str
    reason: str
    hint: str = ""
    denied: bool = False
    """Whether the user has to do something first (grant a permission, name a rank). Until then, nothing of
    the step is ingested."""
    left_out: bool = False
    """Whether it looks like a rank or a step, and is not taken for one."""
    misnamed: bool = False
    """Whether the name of a directory is what is wrong."""

    @property
    def kind(self) -> ProblemKind:
        """What keeps it from being ingested."""
        if self.denied:
            return ProblemKind.DENIED
        return ProblemKind.NAME if self.misnamed else ProblemKind.OTHER

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Section:
    """The lines of a log that belong to one step."""

    ranges: tuple[tuple[int, int], ...]
    """Where they begin and end in the log, in bytes; none touches the next one."""
    changed_ns: int
    """When the last of them was written, by its own time stamp. Below the millisecond stands a digest of the
    lines: it differs if they do."""
    is_last: bool = False
    """Whether lines may still be added: no later step has begun in this log."""

    @property
    def nbytes(self) -> int:
        """Total bytes of the lines."""
        return sum(end - begin for begin, end in self.ranges)


@dataclass(frozen=True, slots=True)
class Place:
    """One directory of a dump that holds a step of one rank, or a part of it; or some files in one."""

    path: str
    """Relative to the dump. If only some files of a directory are meant, with what their names say behind it:
    this path does not exist."""
    fields: Mapping[str, str]
    """What the names of the directories say, by the fields of the pattern: `rank`, `step`, `graph`..."""
    names: tuple[str, ...] | None = None
    """The names of the files, if only some files of the directory are meant; sorted."""
    section: Section | None = None
    """The part of the only file that is meant, if others belong to other steps. As a whole, the file is one
    of the run files."""

    @property
    def directory(self) -> str:
        """The directory that holds its files, relative to the dump."""
        return self.path if self.names is None else self.path.rpartition("/")[0]


NameMember: TypeAlias = Callable[[TensorName, tuple[str, ...], int], TensorName]
"""Returns the name of one tensor of a file, given that of the file, the keys and indices that lead to the
tensor in it, and its place among the tensors of the file."""


def join_member(name: TensorName, path: tuple[str, ...], number: int) -> TensorName:  # noqa: ARG001  (see `NameMember`)
    """Return the name of a tensor of a file: that of the file, and behind it the name in the file."""
    return name._replace(op_name=".".join((name.op_name, *path))) if path else name


def join_slot(name: TensorName, path: tuple[str, ...], number: int) -> TensorName:
    """Return the same, with an index that is the whole way to the tensor as its slot."""
    if len(path) == 1 and path[0].isdecimal():
        return name._replace(slot=int(path[0][:9]))
    return join_member(name, path, number)


def below(key: str, join: NameMember) -> NameMember:
    """Return how tensors are named that are all under one key, which says nothing."""
    return lambda name, path, number: join(name, path[1:] if path[:1] == (key,) else path, number)


class TensorFile(msgspec.Struct, frozen=True):
    """A file that claims to hold tensors."""

    name: TensorName | None
    """What its path says; None if it is not understood. What the content says is added later."""
    container: Container = Container.NPY
    dtype: str = ""
    """For `Container.RAW`: the element type, by its name in `workers.arrays.dtypes`."""
    shape: tuple[int, ...] | None = None
    """For `Container.RAW`: the shape, if the name has it."""
    settled: bool = True
    """False while its real name has not been written yet (to `mapping.csv`)."""
    any_argument: bool = False
    """Whether its writer also saves arguments that are not tensors in such files, as pickled objects."""
    name_member: NameMember = join_member
    """How its tensors are named if it holds several."""
    chunks: Mapping[int, Chunk] = MappingProxyType({})
    """For `Container.DISTCP`: what is known of its archives, by where they begin."""
    attributes: Mapping[str, str] = MappingProxyType({})
    """What another file says of its tensors, by the keys that lead to each, joined by dots: JSON objects."""


@dataclass(frozen=True, slots=True)
class Description:
    """What the names and the small files of one place say about the files in it."""

    named: Mapping[str, TensorFile] = field(default_factory=dict)
    """The files that hold tensors, by path. All others are kept as files."""
    reported: Sequence[ReportedStatistics] = ()
    problems: Sequence[Problem] = ()
    unfinished: str = ""
    """A file whose content shows that it is still being written (JSON that does not parse); or ""."""
    sections: frozenset[str] = frozenset()
    """The paths of the logs of which this is a section: whole, they are kept with the run files."""


@dataclass(frozen=True, slots=True)
class System:
    """One kind of dump that a layout covers; together they make the table in docs/formats.md."""

    name: str
    """Who writes it, and in which versions."""
    place: str
    """A directory as that system names it, with some rank and step."""
    holds: str
    """What is read there."""


class Layout(ABC):
    """One family of directory trees. Has no state."""

    name: ClassVar[str]
    """Its name in commit records."""
    patterns: ClassVar[Sequence[Pattern]]
    """The directories that hold steps. The first pattern that fits a directory counts."""
    file_patterns: ClassVar[Sequence[Pattern]] = ()
    """The same for directories that hold files of several ranks or steps: the last level is that of the names
    of files, which tell rank and step."""
    implied: ClassVar[Mapping[str, str]] = {}
    """Fields of every place, for dumps that do not name their step."""
    systems: ClassVar[Sequence[System]]
    """What writes such trees."""
    transient: ClassVar[Sequence[Pattern]] = ()
    """Directories from which the writer moves files to their place; their files are ignored."""
    evidence: ClassVar[re.Pattern[str] | None] = None
    """If other programs use the same names of directories: the name of an entry that a place must have."""
    needs_evidence: ClassVar[bool] = False
    """Whether a directory is not a dump without that entry, although it fits a pattern to its end."""
    proves_dump: ClassVar[bool] = True
    """Whether a tree in which its patterns fit is a dump: not if they tell neither rank nor step."""
    is_checkpoint: ClassVar[bool] = False
    """Whether it covers checkpoints. A job restarts from them, so their files are never deleted."""
    tensor_suffixes: ClassVar[frozenset[str]] = frozenset()
    """If the user described the whole tree: directories that hold such files and fit no pattern are told."""
    declared: ClassVar[str] = ""
    """If the user described the whole tree: how."""
    own_file: ClassVar[re.Pattern[str] | None] = None
    """If the user described the whole tree: the name of a file by which a directory belongs to this layout,
    even if other layouts cover directories of such names."""
    run_field: ClassVar[str] = ""
    """The field that differs if a job is started again, if it counts its steps from 0 then: the steps of two
    runs would be mixed. "" if there is none."""
    content: ClassVar[re.Pattern[bytes] | None] = None
    """If the names of files prove nothing: what must be found in the first bytes of each file."""
    step_of_line: ClassVar[re.Pattern[bytes] | None] = None
    """For logs of many steps, of which each line tells its own: what matches a line, with its `step` and its
    `time` (`%Y-%m-%d %H:%M:%S,%f`)."""
    near_miss: ClassVar[re.Pattern[str] | None] = None
    """Paths of directories that resemble those of a rank. If they fit no pattern, they are reported."""
    configuration: ClassVar[str] = ""
    """The end of the path of files, outside of places, that `expected_steps` can read; "" for none."""

    @abstractmethod
    def describe(self, place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:
        """Describe the files of one place. Opens only what it reads through `read`.

        Args:
            place: the directory.
            files: everything in it and in the directories below it, in order of path.
            read: reads a small file (a mapping, a table, JSON), by its path.
        """

    def expected_steps(self, configuration: bytes) -> frozenset[int]:  # noqa: ARG002
        """Return the steps that a configuration asks for; empty if it does not say, or asks for all."""
        return frozenset()


@dataclass(frozen=True, slots=True)
class LayoutPlace:
    """A place, and the layout that knows what it holds."""

    layout: Layout
    place: Place


@dataclass(frozen=True, slots=True)
class Listing:
    """Everything that one rank has dumped in one step, as seen at one moment."""

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
    """Names of the layouts of its places, as the commit record has them."""
    rank_from: str = "path"
    """Where the rank comes from; see `workers.store.model.Origin`."""
    places: tuple[LayoutPlace, ...] = ()

    @property
    def nbytes(self) -> int:
        """Total bytes of the files."""
        return sum(file.size for file in self.files)

    @property
    def naming(self) -> str:
        """What makes names of tensors from paths: its layouts, and the patterns that the user declared."""
        declared = {located.layout.declared for located in self.places} - {""}
        return "\n".join((self.layout, *sorted(declared)))


@dataclass(frozen=True, slots=True)
class DumpScan:
    """One look at a dump."""

    listings: tuple[Listing, ...]
    problems: tuple[Problem, ...]
    """Those that do not belong to a single step."""
    expected_steps: frozenset[int] | None = None
    """The steps that the dump's configuration asks for; None if it does not say, or asks for all."""
    unlisted: frozenset[StepKey] = frozenset()
    """Steps that exist, but were not listed: the caller deferred them, or they are after the beginning."""
    expected_ranks: int | None = None
    """How many ranks the rank tables in the dump name; None without a rank table."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """The part of a dump that is listed first, so that work on it begins before the rest is listed."""

    files: int
    """Further steps are not listed once those that are listed have this many files."""
    newest_first: bool = False


#: Given the steps of a dump, returns those that do not have to be listed now.
Defer: TypeAlias = Callable[[Collection[StepKey]], Collection[StepKey]]


class Dump(Protocol):
    """One dump directory."""

    root: Path

    def scan(
        self,
        known: Mapping[StepKey, Listing],
        defer: Defer = lambda _: (),
        beginning: Beginning | None = None,
    ) -> DumpScan:
        """List every step now. Reads directories only.

        Args:
            known: listings that may be returned again if their directories have not changed since.
            defer: called when all names are known, before any file is listed. It is also given the run files
                of each rank, which are always listed.
            beginning: what to list of the steps that are neither known nor deferred; None for all of them.
        """

    def describe(self, listing: Listing) -> Description:
        """Describe the files of one place. Opens only what it reads through `read`."""
