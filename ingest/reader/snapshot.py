"""Snapshots: the complete steps of a store at one moment, which answers over ranks and steps are about.

An answer that counted half a step would be wrong without a sign of it. So answers are about complete steps
only. They name the steps that they leave out, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike, fspath
from typing import Any, TypeAlias, TypeVar

from ingest.reader.catalog import Catalog, Damage
from ingest.reader.choice import Choice
from ingest.reader.step import Step
from ingest.reader.text import files_with_problems
from workers.errors import DamagedStore, UsageError
from workers.model import StepKey
from workers.store.model import CommitSummary

NOT_COMMITTED = "not committed"
#: What to do if too few steps are complete.
PARTIAL_HINT = "--include-partial uses partial steps, too."
_DAMAGED = "damaged: "
#: Indexes that are read at once to find those that are damaged.
_INDEXES_AT_ONCE = 4

_Answer = TypeVar("_Answer")
_Read: TypeAlias = Callable[[Step], object]


def _read_index(step: Step) -> object:
    return step.tables


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A step in the store that an answer is not about."""

    key: StepKey
    reason: str
    """`not committed`, `partial: ...`, or what is damaged."""

    def __str__(self) -> str:
        return f"{self.key}: {self.reason}"

    @classmethod
    def damaged(cls, key: StepKey, reason: str) -> LeftOut:
        """Return a step that is left out because of what is damaged of it."""
        return cls(key, f"{_DAMAGED}{reason.removeprefix(f'{key}: ')}")

    @property
    def is_damaged(self) -> bool:
        """Whether the step is damaged, and not just unfinished or partial."""
        return self.reason.startswith(_DAMAGED)

    def to_dict(self) -> dict[str, Any]:
        """Return it as the JSON of answers has it."""
        return {"rank": self.key.rank, "step": self.key.step, "reason": self.reason}


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The committed steps of a store as they were at one moment. Later commits do not change it."""

    store: Catalog
    chosen: dict[StepKey, Step] = field(repr=False)
    """By step, then rank. Run files are not among them."""
    left_out: tuple[LeftOut, ...] = ()

    @cached_property
    def _by_step(self) -> dict[int, dict[int, Step]]:
        """By step, then rank: a run may have a hundred thousand, and each of them is asked for."""
        by_step: dict[int, dict[int, Step]] = {}
        for key in sorted(self.chosen, key=lambda key: key.order):
            if key.step is not None:
                by_step.setdefault(key.step, {})[key.rank] = self.chosen[key]
        return by_step

    @cached_property
    def _ranks(self) -> list[int]:
        return sorted({key.rank for key in self.chosen})

    @property
    def keys(self) -> list[StepKey]:
        """The keys of its steps: by step, then rank."""
        return list(self.chosen)

    @property
    def ranks(self) -> list[int]:
        """The ranks of its steps, in order."""
        return list(self._ranks)

    @property
    def steps(self) -> list[int]:
        """The steps that any rank has, in order."""
        return list(self._by_step)

    def of_step(self, step: int) -> dict[int, Step]:
        """Return one step of every rank that has it, by rank."""
        return dict(self._by_step.get(step, {}))

    def only(self, *, ranks: Collection[int] | None = None, steps: Collection[int] | None = None) -> Snapshot:
        """Return its steps of these ranks and steps, with all that is left out; itself if they are all.

        None stands for all ranks, or all steps.
        """
        wanted_ranks = set(self._ranks if ranks is None else ranks)
        wanted_steps = set(self._by_step if steps is None else steps)
        chosen = {
            key: opened
            for key, opened in self.chosen.items()
            if key.rank in wanted_ranks and key.step in wanted_steps
        }
        return self if len(chosen) == len(self.chosen) else Snapshot(self.store, chosen, self.left_out)

    def step(self, rank: int, step: int) -> Step | None:
        """Return one step of one rank; None if the snapshot does not have it."""
        return self.chosen.get(StepKey(rank, step))

    def summary(self, key: StepKey) -> CommitSummary:
        """Return the totals of one of its steps."""
        return self.chosen[key].commit.summary

    def without_damaged(self, read: _Read = _read_index) -> Snapshot:
        """Return the steps of which something can be read; the others are left out. Reads all of it.

        Args:
            read: reads what is needed of a step; its index if nothing else is said.

        Raises:
            DamagedStore: no step is left.
        """

        def problem_of(step: Step) -> str:
            try:
                read(step)
            except DamagedStore as exc:
                return exc.message
            step.forget_tables()
            return ""

        with ThreadPoolExecutor(_INDEXES_AT_ONCE, thread_name_prefix="dump-ingest-read") as threads:
            problems = dict(zip(self.chosen, threads.map(problem_of, self.chosen.values()), strict=True))
        chosen = {key: step for key, step in self.chosen.items() if not problems[key]}
        damaged = [LeftOut.damaged(key, reason) for key, reason in problems.items() if reason]
        if damaged and not chosen:
            raise DamagedStore(f"{damaged[0]}")
        left_out = sorted([*self.left_out, *damaged], key=lambda left: left.key.order)
        return Snapshot(self.store, chosen, tuple(left_out))


def ask_of_undamaged(
    snapshot: Snapshot, ask: Callable[[Snapshot], _Answer], read: _Read = _read_index
) -> _Answer:
    """Ask a question about a snapshot, or about the part of it that can be read.

    The question is asked again, without the steps that are damaged, if it comes upon one.

    Args:
        snapshot: the snapshot.
        ask: answers the question.
        read: reads what the question needs of a step; its index if nothing else is said.

    Raises:
        DamagedStore: no step is left.
    """
    try:
        return ask(snapshot)
    except DamagedStore:
        rest = snapshot.without_damaged(read)
        if len(rest.chosen) == len(snapshot.chosen):
            raise  # something else is damaged
        return ask(rest)


def take_snapshot(
    store: Catalog,
    rank: Choice = None,
    step: Choice = None,
    *,
    include_partial: bool = False,
    allow_empty: bool = False,
) -> Snapshot:
    """Return the steps that are complete now.

    Args:
        store: the store. It is read again: commits that it has read before may be outdated.
        rank: one rank, or several; all if None.
        step: one step, or several; all if None.
        include_partial: also take steps with quarantined or missing files. Steps that are not committed, or
            damaged, are always left out.
        allow_empty: return an empty snapshot of a store without such steps, instead of an error.

    Raises:
        UsageError: one of the ranks or steps is not in the store, or no complete step is left; `store` is a
            URL and not a store.
    """
    refuse_url(store)
    fresh = store.reopened()
    damages: list[Damage] = []
    selected = fresh.select(rank, step, damages=damages)
    chosen: dict[StepKey, Step] = {}
    left_out: list[LeftOut] = []
    for opened in selected:
        if opened.key.step is None:
            continue
        if include_partial or opened.status == "complete":
            chosen[opened.key] = opened
        else:
            left_out.append(LeftOut(opened.key, partial_reason(opened.commit.summary)))
    left_out += (LeftOut.damaged(damage.key, damage.reason) for damage in damages)
    known = chosen.keys() | {left.key for left in left_out}
    left_out += (LeftOut(key, NOT_COMMITTED) for key in set(fresh.listed(rank, step)) - known)
    left_out.sort(key=lambda left: left.key.order)
    if not chosen:
        _refuse_nothing(store, left_out, allow_empty=allow_empty)
    return Snapshot(fresh, chosen, tuple(left_out))


def refuse_url(store: object) -> None:
    """Raise `UsageError` if a URL or path was given in place of a store."""
    if isinstance(store, str | PathLike):
        raise UsageError(
            f"{fspath(store)!r} is where a store is, and not a store",
            hint="Open it with `ingest.open_store`, and pass what that returns.",
        )


def _refuse_nothing(store: Catalog, left_out: Sequence[LeftOut], *, allow_empty: bool) -> None:
    first = f" ({left_out[0]})" if left_out else ""
    if left_out and left_out[0].is_damaged:
        raise DamagedStore(f"{store.url}: no step that can be read{first}")
    if not allow_empty:
        raise UsageError(
            f"{store.url}: no complete step{first}",
            hint="--include-partial takes partial ones; `dump-ingest ls` lists all steps.",
        )


def partial_reason(summary: CommitSummary) -> str:
    """Return why a step is partial, as in `partial: 1 file quarantined`."""
    files = files_with_problems(summary)
    return "partial" + (f": {files}" if files else "")
