"""How the ranks of one run hold its tensors, without a reference.

Equal digests show replicas. What differs from rank to rank may be shards, partial sums, or the work of ranks
on other data; that is told by the dump, or by a tensor soon after it that all ranks have and that the pieces
make up: a sum that was reduced, or shards that were gathered. What neither shows is left open.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from ingest.questions.compare.held_tensors import HeldTensors, hold_together
from ingest.questions.compare.runner import PairRunner, ThreadRunner
from ingest.questions.compare.selection import Selection
from ingest.questions.compare.step_tensors import StepTensors
from ingest.questions.compare.stored_steps import StoreSource
from ingest.questions.placement.agree import Kind, is_parameter, kind_of
from ingest.questions.placement.collective_results import find_collective_results, is_removed
from ingest.questions.placement.equal_holders import EqualHolders, equal_holders, is_constant
from ingest.questions.placement.layout_answer import LayoutFinding, PlacedKind, RunLayout
from ingest.questions.placement.mistakes import MistakeSearch
from ingest.questions.placement.replicas import ReplicaCounts
from ingest.reader.catalog import Catalog
from ingest.reader.ranges import format_ranges
from ingest.reader.snapshot import PARTIAL_HINT, LeftOut, refuse_url
from workers.errors import DamagedStore, UsageError

_OWN, _OPEN = "each rank its own", "?"


def layout(store: Catalog, step: int | None = None, *, include_partial: bool = False) -> RunLayout:
    """Find the layout of a run: how its ranks hold its tensors, and what looks like a mistake.

    Digests decide, and what the dump tells. Of tensors that differ from rank to rank, the elements are read
    once for each of at most three tensors that they may make up; of large ones, parts. Where `gc` has removed
    them, marginals tell it, if the step has any: estimated. Biases that ranks repeat are not found then.

    Args:
        store: the store.
        step: only this step; default: all.
        include_partial: use steps with quarantined or missing files, too.

    Raises:
        UsageError: the store does not have the step, or has no step that is complete on two ranks.
        DamagedStore: no step can be read on two ranks.
    """
    refuse_url(store)
    source = StoreSource(Selection(store.url, None, step), store, include_partial=include_partial)
    ranks = sorted({key.rank for key in source.keys})
    if len(ranks) < 2:
        raise UsageError(
            f"{store.url}: only rank {format_ranges(ranks)} has complete steps: a layout takes several ranks",
            hint=PARTIAL_HINT if source.left_out else "`dump-ingest ls` lists all ranks and steps.",
        )
    steps = sorted({key.step for key in source.keys if key.step is not None})
    search = _LayoutSearch(ranks)
    left_out = list(source.left_out)
    with ThreadRunner() as runner:
        for number in steps:
            held = _load(source, number, left_out)
            if len(held) > 1:
                search.add(hold_together(number, held, store.coordinates(ranks)), runner)
    if not search.kinds:
        _refuse_nothing(store.url, left_out)
    return RunLayout(
        store=store.url,
        ranks=tuple(ranks),
        steps=tuple(steps),
        kinds=tuple(search.placed()),
        findings=tuple(search.findings),
        replicas=tuple(search.replicas.groups()),
        left_out=tuple(left_out),
        removed=search.removed,
    )


def _refuse_nothing(url: str, left_out: Sequence[LeftOut]) -> None:
    """Raise why no step has tensors of two ranks."""
    damaged = [left for left in left_out if left.is_damaged]
    if damaged:
        raise DamagedStore(f"{url}: no step can be read on two ranks ({damaged[0]})")
    first = f" ({left_out[0]})" if left_out else ""
    raise UsageError(
        f"{url}: no step has tensors on two ranks{first}",
        hint=PARTIAL_HINT if left_out else "`dump-ingest ls` lists all ranks and steps.",
    )


def _load(source: StoreSource, step: int, left_out: list[LeftOut]) -> dict[int, StepTensors]:
    loaded = {}
    for key in (key for key in source.keys if key.step == step):
        try:
            loaded[key.rank] = source.load(key)
        except DamagedStore as exc:
            left_out.append(LeftOut.damaged(key, exc.message))
    return loaded


@dataclass(frozen=True, slots=True)
class _Row:
    """One kind of tensor, as it was held the first time."""

    name: str
    ranks: tuple[int, ...]
    placement: str
    why: str


class _LayoutSearch:
    """What is known after some steps."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.replicas = ReplicaCounts(ranks)
        self.kinds: dict[tuple[Kind, str], _Row] = {}
        """By kind and placement."""
        self.findings: list[LayoutFinding] = []
        self.removed = 0
        self._counts: Counter[tuple[Kind, str]] = Counter()
        self._mistakes = MistakeSearch()

    def add(self, held: HeldTensors, runner: PairRunner) -> None:
        """Take in one step over all ranks."""
        holders_of = equal_holders(held)
        whole = find_collective_results(held, holders_of, runner)
        for number in range(len(held.keys)):
            ranks = tuple(holder.rank for holder in held.holders[number])
            placement, why = self._known(held, number, holders_of[number], whole)
            key = kind_of(held.keys[number], len(held.shapes(number)[0])), placement
            self.kinds.setdefault(key, _Row(held.keys[number].name, ranks, placement, why))
            self._counts[key] += 1
            self._note_parameter(held, number)
        self.findings += self._mistakes.find(held, holders_of, whole)

    def _known(
        self, held: HeldTensors, number: int, by_digests: EqualHolders, whole: dict[int, tuple[int, str]]
    ) -> tuple[str, str]:
        """Return the placement of a tensor, and what shows it."""
        if len(held.holders[number]) == 1:
            return "whole", "one rank has it"
        if told := held.told(number):
            return ", ".join(f"{name}: {kind}" for name, kind in told.items()), "told"
        if number in whole:
            other, placement = whole[number]
            by_marginals = ", by marginals: estimated" if is_removed(held, (number, other)) else ""
            return placement, f"makes up {held.keys[other].name}{by_marginals}"
        if by_digests.is_replicated:
            return "replicated", "equal bytes"
        if len(by_digests.groups) < len(held.holders[number]):
            texts = [format_ranges(group) for group in by_digests.groups if len(group) > 1]
            return f"replicated in {'; '.join(texts)}", "equal bytes"
        return self._unplaced(held, number, by_digests)

    def _unplaced(self, held: HeldTensors, number: int, by_digests: EqualHolders) -> tuple[str, str]:
        """Return what is known of a tensor that no two ranks are known to hold alike."""
        if not by_digests.is_known:
            return _OPEN, "bytes are not known: only statistics were dumped"
        removed = held.is_removed(number)
        self.removed += removed
        return _OWN, "bytes differ; its elements were removed" if removed else "bytes differ"

    def _note_parameter(self, held: HeldTensors, number: int) -> None:
        key = held.keys[number]
        if not is_parameter(key):
            return
        if is_constant(held, number):
            return
        contents: dict[int, Hashable] = {
            holder.rank: digest if any(digest[0]) else holder
            for holder, digest in zip(held.holders[number], held.digests(number), strict=True)
        }
        self.replicas.add(contents, math.prod(held.shapes(number)[0]))

    def placed(self) -> Iterator[PlacedKind]:
        """Yield each kind with the number of its tensors."""
        for key, row in self.kinds.items():
            yield PlacedKind(row.name, row.ranks, row.placement, row.why, self._counts[key])
