"""Compares the tensors of A and B step by step, rank by rank or over all ranks at once, to one answer."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from ingest.questions.compare.calls import (
    are_cut_into_more_calls,
    are_cut_into_other_calls,
    are_cut_over_ranks,
    are_spread_otherwise,
    calls_of,
    first_read,
)
from ingest.questions.compare.held_tensors import HeldTensors, by_batch, hold_together, parameters_of
from ingest.questions.compare.mapping import NameMapping
from ingest.questions.compare.matching import COLUMNS, MatchedBy
from ingest.questions.compare.placing import Placing, SeenPlacements
from ingest.questions.compare.rank_names import LocalNumbers, with_tied_weights
from ingest.questions.compare.result import (
    ComparedStep,
    ComparedTensor,
    Comparison,
    FirstDifference,
    GuessedName,
    Limits,
    NameCounts,
    OperatorGap,
    Programs,
    Verdict,
)
from ingest.questions.compare.runner import PairRunner
from ingest.questions.compare.selection import (
    Selection,
    StepPairing,
    pair_runs,
    pair_steps,
    parse_selection,
    ranks_of,
)
from ingest.questions.compare.sources import Source, StepTensors, StoreSource, open_source, steps_run
from ingest.questions.compare.step_comparison import Choices, SeenSteps, StepComparison
from ingest.questions.compare.thresholds import Thresholds
from ingest.questions.placement.decide import Certainty
from ingest.questions.placement.layout_map import LayoutMap
from ingest.reader.catalog import Catalog
from ingest.reader.snapshot import LeftOut
from ingest.reader.step import Step
from ingest.reader.tensor_filter import FilterFields, TensorFilter
from ingest.reader.text import counted
from workers.errors import DamagedStore, UsageError
from workers.model import StepKey
from workers.store.prefetch import prefetch

if TYPE_CHECKING:
    from ingest.dispatch.clients import TaskClient

#: What can be compared: `run.zarr@RANK,STEP` or any part of it, a dump directory, an open store, or a step.
Side: TypeAlias = str | PathLike[str] | Catalog | Step

_MISSING = "missing, though other ranks have this step"
_Loaded: TypeAlias = dict[int, StepTensors]
"""The tensors of a step by rank."""


def compare(
    a: Side,
    b: Side,
    *,
    mapping: NameMapping | None = None,
    thresholds: Thresholds | None = None,
    include_partial: bool = False,
    ignore_unmatched: bool = False,
    keep_equal: bool = False,
    fixed_limits: bool = False,
    elements: bool = True,
    client: TaskClient | Callable[[], TaskClient] | None = None,
    layout: str = "",
    across_layouts: bool | None = None,
    layout_map: LayoutMap | None = None,
    storage_options: dict[str, Any] | None = None,
    **conditions: Unpack[FilterFields],
) -> Comparison:
    """Compare A with its reference B: one step of a rank, all steps of a rank, or whole runs.

    Equal digests decide without reading a payload; of what differs, each distinct pair of payloads is read
    once. Without `client`, this runs in at most four threads of this process.

    Memory: the indexes of four steps, of all ranks if they are put together; in each thread or task about
    400 MiB, whatever the size of the tensors (see `workers.tasks.compare`); and 100 MB for the tensors that
    the result lists, at most `MAX_LISTED`.

    Args:
        a: what is looked at: `run.zarr`, `run.zarr@RANK`, `run.zarr@RANK,STEP`, `run.zarr@step=STEP`, a URL,
            a dump directory of any known format, a `Catalog`, or a `Step`.
        b: what it is compared with.
        mapping: names of B by names of A, from `load_mapping`.
        thresholds: how much tensors may differ, from `load_thresholds`; default: derived from types, lengths
            of sums and what was executed before, or fixed ones by type where nothing can be derived.
        include_partial: compare steps with quarantined or missing files, too.
        ignore_unmatched: do not count what only one of the two has as a difference.
        keep_equal: list tensors that are equal, too.
        fixed_limits: judge by the fixed limits of types, without `thresholds`.
        elements: read elements where digests differ; False: judge by statistics, which takes no more than
            the indexes. Not where layouts are compared.
        client: of a Dask cluster, whose workers see A and B under the same names; or a function that connects
            to it, which is called after A and B have been found.
        layout: a pattern for dumps whose tree no layout covers; see `ingest.layouts.places`.
        across_layouts: put tensors together from the pieces of all ranks, and compare them whole; False: rank
            by rank; None: put them together if one side has several times as many ranks as the other, or if
            parameters have other shapes. Then A and B are exchanged if B has more ranks, unless names or
            layouts were mapped: what is whole on one rank is the reference.
        layout_map: how ranks hold tensors, where that is open, from `load_layout_map`.
        storage_options: what `open_store` takes besides the URL, for stores that are named; no credentials.
        conditions: what a compared tensor fulfils in A, or in B if only that has it: `role="weight"`, `name`,
            `op_type`, `io`, `graph`, `where`; see `FilterFields`.

    Raises:
        UsageError: A or B does not exist, they have no step or no tensor in common, or a condition is wrong.
        DamagedStore: no step can be read. Damaged steps and tensors are named in the result.
        StoreError: a store cannot be reached.
    """
    side_a, side_b = (
        _open(side, include_partial=include_partial, layout=layout, storage_options=storage_options)
        for side in (a, b)
    )
    sides = side_a, side_b
    choices = Choices(
        mapping or NameMapping(),
        thresholds or Thresholds(),
        keep_equal=keep_equal,
        fixed_limits=fixed_limits,
        include_partial=include_partial,
        elements=elements,
        chosen=conditions,
    )
    if layout_map is not None or _are_cut_differently(side_a, side_b, choices, wanted=across_layouts):
        _check_whole(sides, choices)
        is_less = len(ranks_of(side_a)) < len(ranks_of(side_b))
        if is_less and mapping is None and layout_map is None:
            sides = side_b, side_a
        pairing = pair_runs(*sides, include_partial=include_partial)
    else:
        pairing = pair_steps(side_a, side_b)
    with ExitStack() as stack:
        runner = stack.enter_context(PairRunner(client() if callable(client) else client))
        run = _Run(sides, choices, runner, layout_map or LayoutMap())
        run.compare(pairing, stack.enter_context(closing(_load(pairing, sides, choices))))
    if sides[0] is not side_a:
        exchanged = f"A and B were exchanged: A is {sides[0].label}, which has more ranks"
        run.builder.notes_on_ranks = [exchanged, *run.builder.notes_on_ranks]
    return run.builder.finish(*sides, pairing, unmatched_matter=not ignore_unmatched)


class _Run:
    def __init__(
        self, sides: tuple[Source, Source], choices: Choices, runner: PairRunner, layout_map: LayoutMap
    ) -> None:
        self._sides, self._choices, self._runner = sides, choices, runner
        self._places = sides[0].coordinates(), sides[1].coordinates()
        self._numbers = LocalNumbers("A"), LocalNumbers("B")
        self._seen: defaultdict[object, SeenSteps] = defaultdict(
            lambda: SeenSteps(SeenPlacements(layout_map))
        )
        self.builder = ComparisonBuilder(choices)

    def compare(
        self, pairing: StepPairing, groups: Iterator[tuple[_Loaded | list[LeftOut], _Loaded | list[LeftOut]]]
    ) -> None:
        """Compare groups of steps as they are loaded."""
        has_other_calls = False
        last = {a[0].rank if a and not pairing.together else None: a for a, _ in pairing.groups}
        for (keys, _), (a, b) in zip(pairing.groups, groups, strict=True):
            if isinstance(a, list) or isinstance(b, list):
                self.builder.leave_out(a, b)
                continue
            is_last = keys in last.values()
            if pairing.together:
                self._compare_together(a, b, is_last=is_last)
                continue
            ((own,), (other,)) = a.values(), b.values()
            if keys is pairing.groups[0][0]:
                has_other_calls = self._reads_in_other_calls(own, other, pairing)
            if has_other_calls:
                own, other = parameters_of(own), parameters_of(other)
                self.builder.other_calls.add(own.key.step)
            self._compare(
                own,
                other,
                (own.key.rank, other.key.rank),
                is_last=is_last,
                has_other_ranks=len(last) > 1,
                has_other_calls=has_other_calls,
            )
        self.builder.notes_on_ranks = [*self._numbers[0].notes, *self._numbers[1].notes]

    def _reads_in_other_calls(self, a: StepTensors, b: StepTensors, pairing: StepPairing) -> bool:
        """Return whether ranks read their first batch in calls of other sizes; see `are_cut_into_more_calls`.

        Only if the step of the first rank has other tensors or shapes, those of the others are loaded for it.
        """
        if _are_alike(a, b) or self._choices.chosen or not self._choices.elements:
            return False
        ranks: tuple[_Loaded, _Loaded] = ({}, {})
        try:
            for keys in (keys for keys in pairing.groups if keys[0][0].step == a.key.step):
                own, other = (side.load(key) for side, (key,) in zip(self._sides, keys, strict=True))
                if _are_alike(own, other):
                    return False
                ranks[0][own.key.rank], ranks[1][other.key.rank] = own, other
            return are_cut_into_more_calls(*ranks)
        except DamagedStore:
            return False  # whoever compares them names what is wrong

    def _compare_together(self, a: _Loaded, b: _Loaded, *, is_last: bool) -> None:
        batches = by_batch((a, b), self._places)
        if len(batches) > 1 and are_spread_otherwise(a, b):
            batches = [(None, a, b)]
        for batch, *own in batches:
            has_other_calls = are_cut_into_other_calls(*own)
            named = [numbers.apply(ranks) for numbers, ranks in zip(self._numbers, own, strict=True)]
            held = self._hold(named, without_activations=has_other_calls)
            for side, numbers in enumerate(self._numbers):
                if numbers.learn(named[side], held[1 - side], self._places[side]):
                    named[side] = numbers.apply(named[side])
                    held = self._hold(named, without_activations=has_other_calls)
                    break
            held_a, held_b = held
            placing = Placing(held_a, held_b, self._seen[batch].placements, self._runner)
            if has_other_calls:
                self.builder.other_calls.add(held_a.step)
            self._compare(
                held_a.as_step(),
                held_b.as_step(),
                batch,
                placing=placing,
                is_last=is_last,
                has_other_calls=has_other_calls,
            )

    def _hold(self, ranks: Sequence[_Loaded], *, without_activations: bool) -> list[HeldTensors]:
        return [
            hold_together(
                with_tied_weights(own, others),
                places,
                calls_of(others.values()),
                without_activations=without_activations,
            )
            for own, others, places in zip(ranks, reversed(ranks), self._places, strict=True)
        ]

    def _compare(self, a: StepTensors, b: StepTensors, group: object, **known: Any) -> None:
        self.builder.add(StepComparison(a, b, self._choices, self._seen[group], self._runner, **known))


def _are_alike(a: StepTensors, b: StepTensors) -> bool:
    return a.keys == b.keys and a.shapes == b.shapes


def _load(
    pairing: StepPairing, sides: tuple[Source, Source], choices: Choices
) -> Generator[tuple[_Loaded | list[LeftOut], _Loaded | list[LeftOut]], None, None]:
    """Yield the tensors of each group of steps by rank, or what is wrong. The next are read meanwhile."""
    there = [frozenset(side.keys) for side in sides]
    steps = ((n, key) for group in pairing.groups for n, keys in enumerate(group) for key in keys)

    def load(step: tuple[int, StepKey]) -> StepTensors | LeftOut:
        n, key = step
        if key not in there[n]:
            return LeftOut(key, _MISSING)
        try:
            loaded = sides[n].load(key)
        except DamagedStore as exc:
            return LeftOut.damaged(key, exc.message)
        return LeftOut(key, loaded.partial) if loaded.partial and not choices.include_partial else loaded

    def take(keys: Sequence[StepKey]) -> _Loaded | list[LeftOut]:
        found = [next(loaded) for _ in keys]
        problems = [step for step in found if isinstance(step, LeftOut)]
        if problems or not keys:
            return problems
        return {step.key.rank: step for step in found if isinstance(step, StepTensors)}

    with closing(prefetch(steps, load, ahead=2, threads=2, name="dump-ingest-load")) as loaded:
        for keys_a, keys_b in pairing.groups:
            yield take(keys_a), take(keys_b)


def _check_whole(sides: tuple[Source, Source], choices: Choices) -> None:
    """Refuse what cannot be done with tensors that are put together from all ranks.

    Raises:
        UsageError: conditions are given, elements are not to be read, or only ends of tensors were dumped.
    """
    if choices.chosen:
        raise UsageError(
            "conditions on tensors cannot be given where layouts are compared",
            hint="Compare all tensors, or rank by rank.",
        )
    if not choices.elements:
        raise UsageError(
            "layouts are compared by elements", hint="Leave elements in, or compare rank by rank."
        )
    for source in (source for source in sides if source.sample):
        raise UsageError(
            f"{source.label}: tensors of which only both ends were dumped cannot be put together",
            hint="Dump whole tensors, or compare rank by rank: --rank-by-rank.",
        )


def _are_cut_differently(a: Source, b: Source, choices: Choices, *, wanted: bool | None) -> bool:
    """Return whether tensors have to be put together before they are compared.

    That is so if the user wants it; or, without a rank named, if one side has several times as many ranks, or
    parameters of other shapes, if all elements are compared.
    """
    if wanted is not None:
        return wanted
    few, many = sorted((len(ranks_of(a)), len(ranks_of(b))))
    if a.selection.rank is not None or b.selection.rank is not None or not few:
        return False
    if few < many:
        return many % few == 0
    return many > 1 and choices.elements and not choices.chosen and _have_other_shards(a, b)


def _load_ranks(side: Source, keys: Sequence[StepKey]) -> _Loaded:
    return {key.rank: side.load(key) for key in keys}


def _have_other_shards(a: Source, b: Source) -> bool:
    """Return whether a rank has pieces of other shapes on both sides, in the first step of both.

    These are parameters; or, if both sides begin with the same shapes, what they called as often, cut over
    some of the ranks, as sequences are; or other shares of the samples that all ranks read.
    """
    there = set(b.keys).intersection(a.keys)
    key = next(filter(there.__contains__, a.keys), None)
    if key is None or a.sample or b.sample:
        return False
    try:
        own, other = a.load(key), b.load(key)
        is_cut = are_cut_over_ranks(own, other, len(ranks_of(a)))
        if is_cut or first_read(own) == first_read(other):
            return is_cut
        keys = [replace(key, rank=rank) for rank in ranks_of(a)]
        return there.issuperset(keys) and are_spread_otherwise(_load_ranks(a, keys), _load_ranks(b, keys))
    except (DamagedStore, ValueError):  # whoever compares them names what is wrong
        return False


def _open(
    side: Side, *, include_partial: bool, layout: str, storage_options: dict[str, Any] | None
) -> Source:
    if isinstance(side, Step):
        selection = Selection(side.address.url, side.key.rank, side.key.step)
        if selection.step is None:
            raise UsageError(
                f"{side.key} of {side.address.url} cannot be compared: it does not belong to a step",
                hint="Compare steps, ranks or runs.",
            )
        catalog = side.catalog if isinstance(side.catalog, Catalog) else Catalog(side.objects)
        return StoreSource(selection, catalog, include_partial=include_partial)
    if isinstance(side, Catalog):
        return StoreSource(Selection(side.url), side, include_partial=include_partial)
    return open_source(
        parse_selection(str(side)),
        include_partial=include_partial,
        layout=layout,
        storage_options=storage_options,
    )


#: The most tensors that a comparison lists; if more differ, the worst of them.
MAX_LISTED = 50_000
#: What FSDP1 calls the parameters of a unit, joined and cut, without `use_orig_params`.
_FLAT = re.compile(r"(?:^|[._/])_?flat_param(?:[._/]|$)")


class ComparisonBuilder:
    """What is known so far, step by step."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self.notes_on_ranks: Sequence[str] = ()
        """How ranks number their layers, if that had to be found."""
        self.other_calls: set[int | None] = set()
        """Steps whose calls hold other samples on both sides."""
        self._steps: list[ComparedStep] = []
        self._first: FirstDifference | None = None
        self._left_out: list[tuple[str, LeftOut]] = []
        self._incomplete = 0
        """Pairs of steps of which one turned out to be incomplete."""
        self._matched = 0
        self._guessed: Counter[str] = Counter()
        self._guesses: dict[str, GuessedName] = {}
        self._layout: Counter[tuple[str, str]] = Counter()
        self._damaged = 0
        """Tensors that could not be read because a store is damaged, listed or not."""
        self._operators = (0, 0, 0)
        """Of A, of B and of both, in the step that has most; zeros if all tensors were matched by name."""
        self._gaps: dict[tuple[str, str], OperatorGap] = {}
        self._names: tuple[set[str], set[str]] = (set(), set())
        self._underived: Counter[str] = Counter()
        """Why limits could not be derived, and in how many steps."""
        self._examples = ("", "")
        self._unused_rules: set[int] | None = None
        """Rules of the mapping that have fit no tensor of A so far; None before the first step."""
        self._unexplained: ComparedTensor | None = None
        self._close_beyond = 0
        """How many tensors are within the fixed limits, though rounding does not explain their difference."""
        self._unreduced: Sequence[str] = ()
        """Gradients of which ranks of A hold parts in the first such step."""
        self._sent: list[tuple[FirstDifference, bytes, frozenset[bytes]]] = []
        """The first difference of each rank; its digest, if it is an input; those of outputs that differ."""
        self._listed: list[ComparedTensor] = []
        self._dropped = 0
        """Tensors that are counted and not listed."""

    def add(self, comparison: StepComparison) -> None:
        """Compare a step; count its tensors, and keep what is worth telling.

        Raises:
            DumpIngestError: a store or a dump could not be read.
        """
        comparison.compare()
        a, b, rows = comparison.a, comparison.b, comparison.rows
        self._guesses = comparison.guesses | self._guesses
        self._operators = max(self._operators, comparison.aligned.operators)
        self._gaps = {(gap.side, gap.name): gap for gap in comparison.aligned.gaps} | self._gaps
        self._underived.update(filter(None, [comparison.underived]))
        self._note_first(comparison)
        self._note_unexplained(rows)
        self._unreduced = self._unreduced or comparison.unreduced
        self._matched += comparison.matched
        self._guessed.update(comparison.guessed)
        self._layout.update(comparison.layout)
        self._steps.append(ComparedStep(a.key, b.key, dict(comparison.counts)))
        self._damaged += sum(row.damaged for row in rows)
        keep_equal = self._choices.keep_equal
        self._listed += [row for row in rows if keep_equal or row.verdict is not Verdict.EQUAL]
        if len(self._listed) > 2 * MAX_LISTED:
            self._drop()
        self._note_names(a, b)

    def _note_names(self, a: StepTensors, b: StepTensors) -> None:
        for known, own in zip(self._names, (a.names, a.names if a.keys == b.keys else b.names), strict=True):
            known.update(own)
        if a.keys and b.keys and not self._examples[0]:
            self._examples = a.keys[0].name, b.keys[0].name
        mapping = self._choices.mapping
        if self._unused_rules != set() and mapping.rules:
            unused = set(mapping.unused(a.names))
            self._unused_rules = unused if self._unused_rules is None else self._unused_rules & unused

    def leave_out(self, a: object, b: object) -> None:
        """Record steps that cannot be compared, because those of one side, or both, are left out."""
        problems = [(side, left) for side, left in (("A", a), ("B", b)) if isinstance(left, list)]
        self._left_out += [(side, step) for side, left in problems for step in left]
        self._incomplete += len(problems) == 1

    def finish(
        self,
        a: Source,
        b: Source,
        pairing: StepPairing,
        *,
        unmatched_matter: bool = True,
    ) -> Comparison:
        """Return the answer.

        Args:
            a: what was compared.
            b: its reference.
            pairing: which steps only one of them has.
            unmatched_matter: steps and tensors that only one side has count as a difference.

        Raises:
            UsageError: no step was compared, or no tensor has a counterpart.
            DamagedStore: no step was compared, because some are damaged.
        """
        left_out = [(side, left) for side, of in (("A", a), ("B", b)) for left in of.left_out]
        left_out += self._left_out
        self._check(a.label, b.label, left_out)
        if len(self._listed) > MAX_LISTED:
            self._drop()
        tensors = tuple(self._listed)
        about_ranks = self._notes_on_ranks() if pairing.together else self._notes(tensors)
        notes = [*pairing.notes, *about_ranks, *_sample_notes(a, b), *_flat_parameters(tensors)]
        if self._dropped:
            notes.append(
                f"only the {MAX_LISTED} worst tensors are listed, {self._dropped} others are only counted"
            )
        return Comparison(
            a=a.label,
            b=b.label,
            steps=tuple(self._steps),
            tensors=tensors,
            first=self._first and self._sender(self._first),
            left_out=tuple(left_out),
            only_a=steps_run(a, pairing.only_a),
            only_b=steps_run(b, pairing.only_b),
            incomplete=len(pairing.half_complete) + self._incomplete,
            notes=tuple(notes),
            unmatched_matter=unmatched_matter,
            damaged=self._damaged,
            names=NameCounts.of(*self._names),
            guessed=dict(self._guessed),
            guesses=tuple(self._guesses.values()),
            unexplained=self._unexplained,
            limits=self._limits,
            programs=self._programs,
            layout=dict(self._layout),
        )

    @property
    def _programs(self) -> Programs | None:
        return Programs(*self._operators, tuple(self._gaps.values())) if any(self._operators) else None

    def _drop(self) -> None:
        order = sorted(range(len(self._listed)), key=lambda number: self._listed[number].badness)
        self._dropped += len(order[MAX_LISTED:])
        self._listed = [self._listed[number] for number in sorted(order[:MAX_LISTED])]

    def _note_first(self, comparison: StepComparison) -> None:
        known, rows = self._first, comparison.rows
        if known and rows and (rows[0].key_a.step or 0) > (known.tensor.key_a.step or 0):
            return  # it would read elements for nothing
        if first := comparison.first():
            self._take_first(first)
            self._sent.append((first, *comparison.contents_around(first.tensor)))

    def _take_first(self, first: FirstDifference) -> None:
        """Keep the earlier one of two first differences; of those at one place, all ranks."""
        known = self._first
        if known is None or _order(first.tensor) < _order(known.tensor):
            self._first = first
        elif _order(first.tensor)[:2] == _order(known.tensor)[:2] and not first.tensor.held:
            ranks = {known.tensor.key_a.rank, *known.ranks, first.tensor.key_a.rank}
            self._first = replace(known, ranks=tuple(sorted(ranks)))

    def _sender(self, first: FirstDifference) -> FirstDifference:
        """Return the first difference of the rank that sent what is different, if that is known."""
        known = [each for each in self._sent if each[0].tensor.key_a.step == first.tensor.key_a.step]
        for _ in known:
            content = next((content for own, content, _ in known if own.tensor == first.tensor), b"")
            senders = (own for own, _, given in known if own.tensor != first.tensor and content in given)
            first = next(senders, first) if content else first
        return first

    def _note_unexplained(self, tensors: Sequence[ComparedTensor]) -> None:
        beyond = [row for row in tensors if row.bound is not None and not row.bound.explained]
        self._close_beyond += sum(row.verdict is Verdict.CLOSE for row in beyond)
        if beyond and (self._unexplained is None or _order(beyond[0]) < _order(self._unexplained)):
            self._unexplained = beyond[0]

    def _notes(self, tensors: Sequence[ComparedTensor]) -> Iterator[str]:
        yield from self._notes_on_names(tensors)
        yield from self._notes_on_limits()
        yield from self._notes_on_calls()
        if self._programs:
            yield str(self._programs)
        if reshaped := sum(step.counts.get(Verdict.SHAPE, 0) for step in self._steps):
            yield (
                f"the shapes of {counted(reshaped, 'tensor')} differ: if ranks hold shards of them, compare "
                "all ranks (without @RANK), and --across-layouts puts tensors together"
            )

    def _notes_on_ranks(self) -> Iterator[str]:
        if undecided := sum(n for (_, certainty), n in self._layout.items() if certainty == Certainty.OPEN):
            yield (
                f"how ranks hold {counted(undecided, 'tensor')} is open (`certainty`); "
                "--layout-map FILE settles it"
            )
        yield from self._notes_on_calls()
        if unreduced := self._unreduced:
            yield (
                f"each rank of A holds its part of {', '.join(unreduced[:3])}"
                f"{' and others' * (len(unreduced) > 3)}; the gradients of other parameters are whole. "
                "Whether they were reduced before the update, the parameters of the next step show"
            )
        if self._guessed:
            yield f"paired by values, because names differ: {counted(self._guessed.total(), 'tensor')}"
        yield from self.notes_on_ranks

    def _notes_on_calls(self) -> Iterator[str]:
        if self.other_calls:
            yield (
                f"in {counted(len(self.other_calls), 'step')}, calls of A and B hold other samples of one "
                "batch: of these steps, only parameters and their gradients are compared"
            )

    def _notes_on_names(self, tensors: Sequence[ComparedTensor]) -> Iterator[str]:
        for number in sorted(self._unused_rules or ()):
            yield f"pair {number + 1} of the mapping file fits no tensor of A"
        if of_versions := sum(n for how, n in self._guessed.items() if MatchedBy(how).is_of_versions):
            ways = ", ".join(f"{n} by {how}" for how, n in self._guessed.items())
            counts = NameCounts.of(*self._names)
            is_within = counts.common == min(counts.a, counts.b)
            seem = "one of them calls more" if is_within else "they seem to be of two versions or programs"
            yield f"{counts}: {seem}"
            yield (
                f"{of_versions} pairs of tensors are guesses ({ways}); --suggest-map FILE writes them as a "
                "mapping file"
            )
        if ambiguous := sum(tensor.ambiguous for tensor in tensors):
            some = counted(ambiguous, "tensor")
            yield f"{some} might as well be matched with others (column `ambiguous`)"

    def _notes_on_limits(self) -> Iterator[str]:
        if self._limits is Limits.FIXED and not self._choices.fixed_limits:
            for why, count in self._underived.items():
                some = counted(count, "step")
                yield f"the limits of {some} are the fixed ones of types, not derived: {why}"
        if self._close_beyond and self._unexplained:
            first, bound = self._unexplained, self._unexplained.bound
            figures = f"{bound.times:.2g} times the limit {bound.limit:.2g}" if bound else ""
            where = f"{first.name} in step {first.key_a.step} of rank {first.key_a.rank}"
            yield (
                f"{counted(self._close_beyond, 'tensor')} within the limits of their types, but different by "
                f"more than rounding explains; the first that differs so is {where}: {figures}"
            )

    @property
    def _limits(self) -> Limits:
        limits = self._choices.limits
        # The fixed ones if they did so in one step at least.
        return Limits.FIXED if limits is Limits.DERIVED and self._underived else limits

    def _check(self, a: str, b: str, left_out: Sequence[tuple[str, LeftOut]]) -> None:
        damaged = [step for _, step in left_out if step.is_damaged]
        if not self._steps and damaged:
            raise DamagedStore(f"no step of {a} and {b} can be compared ({damaged[0]})")
        if not self._steps:
            raise UsageError(
                f"{a} and {b} have no complete step to compare ({left_out[0][1]})",
                hint="--include-partial compares steps that are not complete, too.",
            )
        chosen = TensorFilter(self._choices.chosen, COLUMNS)
        if not self._matched and chosen.names:
            raise UsageError(
                f"no tensor of {a} that has a counterpart in {b} fulfils {chosen}",
                hint="`dump-ingest find STORE` with the same options lists the tensors of a store.",
            )
        if not self._matched:
            name_a, name_b = self._examples
            examples = f" ({name_a!r} and {name_b!r}, for instance)" if name_a else ""
            raise UsageError(
                f"no tensor of {a} has a counterpart in {b}{examples}",
                hint="If names differ, --map FILE says which is which.",
            )


def _order(tensor: ComparedTensor) -> tuple[int, int, int]:
    return tensor.key_a.step or 0, tensor.number, tensor.key_a.rank


def _flat_parameters(tensors: Sequence[ComparedTensor]) -> Iterator[str]:
    for side, verdict in (("A", Verdict.ONLY_A), ("B", Verdict.ONLY_B)):
        own = {row.name for row in tensors if row.verdict is verdict and _FLAT.search(row.name)}
        if own:
            yield (
                f"{counted(len(own), 'tensor')} of {side} not compared: flat parameters of FSDP1 and their "
                "gradients join all parameters of a unit; with use_orig_params=True, the parameters "
                "themselves are dumped"
            )


def _sample_notes(a: Source, b: Source) -> list[str]:
    return [
        f"{side} is a sample: of each tensor, its dump has the first and the last {source.sample} elements. "
        "Statistics and differences are about these alone"
        for side, source in (("A", a), ("B", b))
        if source.sample
    ]
