"""What the store already holds of the steps of a dump: the store alone keeps the state of the service.

How the files of a dump differ from a commit of their step is told here, too: fresh, lost, or of another dump.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections import deque
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self, TypeAlias

from ingest.reader.verifying import ExpectedObjects
from ingest.steps.events import AnomalousCommitRead
from ingest.steps.state import StepState, StepTable
from workers.dump import paths
from workers.errors import DamagedStore, StepRemoved, UsageError
from workers.events import Observer
from workers.model import SourceFile, StepKey, grouped
from workers.store import commit
from workers.store.commit import Commit, Tombstone, read_tombstones
from workers.store.model import Origin, RowKind
from workers.store.objects import ObjectStore
from workers.store.packed.pool import without_pool
from workers.store.step import StoredStep
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
    left: int
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


#: Commits that are fetched before the clock is looked at: at least, and at most.
_FEWEST, _MOST = 16, 256
#: Up to this many new steps of a rank are not asked for: the store is asked again before they are offered.
_FEW = 16


@dataclass(slots=True)
class Committed:
    """Asks the store for commits, and records them in the table. Bounded by the steps of the dump."""

    objects: ObjectStore
    table: StepTable
    take_removed: bool = False
    notify: Observer = lambda _: None
    """Called with the commits that were there before, if they count anomalies."""
    at_look_s: float = 0.25
    """How long `expect` waits for commits to be fetched, in seconds; the others are fetched by `check`."""
    _listed: set[int] = field(default_factory=set)
    _to_check: deque[StepState] = field(default_factory=deque)
    _tombstones: dict[int, dict[int, list[Tombstone]]] = field(default_factory=dict)
    """By rank and step: what was removed on purpose."""
    _turns: Iterator[int] = field(default_factory=itertools.count)
    _per_s: float = 0.0
    """Commits that the store gave in a second, when it was asked last."""

    def expect(self, keys: Collection[StepKey]) -> Collection[StepKey]:
        """Record which steps the dump has, and forget all others.

        Asks the store for those that are new, for a moment only, so that a dump of many committed steps does
        not keep new ones waiting.

        Returns:
            Those for which the store is still to be asked, by `check`: nothing is known of them.

        Raises:
            StoreError: the store refused; call again.
        """
        for state in self.table.follow(keys):
            # When it comes back, nothing is known of it: it may have been removed from the store meanwhile.
            self._tombstones.pop(state.key.rank, None)
        new = grouped((state.key.rank, state) for state in self.table if not state.is_expected)
        try:
            for rank, states in new.items():
                self._expect_of_rank(rank, states)
        finally:
            self._to_check = deque(state for state in self.table if state.is_unchecked)
        self.check(self.at_look_s)
        return {state.key for state in self._to_check}

    def check(self, for_s: float) -> bool:
        """Ask the store for steps it was not asked for yet, for about `for_s` seconds.

        Returns:
            Whether any are left.

        Raises:
            StoreError: the store refused; call again.
        """
        until = time.monotonic() + for_s
        while self._to_check:
            started = time.monotonic()
            at_once = int(min(max(self._per_s * for_s, _FEWEST), _MOST))
            states = list(itertools.islice(self._to_check, at_once))
            # A damaged commit counts as none here: the source still exists, and makes a good one.
            records = commit.read_records(self.objects, [state.key for state in states])
            for state in states:
                self._to_check.popleft()
                state.is_unchecked = False
                if (record := records.get(state.key)) is not None:
                    self._record(state, record.fingerprint)
                    state.stored = ExpectedObjects.of(record)
                    if (event := AnomalousCommitRead.of(record)) is not None:
                        self.notify(event)
            now = time.monotonic()
            self._per_s = len(states) / max(now - started, 1e-3)
            if now >= until:
                break
        return bool(self._to_check)

    @property
    def is_checked(self) -> bool:
        """Whether the store was asked for everything that it may have of the dump."""
        return not self._to_check

    def was_removed(self, key: StepKey, fingerprint: str, files: Sequence[SourceFile] = ()) -> bool:
        """Return whether a listing of a step is what was removed on purpose, or what is left of that.

        Never if `take_removed`. Asks the store once for each rank.

        Raises:
            StoreError: the store refused.
        """
        if self.take_removed or key.step is None:
            return False
        if key.rank not in self._tombstones:
            self._tombstones[key.rank] = read_tombstones(self.objects, key.rank)
        of_step = self._tombstones[key.rank].get(key.step, [])
        return any(tombstone.covers(fingerprint, files) for tombstone in of_step)

    def read(self, keys: Sequence[StepKey]) -> dict[StepKey, Commit]:
        """Ask the store for the commits of steps: another watcher may have made some meanwhile.

        Raises:
            StoreError: the store refused.
        """
        commits, _ = commit.read_many(self.objects, keys)
        for key in keys:
            state = self.table.get(key)
            if state is None:
                continue
            if key in commits:
                self._record(state, commits[key].fingerprint)
            elif state.committed is not None:
                state.committed = None
                self._tombstones.pop(key.rank, None)  # it was there: ask again what was removed
        return commits

    def recheck(self, limit: int) -> list[StepKey]:
        """Ask the store again for `limit` of the steps, each in its turn, and return those that went back.

        A step went back if its commit does not know of the one that was seen here. It was written by a task
        that was stopped, or by a request that reached the store long after it was given up. What others, who
        knew of that one, have committed since, stands.

        Raises:
            StoreError: the store refused; call again.
        """
        committed = (state for state in self.table if state.committed is not None)
        states = heapq.nsmallest(limit, committed, key=lambda state: state.turn)
        commits, _ = commit.read_many(self.objects, [state.key for state in states])
        reverted = []
        for state in states:
            current = commits.get(state.key)
            generations = current.record.generations if current is not None else ()
            if current is not None and state.committed not in {without_pool(name) for name in generations}:
                reverted.append(state.key)
                state.cover = None
                state.committed = without_pool(current.fingerprint)
            state.turn = next(self._turns)
        return reverted

    def files_of(self, made: Commit | None) -> CommittedFiles | DamagedStore | StepRemoved:
        """Return the files of a commit, from its index; or why that cannot be read."""
        if made is None:
            return CommittedFiles()
        try:
            return CommittedFiles.of(StoredStep(self.objects, made).tables)
        except (DamagedStore, StepRemoved) as exc:
            return exc

    def _expect_of_rank(self, rank: int, new: Sequence[StepState]) -> None:
        stored: set[StepKey] = set()
        if rank not in self._listed or len(new) > _FEW:
            stored.update(commit.list_keys(self.objects, [rank]))
            self._listed.add(rank)
        for state in new:
            state.is_expected, state.is_unchecked = True, state.key in stored

    def _record(self, state: StepState, fingerprint: str) -> None:
        if state.committed is None:
            state.turn = next(self._turns)
        state.committed = without_pool(fingerprint)
