"""The steps and ranks that may hold what is searched for, by the totals of their commits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from ingest.questions.origin.calls import IsBad, RankTrace, trace_rank
from ingest.reader.snapshot import LeftOut, Snapshot
from ingest.reader.step import Step
from workers.errors import DamagedStore
from workers.model import StepKey
from workers.store.model import CommitSummary

#: Ranks of one step whose index is read at once; this bounds the memory.
_RANKS_AT_ONCE = 8


@dataclass
class Suspects:
    """The steps of a snapshot that may hold what is searched for, and their traces.

    Memory: the indexes of one step of eight ranks while they are read, and the traces of one step.
    """

    snapshot: Snapshot
    is_bad: IsBad
    cause: str
    """`auto`, `nan`, `inf` or `where`."""
    damaged: list[LeftOut] = field(default_factory=list)
    """Steps that turned out to be damaged."""
    skipped: list[int] = field(default_factory=list)
    """Steps that were not read because they have as many bad tensors as harmless steps."""
    _harmless: dict[int, set[tuple[int, int, int]]] = field(default_factory=dict)
    """By rank, the numbers of tensors with NaN, +Inf and -Inf in steps that turned out to be harmless."""

    def steps(self) -> Iterator[int]:
        """Yield the steps that may hold what is searched for, in order."""
        for step in self.snapshot.steps:
            if not self.ranks(step):
                continue
            if self._is_like_harmless(step):
                self.skipped.append(step)
                continue
            yield step

    def steps_in_a_row(self, first: int) -> Iterator[int]:
        """Yield the steps after a bad one, up to one that holds nothing, or no more than a harmless one."""
        steps = self.snapshot.steps
        for step in steps[steps.index(first) + 1 :]:
            if not self.ranks(step) or self._is_like_harmless(step):
                return
            yield step

    def _is_like_harmless(self, step: int) -> bool:
        """Return whether every rank has as many bad tensors as in a step that turned out to be harmless."""
        return all(self._bad_tensors(step, rank) in self._harmless.get(rank, ()) for rank in self.ranks(step))

    def ranks(self, step: int) -> list[int]:
        """Return the ranks of a step that may hold what is searched for."""
        return [rank for rank, opened in self.snapshot.of_step(step).items() if self.may_hold(opened)]

    def may_hold(self, step: Step) -> bool:
        """Return whether one step of one rank may hold what is searched for."""
        summary = step.commit.summary
        # Statistics from the dump may have lost the number of NaN, and a condition may be on any column.
        return self.cause == "where" or bool(summary.statistics_only) or self._holds(summary)

    def certain_ranks(self, step: int) -> list[int]:
        """Return the ranks of a step that certainly hold what is searched for; none if it is a condition."""
        if self.cause == "where":
            return []
        steps = self.snapshot.of_step(step)
        return [rank for rank, opened in steps.items() if self._holds(opened.commit.summary)]

    def mark_harmless(self, step: int) -> None:
        """Treat other steps with the same numbers of bad tensors as harmless, like this step."""
        for rank in self.ranks(step):
            self._harmless.setdefault(rank, set()).add(self._bad_tensors(step, rank))

    def trace(self, step: int, ranks: Sequence[int]) -> dict[int, RankTrace]:
        """Return the traces of a step of these ranks; damaged ones are left out and added to `damaged`."""
        steps = self.snapshot.of_step(step)

        def trace_one(rank: int) -> RankTrace | LeftOut:
            try:
                return trace_rank(steps[rank], self.is_bad)
            except DamagedStore as exc:
                return LeftOut(StepKey(rank, step), f"damaged: {exc.message}")

        with ThreadPoolExecutor(_RANKS_AT_ONCE, thread_name_prefix="dump-ingest-origin") as threads:
            traces = list(threads.map(trace_one, [rank for rank in ranks if rank in steps]))
        known = {left.key for left in self.damaged}
        self.damaged += [left for left in traces if isinstance(left, LeftOut) and left.key not in known]
        return {trace.rank: trace for trace in traces if isinstance(trace, RankTrace)}

    def _holds(self, summary: CommitSummary) -> bool:
        if self.cause == "nan":
            return summary.nan_tensors > 0
        if self.cause == "inf":
            return summary.pos_inf_tensors + summary.neg_inf_tensors > 0
        return summary.anomalous_tensors > 0

    def _bad_tensors(self, step: int, rank: int) -> tuple[int, int, int]:
        """Return the numbers of tensors with NaN, +Inf and -Inf; a unique value if they are not known."""
        summary = self.snapshot.summary(StepKey(rank, step))
        if summary.statistics_only or self.cause == "where":
            return (-1, step, rank)
        return (summary.nan_tensors, summary.pos_inf_tensors, summary.neg_inf_tensors)
