"""What the service reports to its observers: logs, metrics, webhook, progress and report."""

from __future__ import annotations

from dataclasses import dataclass

from ingest.steps.keeping import KeepReason
from workers.errors import ClusterError, DumpIngestError, StoreError
from workers.events import Event
from workers.model import StepKey
from workers.store.model import Totals
from workers.store.record import CommitRecord


@dataclass(frozen=True, slots=True)
class DependencyDown(Event):
    """The store or the cluster does not answer; everything waits, and it is tried again."""

    error: StoreError | ClusterError


@dataclass(frozen=True, slots=True)
class StoreRecovered(Event):
    """The store answers again; what waited for it is tried at once."""


@dataclass(frozen=True, slots=True)
class CommitKept(Event):
    """Files of a committed step are gone from the dump; the commit, which has them, stays."""

    key: StepKey
    gone: int


@dataclass(frozen=True, slots=True)
class ContentReplaced(Event):
    """Files of a committed step have other bytes than were committed, under the same sizes and times."""

    key: StepKey
    files: tuple[str, ...]
    """Their paths, relative to the dump."""


@dataclass(frozen=True, slots=True)
class RecheckFailed(Event):
    """Files of a committed step could not be compared with their commit: whether they differ is unknown."""

    key: StepKey
    error: DumpIngestError


@dataclass(frozen=True, slots=True)
class DumpedAgain(Event):
    """A step is taken again although files of its commit are gone: it is another dump of the step."""

    key: StepKey
    gone: int


@dataclass(frozen=True, slots=True)
class CommitReverted(Event):
    """An older generation of a step took the place of the one that was committed; the step is taken again."""

    key: StepKey


@dataclass(frozen=True, slots=True)
class StepDamaged(Event):
    """Objects of a committed step are missing in the store, or have another size."""

    key: StepKey
    reason: str
    store: str


@dataclass(frozen=True, slots=True)
class AnomalousCommitRead(Event):
    """A commit of an earlier time, or of another process, was read, and it counts anomalies or findings."""

    key: StepKey
    summary: Totals
    committed_at: float
    """Unix time by the clock of the worker."""

    @classmethod
    def of(cls, record: CommitRecord) -> AnomalousCommitRead | None:
        """Return the event for a commit record; None if the record counts nothing of interest."""
        summary = record.summary
        if not (summary.anomalous_tensors or summary.overflows or summary.disagreements or summary.findings):
            return None
        return cls(StepKey(record.rank, record.step), summary, record.committed_at_s)


@dataclass(frozen=True, slots=True)
class SourceKept(Event):
    """Files of a committed step stay in the dump."""

    key: StepKey
    reason: KeepReason
    files: int
    detail: str


@dataclass(frozen=True, slots=True)
class StoreIncident(Event):
    """A step has an anomaly that the step before it did not have: a black box keeps the tensors around it."""

    key: StepKey
    what: str
    """What it counts, such as `nan_count`, and the rules that found something."""
    is_kept: bool
    """False if as many incidents as may be are kept already."""


@dataclass(frozen=True, slots=True)
class TensorsDropped(Event):
    """The tensors of a step have left the black box; its statistics and sketches stay."""

    key: StepKey
    objects: int
    nbytes: int
