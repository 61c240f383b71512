"""Compare: match the tensors of A and B step by step, decide by digests what these decide, read the rest."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ingest.questions.compare.mapping import NameMapping
from ingest.questions.compare.matching import Pairing, match
from ingest.questions.compare.result import (
    ComparedStep,
    ComparedTensor,
    Comparison,
    FirstDifference,
    Verdict,
)
from ingest.questions.compare.runner import Tasks, Threads, batched
from ingest.questions.compare.selection import Selection, parse
from ingest.questions.compare.sources import Source, StoreSource, Tensors, open_source
from ingest.questions.compare.thresholds import ThresholdLimits, ThresholdRule, Thresholds
from ingest.reader.catalog import Catalog
from ingest.reader.ranges import format_ranges
from ingest.reader.snapshot import LeftOut
from ingest.reader.step import Step
from workers.arrays.statistics import Statistics
from workers.errors import UsageError
from workers.model import StepKey
from workers.tasks.compare import Pair, PairComparison

if TYPE_CHECKING:
    from distributed import Client

#: What can be compared: `run.zarr@RANK,STEP` or any part of it, a dump directory, an open store, or a step.
Side: TypeAlias = str | PathLike[str] | Catalog | Step

#: Tensors that a comparison keeps; of more, the worst.
MAX_KEPT = 50_000


def compare(
    a: Side,
    b: Side,
    *,
    mapping: NameMapping | None = None,
    thresholds: Thresholds | None = None,
    include_partial: bool = False,
    ignore_unmatched: bool = False,
    keep_equal: bool = False,
    client: Client | Callable[[], Client] | None = None,
    storage_options: dict[str, Any] | None = None,
) -> Comparison:
    """Compare A with its reference B: one step of a rank, all steps of a rank, or whole runs.

    Equal digests are decided without reading a payload; of what differs, each distinct pair of payloads is
    read once. Without `client`, in at most four threads of this process.

    Memory: the indexes of four steps, and in each thread or task about 400 MiB, whatever the size of the
    tensors (see `workers.tasks.compare.compare_pairs`); and what is kept of `MAX_KEPT` tensors, 100 MB.

    Args:
        a: what is looked at: `run.zarr`, `run.zarr@RANK`, `run.zarr@RANK,STEP`, `run.zarr@step=STEP`, a URL,
            a dump directory of any known format, a `Catalog`, or a `Step`.
        b: what it is compared with.
        mapping: names of B by names of A, from `load_mapping`.
        thresholds: how much tensors may differ, from `load_thresholds`; default: by type.
        include_partial: compare steps with quarantined or missing files, too.
        ignore_unmatched: whether what is in one of the two alone is no difference.
        keep_equal: list tensors that are equal, too.
        client: of a Dask cluster, whose workers see A and B under the same names; or what connects to it, and
            is called when A and B have been found.
        storage_options: for fsspec, of stores that are named by URL; no credentials.

    Raises:
        UsageError: A or B is not there, or they have no step or no tensor in common.
        DamagedStore: the index of a step is damaged. Damaged tensors are noted in the result.
        StoreError: a store cannot be reached.
    """
    (side_a, selected_a), (side_b, selected_b) = (
        _open(one, include_partial=include_partial, storage_options=storage_options) for one in (a, b)
    )
    pairs, only_a, only_b, incomplete = _pair_steps(side_a, selected_a, side_b, selected_b)
    chosen = _Choices(
        mapping or NameMapping(),
        thresholds or Thresholds(),
        keep_equal=keep_equal,
        include_partial=include_partial,
    )
    gathered = _Gathered(chosen)
    with ExitStack() as stack:
        runner: Tasks | Threads
        if client is None:
            runner = stack.enter_context(Threads())
        else:
            runner = Tasks(client() if callable(client) else client)
        loading = stack.enter_context(ThreadPoolExecutor(2, thread_name_prefix="dump-ingest-load"))
        ahead: deque[tuple[Future[Tensors], Future[Tensors]]] = deque()
        for key_a, key_b in pairs:
            # The indexes of the next pair are read while this one is compared.
            ahead.append((loading.submit(side_a.load, key_a), loading.submit(side_b.load, key_b)))
            if len(ahead) > 1:
                gathered.take(*_loaded(ahead), runner)
        while ahead:
            gathered.take(*_loaded(ahead), runner)
    left_out = [*(("A", one) for one in side_a.left_out), *(("B", one) for one in side_b.left_out)]
    gathered.check(side_a.label, side_b.label)
    return Comparison(
        a=side_a.label,
        b=side_b.label,
        steps=tuple(gathered.steps),
        tensors=tuple(gathered.kept()),
        first=gathered.first,
        left_out=(*left_out, *gathered.left_out),
        only_a=tuple(only_a),
        only_b=tuple(only_b),
        incomplete=incomplete + gathered.incomplete,
        notes=tuple(_rank_notes(pairs) + gathered.notes()),
        unmatched_matter=not ignore_unmatched,
        damaged=gathered.damaged,
    )


def _loaded(ahead: deque[tuple[Future[Tensors], Future[Tensors]]]) -> tuple[Tensors, Tensors]:
    a, b = ahead.popleft()
    return a.result(), b.result()


def _open(
    side: Side, *, include_partial: bool, storage_options: dict[str, Any] | None
) -> tuple[Source, Selection]:
    if isinstance(side, Step):
        chosen = Selection(side.address.url, side.key.rank, side.key.step)
        if chosen.step is None:
            raise UsageError(f"{side.key} belongs to no step", hint="Compare steps, ranks or runs.")
        return StoreSource(chosen, Catalog(side.objects), include_partial=include_partial), chosen
    if isinstance(side, Catalog):
        chosen = Selection(side.url)
        return StoreSource(chosen, side, include_partial=include_partial), chosen
    chosen = parse(str(side))
    source = open_source(chosen, include_partial=include_partial, storage_options=storage_options)
    return source, chosen


def _pair_steps(
    a: Source, selected_a: Selection, b: Source, selected_b: Selection
) -> tuple[list[tuple[StepKey, StepKey]], list[StepKey], list[StepKey], int]:
    """Return which step is compared with which, in order, and what only one side has.

    The number is of steps that both have, but one of them not whole: these are in no list.

    One rank against one rank is compared whatever their numbers; several by their numbers. So are steps,
    but that one step is compared with another only where both are named.

    Raises:
        UsageError: they have none in common.
    """
    ranks = [sorted({key.rank for key in side.keys}) for side in (a, b)]
    # By number, but for one on either side.
    rank_of_b = (
        {ranks[0][0]: ranks[1][0]} if len(ranks[0]) == len(ranks[1]) == 1 else {r: r for r in ranks[0]}
    )
    if selected_a.step is not None and selected_b.step is not None:
        step_of_b = {selected_a.step: selected_b.step}
    else:
        step_of_b = {key.step or 0: key.step or 0 for key in a.keys}
    there = set(b.keys)
    pairs, only_a = [], []
    for key in a.keys:
        other = StepKey(rank_of_b[key.rank], step_of_b[key.step or 0])
        if other in there:
            pairs.append((key, other))
        else:
            only_a.append(key)
    if not pairs:
        raise UsageError(
            f"{a.label} and {b.label} have no rank and step in common",
            hint=f"A has {_holds(a)}, B has {_holds(b)}. Name what to compare: STORE@RANK,STEP.",
        )
    compared = {other for _, other in pairs}
    # Somebody who names one step of A does not miss the others of B.
    only_a = [key for key in only_a if selected_b.step is None]
    only_b = [key for key in b.keys if key not in compared and selected_a.step is None]
    if len(set(ranks[0])) == 1 and selected_a.rank is not None:
        only_b = [key for key in only_b if key.rank == pairs[0][1].rank]
    if selected_b.rank is not None:
        only_a = [key for key in only_a if key.rank == pairs[0][0].rank]
    rank_of_a = {theirs: ours for ours, theirs in rank_of_b.items()}
    left_a, left_b = ({one.key for one in side.left_out} for side in (a, b))
    half_a = [key for key in only_a if StepKey(rank_of_b.get(key.rank, key.rank), key.step) in left_b]
    half_b = [key for key in only_b if StepKey(rank_of_a.get(key.rank, key.rank), key.step) in left_a]
    only_a = [key for key in only_a if key not in half_a]
    only_b = [key for key in only_b if key not in half_b]
    return pairs, only_a, only_b, len(half_a) + len(half_b)


def _holds(side: Source) -> str:
    ranks, steps = {key.rank for key in side.keys}, {key.step or 0 for key in side.keys}
    return f"ranks {format_ranges(ranks)} and steps {format_ranges(steps)}"


def _rank_notes(pairs: Sequence[tuple[StepKey, StepKey]]) -> list[str]:
    found = dict.fromkeys((a.rank, b.rank) for a, b in pairs if a.rank != b.rank)
    return [f"rank {a} of A is compared with rank {b} of B" for a, b in found]


@dataclass(frozen=True, slots=True)
class _Choices:
    mapping: NameMapping
    thresholds: Thresholds
    keep_equal: bool
    include_partial: bool


@dataclass(slots=True)
class _Gathered:
    """What was found so far, step by step."""

    choices: _Choices
    steps: list[ComparedStep] = field(default_factory=list)
    first: FirstDifference | None = None
    left_out: list[tuple[str, LeftOut]] = field(default_factory=list)
    matched: int = 0
    examples: tuple[str, str] = ("", "")
    dropped: int = 0
    damaged: int = 0
    incomplete: int = 0
    _tensors: list[ComparedTensor] = field(default_factory=list)
    _unused: set[int] | None = None

    def take(self, a: Tensors, b: Tensors, runner: Tasks | Threads) -> None:
        """Compare one step with another."""
        partial = [(side, LeftOut(t.key, t.partial)) for side, t in (("A", a), ("B", b)) if t.partial]
        if partial and not self.choices.include_partial:
            self.left_out += partial
            self.incomplete += len(partial) == 1
            return
        step = _StepComparison(a, b, self.choices)
        found = sorted(step.compare(runner), key=lambda one: (not one.name_a, one.number))
        self.matched += step.matched
        self.damaged += sum(one.damaged for one in found)
        if a.keys and b.keys and not self.examples[0]:
            self.examples = a.keys[0].name, b.keys[0].name
        self.steps.append(ComparedStep(a.key, b.key, dict(step.counts)))
        first = step.first(found)
        if first and (self.first is None or _when(first) < _when(self.first)):
            self.first = first
        self._tensors += [one for one in found if self.choices.keep_equal or one.verdict is not Verdict.EQUAL]
        if len(self._tensors) > 2 * MAX_KEPT:
            self._drop()
        if self._unused != set() and self.choices.mapping.rules:
            unused = set(self.choices.mapping.unused([key.name for key in a.keys]))
            self._unused = unused if self._unused is None else self._unused & unused

    def kept(self) -> list[ComparedTensor]:
        """Return the tensors, in order of step, rank and execution."""
        if len(self._tensors) > MAX_KEPT:
            self._drop()
        order = {step.key_a: n for n, step in enumerate(self.steps)}
        return sorted(self._tensors, key=lambda one: (order[one.key_a], not one.name_a, one.number))

    def notes(self) -> list[str]:
        """Return what should be known beside the figures."""
        found = [f"pair {n + 1} of the mapping file fits no tensor of A" for n in sorted(self._unused or ())]
        if ambiguous := sum(one.ambiguous for one in self._tensors):
            found.append(f"{ambiguous} tensors might as well be matched with others (column `ambiguous`)")
        if self.dropped:
            found.append(
                f"only the {MAX_KEPT} worst tensors are listed, {self.dropped} others are only counted"
            )
        return found

    def check(self, a: str, b: str) -> None:
        """Refuse an answer about nothing.

        Raises:
            UsageError: no step was compared, or no tensor was matched.
        """
        if not self.steps:
            raise UsageError(
                f"no complete step to compare ({self.left_out[0][1]})",
                hint="--include-partial takes partial ones.",
            )
        if not self.matched:
            ours, theirs = self.examples
            said = f" ({ours!r} and {theirs!r}, for instance)" if ours else ""
            raise UsageError(
                f"no tensor of {a} has a counterpart in {b}{said}",
                hint="Where names differ, --map FILE says which is which.",
            )

    def _drop(self) -> None:
        self._tensors.sort(key=lambda one: one.badness)
        self.dropped += len(self._tensors) - MAX_KEPT
        del self._tensors[MAX_KEPT:]


def _when(first: FirstDifference) -> tuple[int, int, int]:
    return first.tensor.key_a.step or 0, first.tensor.number, first.tensor.key_a.rank


class _StepComparison:
    """One step of one rank of A against one of B."""

    def __init__(self, a: Tensors, b: Tensors, choices: _Choices) -> None:
        self._a, self._b, self._choices = a, b, choices
        found = match(a, b, choices.mapping)
        self._pairs, self._only_a, self._only_b = found.pairs, found.only_a, found.only_b
        self.matched = len(found.pairs)
        self.counts: Counter[Verdict] = Counter()

    def compare(self, runner: Tasks | Threads) -> Iterator[ComparedTensor]:
        """Yield what is known of each tensor; of equal ones only where these are kept."""
        same = self._same()
        self.counts[Verdict.EQUAL] += int(np.count_nonzero(same))
        if self._choices.keep_equal:
            for number in np.flatnonzero(same).tolist():
                yield self._row(self._pairs[number], Verdict.EQUAL, basis="digest")
        rest = [self._pairs[number] for number in np.flatnonzero(~same).tolist()]
        for row in (*self._compared(rest, runner), *self._unmatched()):
            self.counts[row.verdict] += 1
            yield row

    def first(self, found: Sequence[ComparedTensor]) -> FirstDifference | None:
        """Return the first of these that differs, and what is known of the inputs of its operator."""
        bad = [one for one in found if one.verdict in {Verdict.DIFFERENT, Verdict.SHAPE}]
        if not bad:
            return None
        first = min(bad, key=lambda one: one.number)
        if first.io == "input":
            return FirstDifference(first, ())
        operator = self._a.keys[first.number].operator
        verdicts = {one.number: one.verdict for one in found if one.name_a}
        inputs = [
            (key.name, str(verdicts.get(number, Verdict.EQUAL)))
            for number, key in enumerate(self._a.keys)
            if key.io == "input" and key.operator == operator
        ]
        return FirstDifference(first, tuple(inputs))

    def _same(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether digests say that a pair is equal, for each."""
        a, b, pairs = self._a, self._b, self._pairs
        of_a, of_b = np.array([one.a for one in pairs], int), np.array([one.b for one in pairs], int)
        if not pairs:
            return np.zeros(0, bool)
        digests = a.digests[of_a]
        same = (digests == b.digests[of_b]).all(axis=1) & digests.any(axis=1)
        same &= a.dumped[of_a] & b.dumped[of_b]
        for number in np.flatnonzero(same).tolist():
            pair = pairs[number]
            same[number] = a.meanings[pair.a] == b.meanings[pair.b]
        return np.asarray(same)

    def _compared(self, pairs: Sequence[Pairing], runner: Tasks | Threads) -> Iterator[ComparedTensor]:
        """Yield what is known of pairs that digests do not decide."""
        a, b = self._a, self._b
        by_elements: dict[object, list[tuple[Pairing, ThresholdLimits]]] = {}
        for pair in pairs:
            names = a.keys[pair.a].name, b.keys[pair.b].name
            limits = self._choices.thresholds.limits(names, (a.dtypes[pair.a], b.dtypes[pair.b]))
            if isinstance(limits, ThresholdRule) and limits.ignore:
                yield self._row(pair, Verdict.IGNORED)
            elif a.shapes[pair.a] != b.shapes[pair.b]:
                yield self._row(
                    pair, Verdict.SHAPE, f"{_shape(a.shapes[pair.a])} and {_shape(b.shapes[pair.b])}"
                )
            elif a.dumped[pair.a] and b.dumped[pair.b]:
                by_elements.setdefault(self._content(pair), []).append((pair, limits))
            else:
                yield self._by_statistics(pair, limits)
        # In the order in which A is stored, so that its chunks are read once.
        groups = sorted(by_elements.values(), key=lambda group: self._place(group[0][0]))
        jobs = [Pair(a.operand(group[0][0].a), b.operand(group[0][0].b)) for group in groups]
        outcomes = (one for batch in runner.run(batched(jobs, runner.parts)) for one in batch)
        for group, outcome in zip(groups, outcomes, strict=True):
            for pair, limits in group:
                yield self._judged(pair, limits, outcome)

    def _content(self, pair: Pairing) -> object:
        """Return what the metrics of a pair follow from: equal contents are compared once."""
        a, b = self._a, self._b
        digests = a.digests[pair.a].tobytes(), b.digests[pair.b].tobytes()
        if not any(digests[0]) or not any(digests[1]):
            return pair
        return *digests, a.meanings[pair.a], b.meanings[pair.b]

    def _place(self, pair: Pairing) -> tuple[str, int]:
        return self._a.dtypes[pair.a], int(self._a.places[pair.a])

    def _judged(self, pair: Pairing, limits: ThresholdLimits, outcome: PairComparison) -> ComparedTensor:
        metrics = outcome.metrics
        if metrics is None:
            return self._row(pair, Verdict.UNKNOWN, outcome.problem, damaged=outcome.damaged)
        reason = "" if metrics.bit_equal else limits.broken(metrics)
        verdict = Verdict.EQUAL if metrics.bit_equal else Verdict.DIFFERENT if reason else Verdict.CLOSE
        return replace(self._row(pair, verdict, reason, basis=outcome.basis), metrics=metrics)

    def _by_statistics(self, pair: Pairing, limits: ThresholdLimits) -> ComparedTensor:
        of_a, of_b = (
            Statistics(*side.statistics[number].tolist())
            for side, number in ((self._a, pair.a), (self._b, pair.b))
        )
        both = ~np.isnan(self._a.statistics[pair.a]) & ~np.isnan(self._b.statistics[pair.b])
        if not both[1:].any():  # the number of elements follows from the shape
            return self._row(
                pair, Verdict.UNKNOWN, "elements were not dumped, and no statistic of both is known"
            )
        reason = limits.broken_by_statistics(of_a, of_b)
        verdict = Verdict.DIFFERENT if reason else Verdict.CLOSE
        return self._row(
            pair, verdict, reason or "statistics agree; elements were not dumped", basis="statistics"
        )

    def _unmatched(self) -> Iterator[ComparedTensor]:
        for verdict, side, numbers in (
            (Verdict.ONLY_A, self._a, self._only_a),
            (Verdict.ONLY_B, self._b, self._only_b),
        ):
            for number in numbers:
                name, dtype = side.keys[number].name, side.dtypes[number]
                limits = self._choices.thresholds.limits((name, name), (dtype, dtype))
                ignored = isinstance(limits, ThresholdRule) and limits.ignore
                yield self._row_of(
                    number if side is self._a else None,
                    number if side is self._b else None,
                    Verdict.IGNORED if ignored else verdict,
                )

    def _row(
        self, pair: Pairing, verdict: Verdict, reason: str = "", *, basis: str = "", damaged: bool = False
    ) -> ComparedTensor:
        return self._row_of(pair.a, pair.b, verdict, reason, pair=pair, basis=basis, damaged=damaged)

    def _row_of(
        self,
        a: int | None,
        b: int | None,
        verdict: Verdict,
        reason: str = "",
        *,
        pair: Pairing | None = None,
        basis: str = "",
        damaged: bool = False,
    ) -> ComparedTensor:
        key_a = self._a.keys[a] if a is not None else None
        key_b = self._b.keys[b] if b is not None else None
        key = key_a or key_b
        assert key is not None  # noqa: S101  (for mypy)
        number = a if a is not None else b
        return ComparedTensor(
            self._a.key,
            self._b.key,
            number or 0,
            key_a.name if key_a else "",
            key_b.name if key_b else "",
            key.graph,
            key.op_type,
            key.io,
            self._a.dtypes[a] if a is not None else "",
            self._b.dtypes[b] if b is not None else "",
            self._a.shapes[a] if a is not None else None,
            self._b.shapes[b] if b is not None else None,
            verdict,
            reason,
            pair.how.value if pair else "",
            pair is not None and pair.ambiguous,
            basis,
            None,
            damaged,
        )


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "()"
