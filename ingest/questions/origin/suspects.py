"""The steps and ranks that may hold what is searched for, by the totals of their commits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeAlias

from ingest.questions.origin.calls import IsBad, RankTrace, trace_rank
from ingest.reader.snapshot import LeftOut, Snapshot
from ingest.reader.step import Step
from ingest.reader.step_statistics import CleanSteps
from workers.errors import DamagedStore
from workers.model import StepKey
from workers.store.model import CommitSummary

#: Ranks of one step whose index is read at once; this bounds the memory. In a directory there is little to
#: wait for, and more threads keep each other from decoding: with eight, it takes half as long again.
_RANKS_AT_ONCE, _RANKS_AT_ONCE_IN_DIRECTORY = 8, 2

_NAN, _INF = ("nan_count",), ("pos_inf_count", "neg_inf_count")
#: The counts that are zero in a step without what is searched for, by cause.
_COUNTS = {"auto": (*_NAN, *_INF), "nan": _NAN, "inf": _INF}

#: The numbers of tensors with NaN, +Inf and -Inf.
_Totals: TypeAlias = tuple[int, int, int]


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
    _harmless: dict[int, set[_Totals]] = field(default_factory=dict)
    """By rank: what steps that turned out to be harmless hold."""
    _traced: tuple[int, dict[int, RankTrace]] = (-1, {})
    """The step that was traced last, and its traces by rank."""
    _clean: CleanSteps = field(init=False)

    def __post_init__(self) -> None:
        """Prepare what the cubes know; nothing is read yet."""
        self._clean = CleanSteps(self.snapshot, _COUNTS.get(self.cause, ()))

    def steps(self) -> Iterator[int]:
        """Yield the steps that may hold what is searched for, in order.

        Where the totals of the commits do not say that a step holds it, the cubes may know that it does not.
        """
        for step in self.snapshot.steps:
            is_in_doubt = self.cause != "where" and not self.certain_ranks(step)
            if self.ranks(step) and not (is_in_doubt and step in self._clean):
                yield step

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

    def worrying_ranks(self, step: int) -> list[int]:
        """Return the certain ranks of a step without those that hold as much as in a harmless step.

        Only totals are compared, so no index is read.
        """
        return [
            rank
            for rank in self.certain_ranks(step)
            if self._bad_tensors(step, rank) not in self._harmless.get(rank, ())
        ]

    def mark_harmless(self, step: int, ranks: Iterable[int]) -> None:
        """Treat ranks of other steps in which as many tensors are bad as harmless, as these of this step."""
        for rank in ranks:
            self._harmless.setdefault(rank, set()).add(self._bad_tensors(step, rank))

    def trace(self, step: int, ranks: Sequence[int]) -> dict[int, RankTrace]:
        """Return the traces of a step of these ranks; damaged ones are left out and added to `damaged`."""
        steps = self.snapshot.of_step(step)
        known = self._traced[1] if self._traced[0] == step else {}

        def trace_one(rank: int) -> RankTrace | LeftOut:
            try:
                return trace_rank(steps[rank], self.is_bad)
            except DamagedStore as exc:
                return LeftOut.damaged(StepKey(rank, step), exc.message)

        unknown = [rank for rank in ranks if rank in steps and rank not in known]
        is_local = self.snapshot.store.objects.is_local
        at_once = _RANKS_AT_ONCE_IN_DIRECTORY if is_local else _RANKS_AT_ONCE
        with ThreadPoolExecutor(at_once, thread_name_prefix="dump-ingest-origin") as threads:
            new = list(threads.map(trace_one, unknown))
        named = {left.key for left in self.damaged}
        self.damaged += [left for left in new if isinstance(left, LeftOut) and left.key not in named]
        traces = {**known, **{trace.rank: trace for trace in new if isinstance(trace, RankTrace)}}
        self._traced = (step, traces)
        return {rank: traces[rank] for rank in ranks if rank in traces}

    def _holds(self, summary: CommitSummary) -> bool:
        if self.cause == "nan":
            return summary.nan_tensors > 0
        if self.cause == "inf":
            return summary.pos_inf_tensors + summary.neg_inf_tensors > 0
        return summary.anomalous_tensors > 0

    def _bad_tensors(self, step: int, rank: int) -> _Totals:
        """Return the numbers of tensors with NaN, +Inf and -Inf; a unique value if they are not known."""
        summary = self.snapshot.summary(StepKey(rank, step))
        if summary.statistics_only or self.cause == "where":
            return (-1, step, rank)
        return (summary.nan_tensors, summary.pos_inf_tensors, summary.neg_inf_tensors)
