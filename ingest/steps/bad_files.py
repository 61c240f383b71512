"""Files that the disk does not give, or that kill who reads them: workers find them, plans leave them out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ingest.layouts.base import Listing
from ingest.steps.caches import keep_only
from workers.dump.paths import from_text
from workers.errors import ClusterError, DumpIngestError, PoisonedFile, UnreadableFile
from workers.model import SourceFile, StepKey
from workers.store.commit import Commit
from workers.tasks.model import StepPlan

#: So many files of a step may be poison. If there are more, it is not the files.
_MAX_POISON = 8
_POISON_HINT = (
    "So many files are hardly all bad: look at the memory of the workers, at their logs, and at the versions "
    "of their libraries. Nothing of the step is visible."
)


@dataclass(slots=True)
class BadFiles:
    """What is known of the files of pending steps. A cache: what is lost is found out again."""

    _unreadable: dict[StepKey, set[str]] = field(default_factory=dict)
    _poison: dict[StepKey, dict[SourceFile, bool]] = field(default_factory=dict)

    def unreadable(self, key: StepKey) -> Collection[str]:
        """Return the files of a step that the disk was found not to give."""
        return self._unreadable.get(key, ())

    def poison(self, key: StepKey) -> Mapping[SourceFile, bool]:
        """Return the files that were found to kill who reads them, and whether their bytes may be read."""
        return self._poison.get(key, {})

    def note(self, plan: StepPlan, error: DumpIngestError) -> bool:
        """Take note of the file that a step failed for; whether it was for a file.

        The step is then planned again without taking the file for a tensor, or without reading it.
        """
        if isinstance(error, UnreadableFile):
            self._unreadable.setdefault(plan.key, set()).add(error.path)
            return True
        if isinstance(error, PoisonedFile):
            entries = [entry for entry in plan.entries if entry.source.path == error.path]
            was_decoded = any(entry.header is not None for entry in entries)
            self._poison.setdefault(plan.key, {})[entries[0].source] = was_decoded
            return True
        return False

    def learn(self, listing: Listing, found: Commit) -> bool:
        """Take over what an earlier process found to be poison; whether there was anything new."""
        known = self._poison.get(listing.key, {})
        recorded = _poison_of(found)
        new = {file: recorded[file] for file in listing.files if file in recorded and file not in known}
        if new:
            self._poison[listing.key] = {**known, **new}
        return bool(new)

    def believed(self, plan: StepPlan, error: DumpIngestError) -> DumpIngestError:
        """Return why a step failed; where too many of its files seem to be poison, it is not the files."""
        if not isinstance(error, PoisonedFile) or len(self.poison(plan.key)) < _MAX_POISON:
            return error
        del self._poison[plan.key]
        message = f"{error.message}; and before it {_MAX_POISON} other files of this step"
        return ClusterError(message, hint=_POISON_HINT)

    def forget(self, present: Collection[StepKey]) -> None:
        """Drop what is known of steps that are not `present` any more."""
        keep_only(present, self._unreadable, self._poison)


def _poison_of(found: Commit) -> dict[SourceFile, bool]:
    """Return the files that a commit says are poison, and whether it has their bytes."""
    return {
        SourceFile(from_text(row.source), row.size, row.mtime_ns): row.bytes_kept
        for row in found.record.poison
    }
