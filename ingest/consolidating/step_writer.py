"""Writes the steps of a plan into the cubes: by tasks, block by block, and publishes each block."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from ingest.consolidating.commit_copier import copy_commits
from ingest.consolidating.cube_writer import CubeWriter
from ingest.consolidating.lease import Lease
from ingest.consolidating.round_plan import RoundPlan, Unreadable
from ingest.consolidating.runners import RunJobs
from ingest.heartbeat import beat
from workers.model import StepKey
from workers.store.commit import Commit
from workers.tasks.consolidate import Consolidated, ConsolidateJob, UnknownTensors, consolidate


@dataclass(frozen=True, slots=True)
class StepWriter:
    """Carries out one plan. Memory: the results of the tasks of one block, and as much as `CubeWriter`."""

    writer: CubeWriter
    run: RunJobs
    lease: Lease | None
    """None if no other process can write."""
    commits: Mapping[StepKey, Commit]
    """Those that the plan was made for."""
    unreadable: dict[StepKey, Unreadable] = field(default_factory=dict)
    """Generations whose tables turned out to be damaged."""

    def write(self, plan: RoundPlan) -> None:
        """Write what the plan says.

        Raises:
            LeaseHeld: another process writes the cubes.
            StoreError: the store refused.
        """
        self.writer.add_ranks(sorted({key.rank for key in plan.fresh}))
        self._rewrite(plan.rewrite)
        self._append(plan.append)

    def _rewrite(self, ranks_of: Mapping[int, set[int]]) -> None:
        """Write steps of the cubes again. Block by block: a rank that comes late may change every step."""
        for steps in self.writer.in_blocks(ranks_of):
            self.writer.begin_rewriting(steps)
            places = {self.writer.place(step): step for step in steps}
            self._write_steps(places, ranks_of)
            self._copy_commits(places, ranks_of)
            self.writer.publish(list(places))

    def _append(self, ranks_of: Mapping[int, set[int]]) -> None:
        """Put steps at the end of the cubes, and publish each block of them when it is full."""
        left = sorted(ranks_of)
        while left:
            # Without any known tensor, one step alone: the others then do not come back as unknown.
            count = self.writer.room if len(self.writer.axis) else 1
            batch, left = left[:count], left[count:]
            places = dict(zip(self.writer.add_steps(batch), batch, strict=True))
            self._write_steps(places, ranks_of)
            self._copy_commits(places, ranks_of, appended=batch)
            self.writer.publish(list(places))

    def _copy_commits(
        self, places: Mapping[int, int], ranks_of: Mapping[int, set[int]], appended: Collection[int] = ()
    ) -> None:
        """Copy the commits of these steps that the plan was made for; the others have not changed."""
        keys = [StepKey(rank, step) for step in places.values() for rank in sorted(ranks_of[step])]
        copy_commits(self.writer, [key for key in keys if key in self.commits], self.commits, appended)

    def _write_steps(self, places: Mapping[int, int], ranks_of: Mapping[int, set[int]]) -> None:
        """Write the objects of these steps, given by their places; what steps share stays with the writer."""
        jobs: list[ConsolidateJob] = []
        for place, step in places.items():
            self.writer.clear(place)
            jobs += self.writer.jobs(place, step, ranks_of[step])
        if len(jobs) == 1:
            jobs = [replace(jobs[0], extends=True)]
        while jobs:
            if self.lease is not None:
                self.lease.keep()
            unknown = self._run(jobs)
            unknown.sort(key=lambda result: (result.job.place, result.job.rank_chunk))
            self.writer.add_tensors(key for result in unknown for key in result.keys)
            jobs = [replace(result.job, width=len(self.writer.axis)) for result in unknown]
        if self.lease is not None:
            self.lease.keep()

    def _run(self, jobs: list[ConsolidateJob]) -> list[UnknownTensors]:
        """Run tasks; return the results of those that have to run again on a longer axis of tensors."""
        unknown: list[UnknownTensors] = []
        for result in self.run(consolidate, jobs):
            beat()
            if self.lease is not None:
                self.lease.keep_in_time()
            if isinstance(result, UnknownTensors):
                unknown.append(result)
            else:
                self.writer.add_tensors(result.keys)
                self.writer.record(result)
                self._remember_damage(result)
        return unknown

    def _remember_damage(self, result: Consolidated) -> None:
        """Remember generations with damaged tables, so that they are not tried in every round."""
        for rank, reason in result.damaged.items():
            key = StepKey(rank, result.job.step)
            if key in self.commits:
                self.unreadable[key] = Unreadable(self.commits[key].fingerprint, reason)
