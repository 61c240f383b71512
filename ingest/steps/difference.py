"""How the files that the dump has of a step differ from those of its commit: what is fresh, what is lost."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from workers.dump import paths
from workers.model import SourceFile
from workers.store.model import RowKind
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
    is_mostly_there: bool
    """Whether more than half of the contents of the commit are among the fresh files."""
    has_fewer: bool
    """Whether the dump has fewer files than the commit."""

    @property
    def is_dumped_again(self) -> bool:
        """Whether the fresh files are another dump of the step, and not some that came late to the first.

        Then nothing of the first is left, and most of its tensors were written again.
        """
        return not self.left and self.is_mostly_there

    @property
    def is_newer_state(self) -> bool:
        """Whether the fresh files are a later state of files that come and go, as run files do."""
        return bool(self.rewritten) or not self.has_fewer


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
    of_fresh = _contents_of(fresh, contents)
    of_all = _contents_of(present, contents)
    # Under another name, a file that is as large and as old is the same file.
    moved = {present[path] for path in fresh if path not in versions}
    gone = [path for path in versions.keys() - present.keys() if versions[path] not in moved]
    return StepDifference(
        tuple(sorted(fresh)),
        len(gone),
        sum(path in versions for path in fresh),
        len(present) - len(fresh),
        len(committed.contents - of_all) if gone else 0,
        2 * len(committed.contents & of_fresh) > len(committed.contents),
        len(present) < len(versions),
    )


def _contents_of(files: Iterable[str], contents: Mapping[str, Sequence[Content]]) -> set[Content]:
    """Return the contents of files; a file without known contents is identified by its path."""
    return {content for path in files for content in contents.get(path, (path,))}


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
