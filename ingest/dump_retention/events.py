"""What is reported of the deletion of dumps; with `ingest.steps.events.SourceKept`."""

from __future__ import annotations

from dataclasses import dataclass

from workers.errors import DumpIngestError
from workers.events import Event
from workers.model import StepKey


@dataclass(frozen=True, slots=True)
class SourceDeleted(Event):
    """Source files were deleted; the commit of their step has every byte of them."""

    key: StepKey
    files: int
    nbytes: int
    seconds: float
    """Since the step was chosen to be read back."""
    dry_run: bool = False
    """Whether they only would have been deleted."""


@dataclass(frozen=True, slots=True)
class ReadBackFailed(Event):
    """A step could not be read back; nothing of it was deleted."""

    key: StepKey
    error: DumpIngestError
    pause_s: float | None
    """When it is tried again; None if it is not, as long as it stays as it is."""


@dataclass(frozen=True, slots=True)
class RetentionSeen(Event):
    """How much is still to be deleted: reported after each scan."""

    steps: int
    """Steps that wait to be read back, or are being read back."""
    nbytes: int
