"""The deletion of the source files of one step: they are read back first."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

from ingest.dump_retention.removal import Proven, Removed
from ingest.layouts.base import Listing
from ingest.steps.keep_reasons import KeepReason
from ingest.steps.state import StepState
from workers.model import SourceFile, StepKey
from workers.tasks.read_back import ReadBack, ReadBackJob, ReadBackVerdict

_REASONS = {
    ReadBackVerdict.NOT_STORED: KeepReason.NOT_STORED,
    ReadBackVerdict.NOT_UNDERSTOOD: KeepReason.NOT_UNDERSTOOD,
}


@dataclass(eq=False, slots=True)
class StepDeletion:
    """The deletion of one step's source files, from the decision that they may go to the last file."""

    state: StepState
    listing: Listing
    """What is read back, and deleted; the step may be listed again meanwhile."""
    fingerprint: str
    """Of its commit."""
    started: float
    jobs: dict[int, ReadBackJob]
    results: dict[int, ReadBack] = field(default_factory=dict)
    removing: Future[Removed] | None = None

    @property
    def key(self) -> StepKey:
        """Rank and step."""
        return self.state.key

    @property
    def is_read_back(self) -> bool:
        """Whether all of its files were read back."""
        return len(self.results) == len(self.jobs)

    @property
    def has_changed(self) -> bool:
        """Whether the last scan saw other files, or found the step not to be in the store as it is."""
        listing = self.state.listing
        return listing is None or self.state.is_pending or listing.files != self.listing.files

    def proven(self) -> list[Proven]:
        """Return the files of which the store has every byte."""
        return [
            Proven(file, changed_ns)
            for file, verdict, changed_ns in self._files()
            if verdict == ReadBackVerdict.SAME
        ]

    def others(self) -> dict[KeepReason, list[SourceFile]]:
        """Return the files that stay, by reason."""
        others: dict[KeepReason, list[SourceFile]] = {}
        for file, verdict, _ in self._files():
            if verdict != ReadBackVerdict.SAME:
                others.setdefault(_REASONS[ReadBackVerdict(verdict)], []).append(file)
        return others

    def _files(self) -> Iterator[tuple[SourceFile, int, int]]:
        for number, result in sorted(self.results.items()):
            columns = result.verdicts.tolist(), result.changed_ns.tolist()
            yield from zip(self.jobs[number].files, *columns, strict=True)
