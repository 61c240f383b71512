"""What every layout provides, and the values that describe a dump.

The patterns of its directory trees are matched level by level while a tree is walked.

    rank_{rank}!/{net}/{graph}/{step}

Each level is literal text with fields in braces; `!` follows the level that proves that this is a dump and
not any other tree of directories. A field matches what `FIELDS` says, or anything if it is not listed there.
A pattern may give it a regular expression of its own: `{net:[a-z]+}`. A new field that tells the step of a
place is one entry of `FIELDS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, Self, TypeAlias, TypeVar

import msgspec

from workers.dump.formats.distcp import Chunk
from workers.dump.formats.header import Container
from workers.dump.model import ReportedStatistics, TensorName
from workers.model import SourceFile, StepKey

#: What GE writes if it has no step yet.
_NO_STEP = 2147483647


def _step(number: int) -> int | None:
    return None if number == _NO_STEP else number


@dataclass(frozen=True, slots=True)
class Field:
    """What is known of a field by its name."""

    expression: str
    """The regular expression that it matches, unless a pattern gives it another."""
    step: Callable[[int], int | None] | None = None
    """Returns the step, if the field is a number that tells the step."""
    is_of_run: bool = False
    """Whether it differs if a job is started again."""


#: Fields that number processes along an axis of parallelism, the slowest first.
MESH_FIELDS = ("pipeline_parallel", "expert_parallel", "data_parallel", "tensor_parallel")
#: Fields that mean the same in every layout. Ranks and devices are spelled as programs spell them: with
#: `rank_01` next to `rank_1`, one of the two would be lost. A `time` may be an invalid one: some dumps have
#: times with 66 seconds. If a path has several steps, the first of these fields counts: the user's step comes
#: before the iteration that the graph engine counts.
FIELDS: Mapping[str, Field] = {
    "rank": Field(r"0|[1-9][0-9]{0,8}"),
    "device": Field(r"0|[1-9][0-9]{0,8}"),
    "pid": Field(r"[1-9][0-9]{0,8}", is_of_run=True),
    "time": Field(r"[0-9]{14}", is_of_run=True),
    # TorchAir once named directories after the next step.
    "previous_step": Field(r"[0-9]{1,18}", lambda number: max(number - 1, 0)),
    "step": Field(r"[0-9]{1,18}", _step),
    "iteration": Field(r"[0-9]{1,18}", _step),
    **{name: Field(r"[0-9]{1,9}") for name in MESH_FIELDS},
}
#: The fields that tell the step. The first of them that a path has counts.
STEP_FIELDS: Mapping[str, Callable[[int], int | None]] = {
    name: field.step for name, field in FIELDS.items() if field.step is not None
}
_NOT_IN_SERIES = frozenset(
    name for name, field in FIELDS.items() if field.is_of_run or field.step is not None
)


def step_of(fields: Mapping[str, str]) -> int | None:
    """Return the step of a place, None if it has none."""
    for name, to_step in STEP_FIELDS.items():
        if name in fields:
            return to_step(int(fields[name]))
    return None


def series_of(fields: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the fields that places of successive steps have in common."""
    return tuple(sorted(item for item in fields.items() if item[0] not in _NOT_IN_SERIES))


_PLACEHOLDER = re.compile(r"\{(\w+)(?::((?:[^{}]|\{[^{}]*\})*))?\}")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A sequence of directory names, from the root of a dump down to a directory that holds a step."""

    text: str
    levels: tuple[re.Pattern[str], ...]
    proof: int
    """How many levels must fit before the tree counts as a dump."""

    of_files: bool = False
    """Whether the last level is that of the names of files."""

    @property
    def directories(self) -> int:
        """How many levels are directories."""
        return len(self.levels) - self.of_files

    def match(self, level: int, name: str) -> dict[str, str] | None:
        """Return the fields in a directory name at one level, or None if it does not fit."""
        match = self.levels[level].fullmatch(name)
        return None if match is None else match.groupdict()

    def match_path(self, path: str) -> dict[str, str] | None:
        """Return the fields in a path from the root of a dump, or None if it does not fit to the end."""
        names = path.split("/")
        matches = [level.fullmatch(name) for level, name in zip(self.levels, names, strict=False)]
        fields = [match.groupdict() for match in matches if match is not None]
        if not len(fields) == len(names) == len(self.levels):
            return None
        return {name: value for of_level in fields for name, value in of_level.items()}


def parse(text: str, *, of_files: bool = False) -> Pattern:
    r"""Return the pattern that a text describes.

    >>> parse("rank_{rank}!/{net}").match(0, "rank_3")
    {'rank': '3'}
    """
    levels = text.split("/")
    proof = next((number for number, level in enumerate(levels, 1) if level.endswith("!")), len(levels))
    return Pattern(
        text,
        tuple(re.compile(_expression(level.removesuffix("!")), re.DOTALL | re.ASCII) for level in levels),
        proof,
        of_files,
    )


def _expression(level: str) -> str:
    parts, at = [], 0
    for placeholder in _PLACEHOLDER.finditer(level):
        name, own = placeholder.groups()
        expression = own or (FIELDS[name].expression if name in FIELDS else ".+")
        parts += [re.escape(level[at : placeholder.start()]), f"(?P<{name}>{expression})"]
        at = placeholder.end()
    return "".join([*parts, re.escape(level[at:])])


Value = TypeVar("Value")
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
class PathRank:
    """What a path says about its rank: one of three numbers, named by `kind`, or a place in the mesh."""

    kind: str
    """`rank`, `device`, `pid` or `mesh`."""
    number: int
    """Of `mesh`: 0."""
    place: tuple[int, ...] = ()
    """Of `mesh`: its numbers along the axes, the slowest first."""

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> Self | None:
        """Return the first of the numbers that the fields of a pattern have, or None."""
        for kind in ("rank", "device", "pid"):
            if kind in fields:
                return cls(kind, int(fields[kind]))
        if fields.keys().isdisjoint(MESH_FIELDS):
            return None
        return cls("mesh", 0, tuple(int(fields.get(name, "0")) for name in MESH_FIELDS))


@dataclass(frozen=True, slots=True)
class Place:
    """One directory of a dump that holds a step of one rank, or a part of it; or some files in one."""

    layout: Layout
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

    @property
    def rank(self) -> PathRank | None:
        """What its path says about its rank."""
        return PathRank.of(self.fields)


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
    records: Mapping[str, str] = field(default_factory=dict)
    """What files without tensors say of the step, by path: JSON objects."""

    @classmethod
    def joined(cls, parts: Iterable[Description]) -> Description:
        """Return what several descriptions say together."""
        parts = list(parts)
        return cls(
            _merged(part.named for part in parts),
            [row for part in parts for row in part.reported],
            [problem for part in parts for problem in part.problems],
            next((part.unfinished for part in parts if part.unfinished), ""),
            frozenset().union(*(part.sections for part in parts)),
            _merged(part.records for part in parts),
        )


def _merged(parts: Iterable[Mapping[str, Value]]) -> dict[str, Value]:
    return {path: value for part in parts for path, value in part.items()}


@dataclass(frozen=True, slots=True)
class System:
    """One kind of dump that a layout covers; together they make the table in docs/formats.md."""

    name: str
    """Who writes it, and in which versions."""
    place: str
    """A directory as that system names it, with some rank and step."""
    holds: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """One family of directory trees."""

    name: str
    """Its name in commit records."""
    patterns: Sequence[Pattern] = ()
    """The directories that hold steps. The first pattern that fits a directory counts."""
    file_patterns: Sequence[Pattern] = ()
    """The same for directories that hold files of several ranks or steps: the last level is that of the names
    of files, which tell rank and step."""
    implied: Mapping[str, str] = field(default_factory=dict)
    """Fields of every place, for dumps that do not name their step."""
    systems: Sequence[System] = ()
    transient: Sequence[Pattern] = ()
    """Directories from which the writer moves files to their place; their files are ignored."""
    evidence: re.Pattern[str] | None = None
    """If other programs use the same names of directories: the name of an entry that a place must have."""
    needs_evidence: bool = False
    """Whether a directory is not a dump without that entry, although it fits a pattern to its end."""
    proves_dump: bool = True
    """Whether a tree in which its patterns fit is a dump: not if they tell neither rank nor step."""
    is_checkpoint: bool = False
    """Whether it covers checkpoints. A job restarts from them, so their files are never deleted."""
    tensor_suffixes: frozenset[str] = frozenset()
    """If the user described the whole tree: directories that hold such files and fit no pattern are told."""
    declared: str = ""
    """If the user described the whole tree: how."""
    own_file: re.Pattern[str] | None = None
    """If the user described the whole tree: the name of a file by which a directory belongs to this layout,
    even if other layouts cover directories of such names."""
    run_field: str = ""
    """The field that differs if a job is started again, if it counts its steps from 0 then: the steps of two
    runs would be mixed. "" if there is none."""
    content: re.Pattern[bytes] | None = None
    """If the names of files prove nothing: what must be found in the first bytes of each file."""
    step_of_line: re.Pattern[bytes] | None = None
    """For logs of many steps, of which each line tells its own: what matches a line, with its `step` and its
    `time` (`%Y-%m-%d %H:%M:%S,%f`)."""
    near_miss: re.Pattern[str] | None = None
    """Paths of directories that resemble those of a rank. If they fit no pattern, they are reported."""
    configuration: str = ""
    """The end of the path of files, outside of places, that `expected_steps` can read; "" for none."""

    of_path: Callable[[Place, str], TensorFile | None] = lambda place, path: None  # noqa: ARG005
    """Returns what the path of a file in a place says; None if the file is kept as one."""
    of_place: Callable[[Place, Sequence[SourceFile], ReadSmall], Description] | None = None
    """Describes the files of one place, as `describe` does, if the name of each alone does not say enough."""
    expected_steps: Callable[[bytes], frozenset[int]] = lambda configuration: frozenset()  # noqa: ARG005
    """Returns the steps that a configuration asks for; empty if it does not say, or asks for all."""

    def describe(self, place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:
        """Describe the files of one place. Opens only what it reads through `read`.

        Args:
            place: the directory.
            files: everything in it and in the directories below it, in order of path.
            read: reads a small file (a mapping, a table, JSON), by its path.
        """
        if self.of_place is not None:
            return self.of_place(place, files, read)
        named = ((file.path, self.of_path(place, file.path)) for file in files)
        return Description({path: tensor for path, tensor in named if tensor is not None})


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
    places: tuple[Place, ...] = ()

    @property
    def nbytes(self) -> int:
        """Total bytes of the files."""
        return sum(file.size for file in self.files)

    @property
    def naming(self) -> str:
        """What makes names of tensors from paths: its layouts, and the patterns that the user declared."""
        declared = {place.layout.declared for place in self.places} - {""}
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
