"""The dump: files in memory, what a look at them shows, and every state that a step was ever in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

from ingest.layouts.base import Beginning, Defer, Description, DumpScan, Listing
from ingest.layouts.walk import TRUST_S
from ingest.planning.inspection import Inspected, Inspection
from tests.simulation.kernel import EPOCH, Kernel, Process
from workers.errors import SourceChanged
from workers.model import SourceFile, StepKey

ROOT = Path("/dump")
WHOLE_NBYTES = 100
_HALF_NBYTES = 60
#: The tick of the file system, as in `ingest.layouts.walk`.
_TICK_S = 2.0


class Content(NamedTuple):
    """What is in a file: bytes that were written once, and of which there may be a half."""

    version: int
    is_whole: bool

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return WHOLE_NBYTES if self.is_whole else _HALF_NBYTES


class File(NamedTuple):
    """A file as it is at one moment."""

    content: Content
    mtime_ns: int


State: TypeAlias = frozenset[tuple[str, int, int]]
"""Path, size and modification time of each file of a step at one moment."""


@dataclass(slots=True)
class Lasted:
    """When a step was in a state, in virtual seconds; and whether a later step had begun at the end of it."""

    since: float
    until: float | None = None


@dataclass(slots=True)
class SimulatedDump:
    """Files that a job writes, and all that they ever were."""

    kernel: Kernel
    files: dict[StepKey, dict[str, File]] = field(default_factory=dict)
    directory_ns: dict[StepKey, int] = field(default_factory=dict)
    history: dict[StepKey, dict[State, list[Lasted]]] = field(default_factory=dict)
    contents: dict[tuple[str, int, int], Content] = field(default_factory=dict)
    """What a file had in it when it had this size and time."""
    version: int = 0
    """Grows with each change."""
    before_unlink: Callable[[str, StepKey, str], None] = lambda *_: None
    """Called with who deletes a file, and which, before it goes."""

    # -- what the job does

    def write(self, key: StepKey, path: str, content: Content) -> None:
        """Write or grow a file."""
        step = self._begin(key)
        if path not in step:
            self.directory_ns[key] = self._now_ns()
        file = step[path] = File(content, self._now_ns())
        self.contents[path, content.size, file.mtime_ns] = content
        self._end(key)

    def rename(self, key: StepKey, old: str, new: str) -> None:
        """Rename a file, which keeps its time."""
        step = self._begin(key)
        file = step[new] = step.pop(old)
        self.contents[new, file.content.size, file.mtime_ns] = file.content
        self.directory_ns[key] = self._now_ns()
        self._end(key)

    def unlink(self, who: str, key: StepKey, path: str) -> None:
        """Remove a file."""
        if path in self.files.get(key, {}):
            self.before_unlink(who, key, path)
            step = self._begin(key)
            del step[path]
            self.directory_ns[key] = self._now_ns()
            self._end(key)

    def state(self, key: StepKey) -> State:
        """Return the state that a step is in."""
        return frozenset(
            (path, file.content.size, file.mtime_ns) for path, file in self.files.get(key, {}).items()
        )

    # -- what a look shows

    def present(self) -> list[StepKey]:
        """Return the steps that have files, in order."""
        return sorted((key for key, files in self.files.items() if files), key=lambda key: key.order)

    def inspect(self, listing: Listing, description: Description) -> Inspected:
        """Return which files are not whole.

        Raises:
            SourceChanged: a file is not as it was listed.
        """
        files = self.files.get(listing.key, {})
        inspections = {}
        for listed in listing.files:
            file = files.get(listed.path)
            if file is None or (file.content.size, file.mtime_ns) != (listed.size, listed.mtime_ns):
                raise SourceChanged(f"{listing.key}: {listed.path} has changed")
            if not file.content.is_whole:
                inspections[listed.path] = Inspection(problem="too short", may_grow=True)
        return Inspected(listing, description, inspections)

    def listing(self, key: StepKey, newest: int, known: Listing | None) -> Listing:
        later_begun = (key.step or 0) < newest
        now = EPOCH + self.kernel.now
        directories = ((f"{key.rank}/{key.step}", self.directory_ns.get(key, 0)),)
        if (
            known is not None
            and known.later_begun == later_begun
            and self._is_trusted(known, directories, now)
        ):
            return known
        files = tuple(
            SourceFile(path, file.content.size, file.mtime_ns)
            for path, file in sorted(self.files.get(key, {}).items())
        )
        newest_change = max([directories[0][1] / 1e9, *(file.mtime_ns / 1e9 for file in files)])
        return Listing(key, files, newest_change, later_begun, directories, now, layout="simulated")

    def _is_trusted(self, known: Listing, directories: tuple[tuple[str, int], ...], now: float) -> bool:
        return (
            0 <= now - known.listed_at < TRUST_S
            and known.directories == directories
            and directories[0][1] / 1e9 <= known.listed_at - _TICK_S
        )

    def _now_ns(self) -> int:
        self.version += 1  # so that no two changes have the same time
        return int((EPOCH + self.kernel.now) * 1e9) + self.version

    def _begin(self, key: StepKey) -> dict[str, File]:
        step = self.files.setdefault(key, {})
        lasted = self.history.get(key, {}).get(self.state(key))
        if lasted:
            lasted[-1].until = self.kernel.now
        return step

    def _end(self, key: StepKey) -> None:
        states = self.history.setdefault(key, {})
        states.setdefault(self.state(key), []).append(Lasted(self.kernel.now))


class SimulatedDescription(Description):
    """A description that leads to the dump."""

    __slots__ = ("view",)
    view: DumpView


@dataclass(slots=True)
class DumpView:
    """A `Dump` as one process sees it: listing a step, and reading its headers, are steps of that process."""

    dump: SimulatedDump
    process: Process
    root: Path = ROOT

    def scan(
        self,
        known: Mapping[StepKey, Listing],
        defer: Defer = lambda _: (),
        beginning: Beginning | None = None,
    ) -> DumpScan:
        """List every step now; of a beginning, the first."""
        keys = self.dump.present()
        deferred = set(defer(keys))
        if beginning is not None:
            listed = sorted(set(keys) - deferred, key=lambda key: key.order, reverse=beginning.newest_first)
            deferred.update(listed[1:])
        newest = max((key.step or 0 for key in keys), default=0)
        listings = []
        for key in keys:
            if key not in deferred:
                self.process.step()
                listings.append(self.dump.listing(key, newest, known.get(key)))
        return DumpScan(tuple(listings), (), None, frozenset(deferred))

    def describe(self, listing: Listing) -> Description:  # noqa: ARG002 (files of no known format)
        """Return that all files are kept as they are."""
        description = SimulatedDescription()
        object.__setattr__(description, "view", self)
        return description

    def inspect(self, listing: Listing, description: Description) -> Inspected:
        """Read the headers of a step."""
        self.process.step()
        return self.dump.inspect(listing, description)
