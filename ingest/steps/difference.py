"""How the files of a dump differ from a commit of their step: fresh, lost, or of another dump altogether."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self, TypeAlias

from workers.dump import paths
from workers.errors import UsageError
from workers.model import SourceFile, StepKey
from workers.store.commit import Commit
from workers.store.model import Origin, RowKind
from workers.store.tables import Tables
from workers.tasks.model import Entry

Content: TypeAlias = Hashable
"""What a file holds, whatever its name is: net, graph, operator, slot and occurrence of a tensor; the path of
any other file. Names of dump files have times in them, and differ when the same step is dumped again."""

_NAME_COLUMNS = ("net", "graph", "op_type", "op_name", "io")


@dataclass(frozen=True, slots=True)
class CommittedFiles:
    """The files of a commit."""

    versions: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Size and modification time (ns) of each, by its path as text."""
    contents: frozenset[Content] = frozenset()
    """What they hold."""

    @classmethod
    def of(cls, tables: Tables) -> CommittedFiles:
        """Return the files that an index names."""
        sources = tables.label("source").tolist()
        sizes, times = tables.number("source_size").tolist(), tables.number("mtime_ns").tolist()
        labels = [tables.label(name).tolist() for name in ("kind", *_NAME_COLUMNS)]
        numbers = [tables.number(name).tolist() for name in ("slot", "occurrence")]
        rows = zip(sources, *labels, *numbers, strict=True)
        return cls(
            dict(zip(sources, zip(sizes, times, strict=True), strict=True)),
            frozenset(
                _content(source, name) for source, kind, *name in rows if kind != RowKind.STATISTICS.value
            ),
        )


@dataclass(frozen=True, slots=True)
class StepDifference:
    """What the dump has of a step, compared with its commit."""

    fresh: tuple[str, ...]
    """Paths, as text, of files that the commit does not have as they are."""
    gone: int
    """How many files of the commit are not in the dump any more, neither under another name."""
    rewritten: int
    """How many files of the commit were written again in their place."""
    left: int
    """How many files of the commit are as they were."""
    lost: int
    """How many contents of the commit the dump does not have in any version."""
    is_dumped_again: bool
    """Whether the fresh files are another dump of the step, and not some that came late to the first: then
    nothing of the first is left, and most of its contents were written again."""
    is_newer_state: bool
    """Whether the fresh files are a later state of files that come and go, as run files do."""


def compare(
    committed: CommittedFiles, files: Sequence[SourceFile], entries: Iterable[Entry] = ()
) -> StepDifference:
    """Compare the files of a step with those of its commit.

    Args:
        committed: the files of the commit.
        files: what the dump has of the step.
        entries: what these files hold. A file without entries holds what its path says.
    """
    versions = committed.versions
    present = {paths.to_text(file.path): (file.size, file.mtime_ns) for file in files}
    fresh = [path for path, version in present.items() if versions.get(path) != version]
    contents = _contents_by_path(entries)
    # A file without known contents is identified by its path.
    of_all = {content for path in present for content in contents.get(path, (path,))}
    of_fresh = {content for path in fresh for content in contents.get(path, (path,))}
    rewritten, left = sum(path in versions for path in fresh), len(present) - len(fresh)
    # Under another name, a file that is as large and as old is the same file.
    moved = {present[path] for path in fresh if path not in versions}
    gone = [path for path in versions.keys() - present.keys() if versions[path] not in moved]
    return StepDifference(
        tuple(sorted(fresh)),
        len(gone),
        rewritten,
        left,
        len(committed.contents - of_all) if gone else 0,
        is_dumped_again=not left and 2 * len(committed.contents & of_fresh) > len(committed.contents),
        is_newer_state=bool(rewritten) or len(present) >= len(versions),
    )


def _contents_by_path(entries: Iterable[Entry]) -> dict[str, list[Content]]:
    contents: dict[str, list[Content]] = {}
    for entry in entries:
        if entry.kind is RowKind.STATISTICS:
            continue  # a table, which has an entry of its own, tells of tensors that it does not hold
        path, name = paths.to_text(entry.source.path), entry.name
        # As an index has them.
        labels = map(paths.to_text, (name.net, name.graph, name.op_type, name.op_name, name.io))
        contents.setdefault(path, []).append(_content(path, [*labels, name.slot, name.occurrence]))
    return contents


def _content(path: str, name: Sequence[object]) -> Content:
    """Return the content of a row, given net, graph, type and name of its operator, io, slot, occurrence."""
    _, _, op_type, op_name, *_ = name
    return tuple(name) if op_type or op_name else path


_REPLACE_HINT = "Give each dump a store of its own; --replace replaces what came from another one."
RANK_HINT = "The ids repeat from host to host. Give the ranks of this one: --rank-map 0=8,1=9."
#: Sources of numbers that stand in for the rank where a dump does not name it.
NO_RANKS = frozenset(["device id", "process id"])


def comes_from_other_dump(
    key: StepKey, origin: Origin, commit: Commit, other_roots: Collection[str] = ()
) -> UsageError | None:
    """Return the error for a commit that was made from another dump, or host, than this origin.

    Returns None if the commit came from the same dump. Compares the paths of the dumps; and the hosts, if the
    number in the key is the id of a device or process, because those repeat from host to host.

    Args:
        key: the step.
        origin: where the dump has it.
        commit: where the store has it from.
        other_roots: paths that the dump had before, or has elsewhere.
    """
    source = commit.record.source
    if source.root != paths.to_text(origin.root) and source.root not in other_roots:
        return UsageError(f"{key} is in the store already, from {source.root}", hint=_REPLACE_HINT)
    if origin.rank_from in NO_RANKS and source.host != origin.host:
        return UsageError(
            f"{key} is in the store already, from host {source.host}, and neither is known by its "
            f"rank but by its {origin.rank_from}",
            hint=RANK_HINT,
        )
    return None


#: How many files are named.
_NAMED = 20
_HINT = (
    "If it is another dump of the step, `dump-ingest ingest --replace` takes it and hides the commit before. "
    "If these files came late to the first dump, copy them away: only the dump has them."
)


class FilesNotTaken(UsageError):
    """Files of a step are fresh, and others, which its commit has, are gone: to take it could lose those."""

    hint = _HINT

    def __init__(self, message: str, *, hint: str | None = None, files: Sequence[str] = ()) -> None:
        super().__init__(message, hint=hint)
        self.files = tuple(files)
        """Those that no commit has, relative to the dump."""

    @classmethod
    def of(cls, key: StepKey, files: Sequence[str], gone: int) -> Self:
        """Return the error for a step.

        Args:
            key: the step.
            files: those that its commit does not have.
            gone: how many files of its commit the dump does not have any more.
        """
        named = ", ".join(files[:_NAMED])
        more = f" and {len(files) - _NAMED} more" if len(files) > _NAMED else ""
        return cls(
            f"{key}: {len(files)} {'file is' if len(files) == 1 else 'files are'} in the dump and not in the "
            f"store, and its commit stays, because {gone} of its files are gone from the dump. Not stored: "
            f"{named}{more}",
            files=files,
        )
