"""Compares the tensors of A and B step by step, rank by rank or over all ranks at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from ingest.questions.compare.builder import ComparisonBuilder
from ingest.questions.compare.held_tensors import (
    HeldTensors,
    LocalNumbers,
    are_cut_into_more_calls,
    are_cut_into_other_calls,
    by_batch,
    call_of,
    calls_of,
    hold_together,
    parameters_of,
    with_tied_weights,
)
from ingest.questions.compare.mapping import NameMapping
from ingest.questions.compare.placing import Placing, SeenPlacements
from ingest.questions.compare.result import Comparison
from ingest.questions.compare.runner import ClusterRunner, PairRunner, ThreadRunner
from ingest.questions.compare.selection import (
    Selection,
    SideSteps,
    StepPairing,
    pair_runs,
    pair_steps,
    parse_selection,
)
from ingest.questions.compare.sources import Source, open_source
from ingest.questions.compare.step_comparison import Choices, SeenSteps, StepComparison
from ingest.questions.compare.step_tensors import StepTensors
from ingest.questions.compare.stored_steps import StoreSource
from ingest.questions.compare.thresholds import Thresholds
from ingest.questions.placement.layout_map import LayoutMap
from ingest.reader.catalog import Catalog
from ingest.reader.operator_kinds import is_parameter
from ingest.reader.snapshot import LeftOut
from ingest.reader.step import Step
from ingest.reader.tensor_filter import FilterFields
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
    the result lists, at most `builder.MAX_LISTED`.

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
    (side_a, selected_a), (side_b, selected_b) = (
        _open(side, include_partial=include_partial, layout=layout, storage_options=storage_options)
        for side in (a, b)
    )
    sides = side_a, side_b
    steps_a, steps_b = (
        SideSteps(side.label, chosen, tuple(side.keys), frozenset(step.key for step in side.left_out))
        for side, chosen in ((side_a, selected_a), (side_b, selected_b))
    )
    choices = Choices(
        mapping or NameMapping(),
        thresholds or Thresholds(),
        keep_equal=keep_equal,
        fixed_limits=fixed_limits,
        include_partial=include_partial,
        elements=elements,
        chosen=conditions,
    )
    looked_at = None if conditions or not elements else sides
    if layout_map is not None or _are_cut_differently(looked_at, steps_a, steps_b, wanted=across_layouts):
        _check_whole(sides, choices)
        if len(steps_a.ranks) < len(steps_b.ranks) and mapping is None and layout_map is None:
            sides, (steps_a, steps_b) = sides[::-1], (steps_b, steps_a)
        pairing = pair_runs(steps_a, steps_b, include_partial=include_partial)
    else:
        pairing = pair_steps(steps_a, steps_b)
    with ExitStack() as stack:
        run = _Run(sides, choices, stack.enter_context(_runner(client)), layout_map or LayoutMap())
        run.compare(pairing, stack.enter_context(closing(_load(pairing, sides, choices))))
    if sides[0] is not side_a:
        exchanged = f"A and B were exchanged: A is {steps_a.label}, which has more ranks"
        run.builder.notes_on_ranks = [exchanged, *run.builder.notes_on_ranks]
    return run.builder.finish(*sides, pairing, unmatched_matter=not ignore_unmatched)


class _Run:
    """Compares groups of steps, and collects what they show."""

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
        self._has_other_calls = False
        """Whether calls of a rank hold other samples on both sides, so that only parameters are the same."""

    def compare(
        self, pairing: StepPairing, groups: Iterator[tuple[_Loaded | list[LeftOut], _Loaded | list[LeftOut]]]
    ) -> None:
        """Compare groups of steps as they are loaded."""
        last = {a[0].rank if a and not pairing.together else None: a for a, _ in pairing.groups}
        for (keys, _), (a, b) in zip(pairing.groups, groups, strict=True):
            if isinstance(a, list) or isinstance(b, list):
                self.builder.leave_out(a, b)
                continue
            is_last = any(keys is of_rank for of_rank in last.values())
            if pairing.together:
                self._compare_together(a, b, is_last=is_last)
                continue
            ((own,), (other,)) = a.values(), b.values()
            if keys is pairing.groups[0][0]:
                self._has_other_calls = self._reads_in_other_calls(own, other, pairing)
            self._compare_rank(own, other, is_last=is_last, has_other_ranks=len(last) > 1)
        self.builder.notes_on_ranks = [*self._numbers[0].notes, *self._numbers[1].notes]

    def _reads_in_other_calls(self, a: StepTensors, b: StepTensors, pairing: StepPairing) -> bool:
        """Return whether ranks read the first batch in calls of other sizes, by the step of the first rank.

        Only if that has other tensors or shapes, the steps of the other ranks are loaded for it.
        """
        is_alike = a.keys == b.keys and a.shapes == b.shapes
        if is_alike or self._choices.chosen or not self._choices.elements:
            return False
        return _are_of_other_sizes(self._sides, pairing)

    def _compare_rank(self, a: StepTensors, b: StepTensors, *, is_last: bool, has_other_ranks: bool) -> None:
        """Compare one step of one rank."""
        if self._has_other_calls:
            a, b = parameters_of(a), parameters_of(b)
            self.builder.other_calls.add(a.key.step)
        self._compare(
            a,
            b,
            (a.key.rank, b.key.rank),
            is_last=is_last,
            has_other_ranks=has_other_ranks,
            has_other_calls=self._has_other_calls,
        )

    def _compare_together(self, a: _Loaded, b: _Loaded, *, is_last: bool) -> None:
        """Compare one step of all ranks: those that read one batch at a time."""
        for batch, *own in by_batch((a, b), self._places):
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
        """Return one step of both sides as the tensors of all ranks of each."""
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
        comparison = StepComparison(a, b, self._choices, self._seen[group], self._runner, **known)
        self.builder.add(comparison, a, b, comparison.compare())


@contextmanager
def _runner(client: TaskClient | Callable[[], TaskClient] | None) -> Iterator[PairRunner]:
    """Yield where to compare: in threads, or on a cluster."""
    if client is None:
        with ThreadRunner() as threads:
            yield threads
    else:
        yield ClusterRunner(client() if callable(client) else client)


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


def _are_cut_differently(
    sources: tuple[Source, Source] | None, a: SideSteps, b: SideSteps, *, wanted: bool | None
) -> bool:
    """Return whether tensors have to be put together before they are compared.

    That is so if the user wants it; or, without a rank named, if one side has several times as many ranks, or
    parameters of other shapes in `sources`, if that is to be looked for.
    """
    if wanted is not None:
        return wanted
    few, many = sorted((len(a.ranks), len(b.ranks)))
    if a.selection.rank is not None or b.selection.rank is not None or not few:
        return False
    if few < many:
        return many % few == 0
    return sources is not None and many > 1 and _have_other_shards(sources, a, b)


def _have_other_shards(sources: tuple[Source, Source], a: SideSteps, b: SideSteps) -> bool:
    """Return whether a rank has pieces of other shapes on both sides, in the first step of both.

    These are parameters; or, if both sides begin with the same shapes, what they called as often, cut over
    some of the ranks, as sequences are.
    """
    key = next((key for key in a.keys if key in set(b.keys)), None)
    if key is None or any(source.sample for source in sources):
        return False
    try:
        first, second = (source.load(key) for source in sources)
    except DamagedStore:
        return False
    return _are_cut_over_ranks(first, second, len(a.ranks))


def _are_cut_over_ranks(a: StepTensors, b: StepTensors, ranks: int) -> bool:
    """Return whether the shapes of one step of a rank tell that the two sides are cut in other ways."""
    shapes = dict(zip(b.keys, b.shapes, strict=True))
    of_both = {own: shape for own, shape in zip(a.keys, a.shapes, strict=True) if own in shapes}
    other = [own for own, shape in of_both.items() if shapes[own] != shape]
    if any(is_parameter(own.op_type) for own in other):
        return True
    begin = next((own for own in of_both if not is_parameter(own.op_type)), None)
    if not other or begin == other[0]:
        return False
    calls = calls_of([a]), calls_of([b])
    return all(
        len({of_side[call_of(own)] for of_side in calls}) == 1 and _is_cut(of_both[own], shapes[own], ranks)
        for own in other
    )


def _are_of_other_sizes(sources: tuple[Source, Source], pairing: StepPairing) -> bool:
    """Return whether ranks read their first batch in calls of other sizes; see `are_cut_into_more_calls`."""
    first = [keys for keys in pairing.groups if keys[0][0].step == pairing.groups[0][0][0].step]
    sides: tuple[_Loaded, _Loaded] = ({}, {})
    try:
        for keys in first:
            for number, (key,) in enumerate(keys):
                sides[number][key.rank] = sources[number].load(key)
            a, b = (side[key.rank] for side, (key,) in zip(sides, keys, strict=True))
            if a.keys == b.keys and a.shapes == b.shapes:
                return False
        return are_cut_into_more_calls(*sides)
    except DamagedStore:
        return False  # whoever compares them names what is wrong


def _is_cut(a: tuple[int, ...], b: tuple[int, ...], ranks: int) -> bool:
    """Return whether one of two shapes is that of a piece of the other, cut along one axis over ranks."""
    lengths = [sorted(axis) for axis in zip(a, b, strict=False) if axis[0] != axis[1]]
    if len(a) != len(b) or len(lengths) != 1 or not lengths[0][0]:
        return False
    times, rest = divmod(lengths[0][1], lengths[0][0])
    return not rest and ranks % times == 0


def _open(
    side: Side, *, include_partial: bool, layout: str, storage_options: dict[str, Any] | None
) -> tuple[Source, Selection]:
    if isinstance(side, Step):
        selection = Selection(side.address.url, side.key.rank, side.key.step)
        if selection.step is None:
            raise UsageError(
                f"{side.key} of {side.address.url} cannot be compared: it does not belong to a step",
                hint="Compare steps, ranks or runs.",
            )
        catalog = side.catalog if isinstance(side.catalog, Catalog) else Catalog(side.objects)
        return StoreSource(selection, catalog, include_partial=include_partial), selection
    if isinstance(side, Catalog):
        selection = Selection(side.url)
        return StoreSource(selection, side, include_partial=include_partial), selection
    selection = parse_selection(str(side))
    source = open_source(
        selection, include_partial=include_partial, layout=layout, storage_options=storage_options
    )
    return source, selection
