"""Files that cannot be read, or that kill their reader: workers find them, plans leave them out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from workers.dump.paths import from_text
from workers.errors import ClusterError, DumpIngestError, PoisonedFile, UnreadableFile
from workers.model import SourceFile
from workers.store.commit import Commit
from workers.tasks.model import StepPlan

#: This many files of a step may be poison. If there are more, it is not the files.
_MAX_POISON = 8
_POISON_HINT = (
    "This many files are hardly all bad: look at the memory of the workers, at their logs, and at the "
    "versions of their libraries. Nothing of the step is visible."
)


@dataclass(frozen=True, slots=True)
class BadFiles:
    """The bad files of one step, as far as they are known. A cache: a new process finds them out again."""

    unreadable: frozenset[str] = frozenset()
    """Paths of files that the disk does not give."""
    poison: Mapping[SourceFile, bool] = field(default_factory=dict)
    """Files that kill who reads them, and whether their bytes may be read where nobody decodes them."""

    def with_failure(self, plan: StepPlan, error: DumpIngestError) -> BadFiles:
        """Return the bad files, and the one that a step failed for; the same object if it was not for a file.

        The step is then planned again without taking the file for a tensor, or without reading it.
        """
        if isinstance(error, UnreadableFile):
            return replace(self, unreadable=self.unreadable | {error.path})
        if isinstance(error, PoisonedFile):
            entries = [entry for entry in plan.entries if entry.source.path == error.path]
            was_decoded = any(entry.header is not None for entry in entries)
            return replace(self, poison={**self.poison, entries[0].source: was_decoded})
        return self

    def with_commit(self, files: Iterable[SourceFile], commit: Commit) -> BadFiles:
        """Return the bad files, and those that a commit names as poison; the same object if it has no others.

        Args:
            files: what the dump has of the step; a file that was written again since is not bad.
            commit: of an earlier process, which found out what is poison.
        """
        recorded = _poison_in(commit)
        new = {
            file: recorded[file]
            for file in (files if recorded else ())
            if file in recorded.keys() - self.poison
        }
        return replace(self, poison={**self.poison, **new}) if new else self

    def doubts(self, error: DumpIngestError) -> ClusterError | None:
        """Return the error to believe in, if this one makes too many files poison; None if it does not."""
        if not isinstance(error, PoisonedFile) or len(self.poison) < _MAX_POISON:
            return None
        message = f"{error.message}; and before it {_MAX_POISON} other files of this step"
        return ClusterError(message, hint=_POISON_HINT)


#: What is known of the files of nearly every step.
NO_BAD_FILES = BadFiles()


def _poison_in(commit: Commit) -> dict[SourceFile, bool]:
    """Return the files that a commit says are poison, and whether it has their bytes."""
    return {
        SourceFile(from_text(row.source), row.size, row.mtime_ns): row.bytes_kept
        for row in commit.record.poison
    }
