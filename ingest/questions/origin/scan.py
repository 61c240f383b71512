"""Which steps and ranks to look at, and looking at them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from ingest.questions.origin.calls import IsBad, RankTrace, trace_rank
from ingest.reader.snapshot import LeftOut, Snapshot
from ingest.reader.step import Step
from workers.errors import DamagedStore
from workers.model import StepKey
from workers.store.model import CommitSummary

#: Ranks of one step whose index is read at once: what bounds the memory.
_LOOKS_AT_ONCE = 8


@dataclass
class RankTraces:
    """Looks at the steps of a snapshot that may hold what is searched.

    Memory: the index of eight steps of one rank while they are read, and what `RankTrace` keeps of one step of all
    ranks.
    """

    snapshot: Snapshot
    is_bad: IsBad
    cause: str
    """`auto`, `nan`, `inf` or `where`."""
    damaged: list[LeftOut] = field(default_factory=list)
    """Steps that turned out to be damaged."""
    _harmless: dict[int, set[tuple[int, int, int]]] = field(default_factory=dict)
    """By rank, the numbers of tensors with NaN, +Inf and -Inf of steps in which all of it was harmless."""
    skipped: list[int] = field(default_factory=list)
    """Steps that were not looked at, for they have as much of it as harmless ones."""

    def steps(self) -> Iterator[int]:
        """Yield the steps that may hold what is searched, in order."""
        for step in self.snapshot.steps:
            suspects = self.suspects(step)
            if not suspects:
                continue
            if all(self._signature(step, rank) in self._harmless.get(rank, ()) for rank in suspects):
                self.skipped.append(step)
                continue
            yield step

    def suspects(self, step: int) -> list[int]:
        """Return the ranks that may hold what is searched in a step; by the totals of their commits."""
        return [rank for rank, one in self.snapshot.of_step(step).items() if self._may(one.commit.summary)]

    def suspects_of(self, step: Step) -> bool:
        """Whether one step of one rank may hold what is searched."""
        return self._may(step.commit.summary)

    def certain(self, step: int) -> list[int]:
        """Return the ranks whose commit says that they hold it in a step; none where it cannot say so."""
        if self.cause == "where":
            return []
        return [rank for rank, one in self.snapshot.of_step(step).items() if self._has(one.commit.summary)]

    def note_harmless(self, step: int) -> None:
        """Take other steps with as much of it for as harmless as this one."""
        for rank in self.suspects(step):
            self._harmless.setdefault(rank, set()).add(self._signature(step, rank))

    def looks(self, step: int, ranks: Sequence[int]) -> dict[int, RankTrace]:
        """Look at a step of these ranks; what is damaged is noted and left out."""
        steps = self.snapshot.of_step(step)
        chosen = [rank for rank in ranks if rank in steps]

        def one(rank: int) -> RankTrace | LeftOut:
            try:
                return trace_rank(steps[rank], self.is_bad)
            except DamagedStore as exc:
                return LeftOut(StepKey(rank, step), f"damaged: {exc.message}")

        with ThreadPoolExecutor(_LOOKS_AT_ONCE, thread_name_prefix="dump-ingest-origin") as threads:
            found = list(threads.map(one, chosen))
        known = {left.key for left in self.damaged}
        self.damaged += [left for left in found if isinstance(left, LeftOut) and left.key not in known]
        return {one.rank: one for one in found if isinstance(one, RankTrace)}

    def _may(self, summary: CommitSummary) -> bool:
        # Statistics that only the dump gives may have lost the number of NaN, and a condition is on anything.
        return self.cause == "where" or bool(summary.statistics_only) or self._has(summary)

    def _has(self, summary: CommitSummary) -> bool:
        if self.cause == "nan":
            return summary.nan_tensors > 0
        if self.cause == "inf":
            return summary.pos_inf_tensors + summary.neg_inf_tensors > 0
        return summary.anomalous_tensors > 0

    def _signature(self, step: int, rank: int) -> tuple[int, int, int]:
        one = self.snapshot.summary(StepKey(rank, step))
        if one.statistics_only or self.cause == "where":
            return (-1, step, rank)  # like no other
        return (one.nan_tensors, one.pos_inf_tensors, one.neg_inf_tensors)


def in_words(items: Iterable[str], *, most: int = 5) -> str:
    """List a few, and say how many more there are."""
    every = list(items)
    rest = len(every) - most
    return ", ".join(every[:most]) + (f" and {rest} more" if rest > 0 else "")
