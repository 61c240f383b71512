"""Which steps an answer over ranks and steps is about: those that were whole at one moment.

A cross-rank answer that counts half a step would be wrong without saying so. So it is given for complete
steps only, and names those that it leaves out and why.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ingest.reader.catalog import Catalog, Choice, Damage
from ingest.reader.step import Step
from workers.errors import UsageError
from workers.model import StepKey
from workers.store.model import CommitSummary

NOT_COMMITTED = "not committed"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A step that is in the store, and that an answer is not about."""

    key: StepKey
    reason: str
    """`not committed`, `partial: ...`, or what is damaged."""

    def __str__(self) -> str:
        return f"{self.key}: {self.reason}"


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The committed steps of a store as they were at one moment: later commits change nothing in it."""

    store: Catalog
    chosen: dict[StepKey, Step] = field(repr=False)
    """By step, then rank. Run files are not among them."""
    left_out: tuple[LeftOut, ...] = ()
    _by_step: dict[int, dict[int, Step]] = field(init=False, repr=False)
    """By step, then rank."""
    _ranks: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Put the steps in order, once: a run may have a hundred thousand, and each of them is asked for."""
        by_step: dict[int, dict[int, Step]] = {}
        for key in sorted(self.chosen, key=lambda key: key.order):
            if key.step is not None:
                by_step.setdefault(key.step, {})[key.rank] = self.chosen[key]
        # A frozen value: what follows from the rest of it is set once, here.
        object.__setattr__(self, "_by_step", by_step)
        object.__setattr__(self, "_ranks", tuple(sorted({key.rank for key in self.chosen})))

    @property
    def keys(self) -> list[StepKey]:
        """What it is about: by step, then rank."""
        return list(self.chosen)

    @property
    def ranks(self) -> list[int]:
        """The ranks that have any of its steps, in order."""
        return list(self._ranks)

    @property
    def steps(self) -> list[int]:
        """The steps that any rank has, in order."""
        return list(self._by_step)

    def of_step(self, step: int) -> dict[int, Step]:
        """Return one step of every rank that has it, by rank."""
        return dict(self._by_step.get(step, {}))

    def step(self, rank: int, step: int) -> Step | None:
        """Return one step of one rank; None where the snapshot has it not."""
        return self.chosen.get(StepKey(rank, step))

    def summary(self, key: StepKey) -> CommitSummary:
        """Return the totals of one of its steps."""
        return self.chosen[key].commit.summary


def take_snapshot(
    store: Catalog, rank: Choice = None, step: Choice = None, *, include_partial: bool = False
) -> Snapshot:
    """Note which steps are whole now.

    Args:
        store: the store, which is asked anew: commits that it has read before may be older.
        rank: one rank, or several; all where None.
        step: one step, or several; all where None.
        include_partial: take steps with quarantined or missing files, too. What is not committed, or
            damaged, is never taken.

    Raises:
        UsageError: a rank or step that was asked for is not in the store, or nothing is left.
    """
    fresh = store.reopened()
    damages: list[Damage] = []
    steps = fresh.select(rank, step, damages=damages)
    chosen: dict[StepKey, Step] = {}
    left_out = [LeftOut(damage.key, f"damaged: {damage.reason}") for damage in damages]
    for one in steps:
        summary = one.commit.summary
        if one.key.step is None:
            continue
        if summary.status == "complete" or include_partial:
            chosen[one.key] = one
        else:
            left_out.append(LeftOut(one.key, partial_reason(summary)))
    known = {*(one.key for one in steps), *(one.key for one in left_out)}
    left_out += [LeftOut(key, NOT_COMMITTED) for key in fresh.listed(rank, step) if key not in known]
    left_out.sort(key=lambda one: one.key.order)
    if not chosen:
        raise UsageError(
            f"{store.url}: no complete step" + (f" ({left_out[0]})" if left_out else ""),
            hint="--include-partial takes partial ones; `dump-ingest ls` shows what there is.",
        )
    return Snapshot(fresh, chosen, tuple(left_out))


def partial_reason(summary: CommitSummary) -> str:
    """Say why a step is partial."""
    parts = [
        f"{count} files {what}"
        for count, what in (
            (summary.quarantined, "quarantined"),
            (summary.unparsed, "with names that are not understood"),
        )
        if count
    ]
    return "partial" + (f": {', '.join(parts)}" if parts else "")
