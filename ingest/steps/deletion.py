"""What is known of a committed step whose dump files are to be deleted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ingest.steps.events import SourceKept
from workers.model import SourceFile


class DeletionStage(StrEnum):
    """How far the deletion of a step's files is. A closed set: it is part of JSON output."""

    QUEUED = "queued"
    """It is this step's turn to be decided about, after those before it."""
    READING_BACK = "reading_back"
    """Workers compare the files with the store."""
    REMOVING = "removing"
    """The files are being unlinked, in another thread."""


@dataclass(slots=True)
class Deletion:
    """Whether the source files of one step may go, how far that is, and why they stay if they do."""

    stage: DeletionStage | None = None
    """None while nothing is done about the step."""
    kept: SourceKept | None = None
    """Why files of the step stay, as it was found last."""
    settled_files: tuple[SourceFile, ...] | None = None
    """The step stays as long as these are its files."""
    paused_until: float = 0.0
    failures: int = 0
    """How often something went wrong with the step in a row."""
    anomaly: tuple[tuple[SourceFile, ...], bool] | None = None
    """Whether the commit of the step has an anomaly, and the files that it had when that was found."""

    def is_due(self, files: tuple[SourceFile, ...], now: float) -> bool:
        """Return whether it is time to decide about the step, or to try again."""
        return self.settled_files != files and self.paused_until <= now

    @property
    def is_to_be_tried_again(self) -> bool:
        """Whether something went wrong that may pass."""
        return self.failures > 0 and self.settled_files is None

    @property
    def has_anomaly(self) -> bool:
        """Whether the commit of the step has an anomaly, as far as is known."""
        return self.anomaly is not None and self.anomaly[1]

    def is_anomaly_known(self, files: tuple[SourceFile, ...]) -> bool:
        """Return whether it was found out if a step with these files has an anomaly."""
        return self.anomaly is not None and self.anomaly[0] == files

    def settle(self, files: tuple[SourceFile, ...]) -> None:
        """Leave the step alone as long as these are its files."""
        self.settled_files = files

    def pause(self, until: float) -> None:
        """Leave the step alone for a while."""
        self.failures += 1
        self.paused_until = until

    def end_pause(self) -> None:
        """Forget what went wrong before."""
        self.failures = 0
        self.paused_until = 0.0
