"""What the service reports to its observers; why source files of a step stay, when they must."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from workers.errors import ClusterError, DumpIngestError, StoreError
from workers.events import Event
from workers.model import StepKey, grouped
from workers.store.commit import Commit
from workers.store.model import Totals
from workers.store.record import CommitRecord

#: The layouts of checkpoints, by name: importing all layouts would take 0.2 s.
CHECKPOINTS = frozenset(
    [
        *("checkpoint_file", "deepspeed", "distributed_checkpoint", "hugging_face"),
        *("megatron", "olmo", "verl"),
    ]
)


class KeepReason(StrEnum):
    """Why source files stay, although their step was examined. A closed set, for metrics."""

    NEWEST = "newest"
    """The step is one of the newest of its rank."""
    ANOMALOUS = "anomalous"
    """Something is wrong with the step on this or another rank of the dump, and such steps are to stay."""
    UNDECIDED = "undecided"
    """The same, as long as another rank of the dump has not committed the step yet."""
    PARTIAL = "partial"
    """The commit does not have everything: the source may be all that there is."""
    NO_TENSORS = "no_tensors"
    """The commit was made, or is kept, without the payloads of its tensors."""
    CHECKPOINT = "checkpoint"
    """The step is a checkpoint: the job restarts from its files."""
    ELSEWHERE = "elsewhere"
    """The commit was made from another dump, or on another host."""
    NO_COMMIT = "no_commit"
    """The step has no commit, or one that cannot be read."""
    NOT_STORED = "not_stored"
    """Files that came after the rest of their step was deleted, or are not as they were committed."""
    NOT_UNDERSTOOD = "not_understood"
    """Files whose names or contents are not understood; the store has them as files."""
    CHANGED = "changed"
    """Something in the step changed between reading it back and deleting it."""
    DENIED = "denied"
    """The dump may not be written."""
    READ_BACK_FAILED = "read_back_failed"
    """The store did not give back what the dump has."""


def must_stay(commit: Commit | None) -> tuple[KeepReason, str] | None:
    """Return why the source of a step must stay, whatever the user asked for; None if it may go.

    Args:
        commit: the commit of the step; None if it has none that can be read.

    Returns:
        The reason, and the same in words.
    """
    if commit is None:
        return KeepReason.NO_COMMIT, "the store has no commit of it that can be read"
    if commit.without_tensors is not None:
        return KeepReason.NO_TENSORS, str(commit.without_tensors)
    if not CHECKPOINTS.isdisjoint(commit.record.source.layout.split("+")):
        return KeepReason.CHECKPOINT, "it is a checkpoint, from which the job restarts"
    if commit.summary.status != "complete":
        return (
            KeepReason.PARTIAL,
            f"its commit is {commit.summary.status}: the source may be all that there is",
        )
    return None


def newest_steps(keys: Iterable[StepKey], count: int) -> set[StepKey]:
    """Return the `count` newest steps of each rank, by step number. Run files are not steps."""
    steps_by_rank = grouped((key.rank, key.step) for key in keys if key.step is not None)
    return {
        StepKey(rank, step)
        for rank, steps in steps_by_rank.items()
        for step in sorted(steps, reverse=True)[:count]
    }


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
