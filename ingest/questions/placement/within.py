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

from ingest.questions.compare.by_marginals import propose
from ingest.questions.compare.held_tensors import HeldTensors, hold_together
from ingest.questions.compare.runner import PairRunner, ThreadRunner, answer_each
from ingest.questions.compare.selection import Selection
from ingest.questions.compare.sources import StepTensors, StoreSource
from ingest.questions.placement.agree import Kind, is_parameter, kind_of
from ingest.questions.placement.decide import Certainty, Decision, decide
from ingest.questions.placement.layout_answer import LayoutFinding, PlacedKind, RunLayout
from ingest.questions.placement.misplaced import EqualHolders, find_misplaced, is_constant
from ingest.questions.placement.optimizer_states import OptimizerStates
from ingest.questions.placement.repeated_bias import find_repeated_biases
from ingest.questions.placement.replicas import ReplicaCounts
from ingest.reader.catalog import Catalog
from ingest.reader.ranges import format_ranges
from ingest.reader.snapshot import LeftOut
from workers.arrays.placement_search import is_sum
from workers.errors import DamagedStore, UsageError
from workers.tasks.placed import PlacementQuestion, search_placements

#: How many tensors that all ranks have are tried as what pieces make up.
_AHEAD = 3
_OWN = "each rank its own"


def layout(store: Catalog, step: int | None = None, *, include_partial: bool = False) -> RunLayout:
    """Return how the ranks of a run hold its tensors, and what looks like a mistake.

    Digests decide, and what the dump tells. Of tensors that differ from rank to rank, the elements are read
    once for each of at most three tensors that they may make up; of large ones, parts. Where `gc` has removed
    them, marginals tell it, if the step has any: estimated. Biases that ranks repeat are not found then.

    Args:
        store: the store.
        step: only this step; default: all.
        include_partial: use steps with quarantined or missing files, too.

    Raises:
        UsageError: the store does not have the step, or has only one rank.
        DamagedStore: no step can be read.
    """
    source = StoreSource(Selection(store.url, None, step), store, include_partial=include_partial)
    ranks = sorted({key.rank for key in source.keys})
    if len(ranks) < 2:
        raise UsageError(
            f"{store.url}: only rank {format_ranges(ranks)} has complete steps: a layout takes several ranks"
        )
    steps = sorted({key.step for key in source.keys if key.step is not None})
    search = _LayoutSearch(ranks)
    left_out = list(source.left_out)
    with ThreadRunner() as runner:
        for number in steps:
            held = _load(source, number, left_out)
            if len(held) > 1:
                search.add(hold_together(number, held, store.coordinates(ranks)), runner)
    if not search.kinds and left_out:
        raise DamagedStore(f"{store.url}: no step that can be read ({left_out[0]})")
    return RunLayout(
        store.url,
        tuple(ranks),
        tuple(steps),
        tuple(search.placed()),
        tuple(search.findings),
        tuple(search.replicas.groups()),
        tuple(left_out),
        search.removed,
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
        self._states = OptimizerStates()

    def add(self, held: HeldTensors, runner: PairRunner) -> None:
        """Take in one step over all ranks."""
        rows = {number: _by_digests(held, number) for number in range(len(held.keys))}
        whole = _made_up(held, rows, runner)
        for number in range(len(held.keys)):
            ranks = tuple(holder.rank for holder in held.holders[number])
            placement, why = self._known(held, number, rows[number], whole)
            key = kind_of(held.keys[number], len(held.shapes(number)[0])), placement
            self.kinds.setdefault(key, _Row(held.keys[number].name, ranks, placement, why))
            self._counts[key] += 1
            self._note_parameter(held, number)
        states = self._states.look(held, rows)
        explained = {finding.name for finding in states}  # not also as a reduction that is missing
        misplaced = find_misplaced(held, rows, whole)
        self.findings += [finding for finding in misplaced if finding.name not in explained]
        self.findings += find_repeated_biases(held, rows)
        self.findings += states

    def _known(
        self, held: HeldTensors, number: int, by_digests: EqualHolders, whole: dict[int, tuple[int, str]]
    ) -> tuple[str, str]:
        """Return how ranks hold a tensor, and what shows that."""
        if len(held.holders[number]) == 1:
            return "whole", "one rank has it"
        if told := held.told(number):
            return ", ".join(f"{name}: {kind}" for name, kind in told.items()), "told"
        if number in whole:
            other, placement = whole[number]
            by_marginals = ", by marginals: estimated" if _is_removed(held, (number, other)) else ""
            return placement, f"makes up {held.keys[other].name}{by_marginals}"
        if by_digests.is_replicated:
            return "replicated", "equal bytes"
        if len(by_digests.groups) < len(held.holders[number]):
            texts = [format_ranges(group) for group in by_digests.groups if len(group) > 1]
            return f"replicated in {'; '.join(texts)}", "equal bytes"
        is_removed = held.is_removed(number)
        self.removed += is_removed
        return _OWN, "bytes differ; its elements were removed" if is_removed else "bytes differ"

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


def _by_digests(held: HeldTensors, number: int) -> EqualHolders:
    """Return which ranks hold the same bytes of a tensor."""
    groups: dict[object, list[int]] = {}
    for holder, digest in zip(held.holders[number], held.digests(number), strict=True):
        groups.setdefault(digest if any(digest[0]) else holder, []).append(holder.rank)
    return EqualHolders(tuple(tuple(group) for group in groups.values()))


def _made_up(
    held: HeldTensors, rows: dict[int, EqualHolders], runner: PairRunner
) -> dict[int, tuple[int, str]]:
    """Return by tensor which tensor of all ranks its pieces make up, and how."""
    pairs = [
        (number, other)
        for number, row in rows.items()
        if row.is_distinct and held.is_dumped(number) and not held.told(number)
        for other in _next_replicated(held, rows, number)
    ]
    kept = [pair for pair in pairs if not _is_removed(held, pair)]
    questions = [
        PlacementQuestion(
            held.operands(number),
            held.operands(other)[:1],
            held.pieces(number),
            held.pieces(other).first,
        )
        for number, other in kept
    ]
    whole: dict[int, tuple[int, str]] = {}
    for (number, other), answer in zip(kept, answer_each(runner, search_placements, questions), strict=True):
        decision = decide(answer.search, (held.dtype(number), held.dtype(other)))
        if number not in whole and (placement := _making_up(decision, Certainty.CERTAIN)):
            whole[number] = other, placement
    for number, other in pairs:
        if _is_removed(held, (number, other)) and number not in whole:
            proposal = propose(held, number, held, other)
            if proposal and (placement := _making_up(proposal.decision, Certainty.BY_MARGINALS)):
                whole[number] = other, placement
    return whole


def _is_removed(held: HeldTensors, pair: tuple[int, int]) -> bool:
    return any(map(held.is_removed, pair))


def _making_up(decision: Decision, least: Certainty) -> str:
    """Return how pieces make up a tensor: cut or summed; "" if that is not as certain, or they do not."""
    if decision.certainty is not least or decision.way is None:
        return ""
    own = decision.way.a
    return str(own) if is_sum(own) or own.kind.startswith("shard") else ""


def _next_replicated(held: HeldTensors, rows: dict[int, EqualHolders], number: int) -> list[int]:
    """Return the next tensors that all ranks have alike, with as many axes as this one."""
    shape = held.shapes(number)[0]
    fitting = []
    for other in range(number + 1, len(held.keys)):
        if rows[other].is_replicated and held.is_dumped(other):
            if len(held.shapes(other)[0]) == len(shape) > 0:
                fitting.append(other)
            if len(fitting) == _AHEAD or other > number + 4 * _AHEAD:
                break
    return fitting
