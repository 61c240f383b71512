"""What one run of the service came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ingest.dispatch.submitter import Outcome, StepCommitted, StepFailed
from ingest.dump_retention.retention import ReadBackFailed, SourceDeleted, SourceKept
from ingest.findings.series import StepFindings
from ingest.layouts.base import Problem
from ingest.steps.events import CommitKept
from ingest.watching.watcher import DumpState
from workers.errors import DumpIngestError, PoisonedFile, StoreError, UnreadableFile
from workers.events import Event
from workers.model import StepKey
from workers.store.model import CommitSummary


@dataclass(slots=True)
class Report:
    """What one run of the service came to."""

    commits: list[CommitSummary] = field(default_factory=list)
    failures: dict[StepKey, DumpIngestError] = field(default_factory=dict)
    unchanged: list[StepKey] = field(default_factory=list)
    """Steps that the store held already."""
    removed: list[StepKey] = field(default_factory=list)
    """Steps that `gc` removed from the store: they are not taken again unless asked for."""
    problems: tuple[Problem, ...] = ()
    missing_steps: tuple[int, ...] = ()
    """Steps that the configuration of the dump asks for, and that no rank has."""
    kept: list[CommitKept] = field(default_factory=list)
    ranks_from: dict[str, list[int]] = field(default_factory=dict)
    """The ranks by what gave them: the path, the user, a rank table; or the id of the device or process."""
    stopped_by: StoreError | None = None
    """The store failed for good: no further step was tried."""
    not_consolidated: StoreError | None = None
    """Why the consolidated view was not brought up to date; the commits stand without it."""
    series: tuple[StepFindings, ...] = ()
    """What rules over several steps or ranks found in each step."""
    deleted: list[SourceDeleted] = field(default_factory=list)
    """What was deleted in the dump, or would have been."""
    source_kept: list[SourceKept] = field(default_factory=list)
    """What stays in the dump although it is committed, and why; only where dumps are to be deleted."""
    read_back_failures: dict[StepKey, DumpIngestError] = field(default_factory=dict)
    """Why steps could not be read back; nothing of them was deleted."""

    def observe(self, event: Event) -> None:
        """Note what was kept and deleted, and what could not be."""
        if isinstance(event, CommitKept):
            self.kept.append(event)
        elif isinstance(event, SourceDeleted):
            self.deleted.append(event)
            self.read_back_failures.pop(event.key, None)
        elif isinstance(event, ReadBackFailed):
            self.read_back_failures[event.key] = event.error

    def take(self, outcome: Outcome) -> None:
        """Note what came of a step."""
        if isinstance(outcome, StepCommitted):
            self.commits.append(outcome.summary)
        elif isinstance(outcome, StepFailed) and isinstance(outcome.error, StoreError):
            self.stopped_by = outcome.error
        elif isinstance(outcome, StepFailed) and isinstance(outcome.error, UnreadableFile | PoisonedFile):
            pass  # it is planned again, without the bytes of that file, or without taking them for a tensor
        elif isinstance(outcome, StepFailed):
            self.failures[outcome.plan.key] = outcome.error

    def close(self, view: DumpState, denied: Mapping[StepKey, Sequence[Problem]]) -> None:
        """Note what the last look showed: what was there already, and what could not be taken."""
        committed = {summary.key for summary in self.commits}
        there = {*(view.present.keys() - view.pending.keys()), *(one.key for one in self.deleted)}
        self.unchanged = sorted(there - committed, key=lambda key: key.order)
        self.problems = view.problems
        for source, rank in sorted({(one.rank_from, key.rank) for key, one in view.present.items()}):
            self.ranks_from.setdefault(source, []).append(rank)
        if view.expected_steps:
            self.missing_steps = tuple(sorted(view.expected_steps - {key.step for key in view.present}))
        for key, problems in denied.items():
            self.failures[key] = DumpIngestError(f"{key}: {problems[0]}", hint=problems[0].hint)
