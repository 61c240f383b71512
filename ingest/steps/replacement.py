"""Whether what the store has of a step is to stay, though the dump has something else. Policy, no tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ingest.planning.plan import fingerprint, without_tensors
from ingest.steps.committed import Committed, comes_from_elsewhere
from ingest.steps.events import CommitKept
from ingest.steps.keep_reasons import must_stay
from workers.errors import DamagedStore, DumpIngestError, StepRemoved
from workers.model import SourceFile
from workers.store.commit import Commit
from workers.store.model import Grid
from workers.tasks.model import StepPlan


@dataclass(frozen=True, slots=True)
class Stays:
    """The store is to stay as it is."""

    error: DumpIngestError | None = None
    """Why that is a failure; None where it is not."""
    kept: CommitKept | None = None
    """What is to be told; None where nothing is."""
    has_changed: bool = False
    """Whether the store has changed since it was asked, so that the dump is to be looked at again."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Compares what is planned with what is committed."""

    committed: Committed
    grid: Grid
    replace: bool
    """Whether steps that came from another dump may be replaced."""
    deletes: bool
    """Whether dumps are deleted when they are committed."""

    def judge(self, files: Sequence[SourceFile], plan: StepPlan, found: Commit | None) -> Stays | None:
        """Return why the store is to stay as it is; None where the plan is to be carried out.

        The store has this generation, a better one, or another dump's.

        Args:
            files: all that the dump has of the step.
            plan: what was made of them.
            found: the commit that the store has.
        """
        key = plan.key
        if found is None:
            # Names of removed generations were compared already; here it may be a part of one.
            if not self.committed.was_removed(key, plan.fingerprint, files):
                return None
            self.committed.cover(key, self._listed(files, plan))
            return Stays()
        if found.fingerprint == plan.fingerprint:
            listed = self._listed(files, plan)
            self.committed.cover(key, without_tensors(listed) if plan.without_tensors else listed)
            return Stays()
        if not self.replace and (error := comes_from_elsewhere(key, plan.origin, found)):
            return Stays(error)
        return self._judge_by_files(files, plan, found)

    def _judge_by_files(self, files: Sequence[SourceFile], plan: StepPlan, found: Commit) -> Stays | None:
        """Have a commit stay where the dump has less of its step."""
        # Then they are gone because they were deleted here; and what comes late must not take their place.
        deleted_here = self.deletes and must_stay(found) is None
        try:
            gone = self.committed.files_gone(found, files, any_less=deleted_here and not self.replace)
        except StepRemoved:
            return Stays(has_changed=True)
        except DamagedStore as exc:
            # It may be all that there is of the step: it is not replaced, and keeps no other step waiting.
            return Stays(exc)
        if not gone:
            return None
        self.committed.cover(plan.key, self._listed(files, plan))
        return Stays(kept=None if deleted_here else CommitKept(plan.key, gone))

    def _listed(self, files: Sequence[SourceFile], plan: StepPlan) -> str:
        """Return the fingerprint that the next look finds, which knows of no bad files."""
        return fingerprint(files, plan.origin.layout, self.grid)
