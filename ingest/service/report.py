"""The result of one run of the service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from ingest.dispatch.outcomes import StepCommitted, StepFailed
from ingest.dump_retention.policy import ReadBackFailed, SourceDeleted
from ingest.layouts.base import Problem
from ingest.reader.damage import Damage
from ingest.steps.difference import FilesNotTaken
from ingest.steps.events import CommitKept, DumpedAgain, RecheckFailed, SourceKept
from ingest.steps.state import Phase, StepTable
from ingest.watching.watcher import DumpState
from workers.errors import DamagedStore, DumpIngestError, PoisonedFile, StoreError, UnreadableFile
from workers.events import Event
from workers.model import StepKey
from workers.store.model import CommitSummary

if TYPE_CHECKING:  # importing it takes 0.06 s, which is spent while workers convert
    from ingest.findings.series import StepFindings


@dataclass(slots=True)
class Report:
    """What one run of the service came to."""

    commits: list[CommitSummary] = field(default_factory=list)
    failures: dict[StepKey, DumpIngestError] = field(default_factory=dict)
    """Why steps could not be taken or read again. By key for people, not state: nothing is decided by it."""
    unchanged: list[StepKey] = field(default_factory=list)
    """Steps that the store held already."""
    damaged: list[Damage] = field(default_factory=list)
    """Those of them of which objects are missing in the store, as far as a listing shows."""
    removed: list[StepKey] = field(default_factory=list)
    """Steps that `gc` removed from the store: they are not taken again unless asked for."""
    problems: tuple[Problem, ...] = ()
    missing_steps: tuple[int, ...] = ()
    """Steps that the configuration of the dump asks for, and that no rank has."""
    may_have_configuration: bool = False
    """Whether the dump has a JSON file that is of no step: what it was asked for may be in it."""
    kept: list[CommitKept] = field(default_factory=list)
    dumped_again: list[DumpedAgain] = field(default_factory=list)
    """Steps that were taken again although files of their commits are gone."""
    root: Path | None = None
    """The dump; None in a report that was not made for a single one."""
    beside: tuple[Path, ...] = ()
    """Directories with tensor files beside the dump, if it was found below the one that was named."""
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
    """What stays in the dump although it is committed, and why; only if dumps are to be deleted."""
    read_back_failures: dict[StepKey, DumpIngestError] = field(default_factory=dict)
    """Why steps could not be read back; nothing of them was deleted."""

    @property
    def has_something(self) -> bool:
        """Whether the store has something of the dump, even if none of it is new."""
        failed = self.failures.values()
        return bool(
            self.commits or self.unchanged or any(isinstance(error, FilesNotTaken) for error in failed)
        )

    def observe(self, event: Event) -> None:
        """Record what came of a step."""
        match event:
            case StepCommitted(summary=summary):
                self.commits.append(summary)
            case StepFailed(error=StoreError() as error) if not isinstance(error, DamagedStore):
                self.stopped_by = error
            case StepFailed(error=UnreadableFile() | PoisonedFile()):
                pass  # it is planned again, without the bytes of the file, or without decoding them
            case StepFailed(plan=plan, error=error):
                self.failures[plan.key] = error
            case RecheckFailed(key=key, error=error):
                self.failures[key] = error
            case CommitKept():
                self.kept.append(event)
            case DumpedAgain():
                self.dumped_again.append(event)
            case SourceDeleted(key=key):
                self.deleted.append(event)
                self.read_back_failures.pop(key, None)
            case ReadBackFailed(key=key, error=error):
                self.read_back_failures[key] = error

    def close(self, table: StepTable, dump_state: DumpState) -> None:
        """Record what the last scan showed: what the store held already, and what could not be taken."""
        self._record_held({state.key: state.held for state in table.held()})
        self.problems = dump_state.problems
        self._record_ranks(dump_state)
        if dump_state.expected_steps:
            self.missing_steps = tuple(
                sorted(dump_state.expected_steps - {key.step for key in dump_state.present})
            )
        of_runs = (listing.files for key, listing in dump_state.present.items() if key.step is None)
        run_files = chain.from_iterable(of_runs)
        self.may_have_configuration = any(file.path.endswith(".json") for file in run_files)
        self._record_denied({state.key: state.denied for state in table.denied()})
        kept = [deletion.kept for state in table if (deletion := state.deletion) is not None]
        self.source_kept = sorted((event for event in kept if event), key=lambda event: event.key.order)

    def _record_held(self, held: Mapping[StepKey, Phase | None]) -> None:
        """Record the steps that the store held already; what was deleted is not in the table any more."""
        committed = {summary.key for summary in self.commits}
        keys = sorted({*held, *(event.key for event in self.deleted)} - committed, key=lambda key: key.order)
        self.removed = [key for key in keys if held.get(key) is Phase.REMOVED]
        self.unchanged = [key for key in keys if held.get(key) is not Phase.REMOVED]

    def _record_ranks(self, dump_state: DumpState) -> None:
        ranks = {(listing.rank_from, key.rank) for key, listing in dump_state.present.items()}
        for source, rank in sorted(ranks):
            self.ranks_from.setdefault(source, []).append(rank)

    def _record_denied(self, denied: Mapping[StepKey, Sequence[Problem]]) -> None:
        for key, problems in sorted(denied.items(), key=lambda item: item[0].order):
            self.failures[key] = DumpIngestError(f"{key}: {problems[0]}", hint=problems[0].hint)
