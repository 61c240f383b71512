"""Compares the tensors of A and B step by step: by digests if these decide, else by reading payloads."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from ingest.questions.compare.builder import ComparisonBuilder
from ingest.questions.compare.layout_run import LayoutRun, are_cut_differently
from ingest.questions.compare.mapping import NameMapping
from ingest.questions.compare.result import Comparison
from ingest.questions.compare.runner import ClusterRunner, PairRunner, ThreadRunner
from ingest.questions.compare.selection import Selection, parse_selection
from ingest.questions.compare.sources import Source, open_source
from ingest.questions.compare.step_comparison import Choices
from ingest.questions.compare.step_pairing import SideSteps, pair_steps
from ingest.questions.compare.step_tensors import StepTensors
from ingest.questions.compare.stored_steps import StoreSource
from ingest.questions.compare.thresholds import Thresholds
from ingest.questions.placement.layout_map import LayoutMap
from ingest.reader.catalog import Catalog
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

    Memory: the indexes of four steps, and in each thread or task about 400 MiB, whatever the size of the
    tensors (see `workers.tasks.compare.compare_pairs`); and 100 MB for the tensors that the result
    lists, at most `builder.MAX_LISTED`.

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
        layout: a pattern for dumps whose tree no layout covers; see `ingest.layouts.declared`.
        across_layouts: put tensors together from the pieces of all ranks, and compare them whole; False: rank
            by rank; None: put them together if one side has several times as many ranks as the other, or if
            parameters have other shapes.
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
    steps_a, steps_b = SideSteps.of(side_a, selected_a), SideSteps.of(side_b, selected_b)
    choices = Choices(
        mapping or NameMapping(),
        thresholds or Thresholds(),
        keep_equal=keep_equal,
        fixed_limits=fixed_limits,
        include_partial=include_partial,
        elements=elements,
        chosen=conditions,
    )
    if layout_map is not None or are_cut_differently(
        None if conditions or not elements else (side_a, side_b), steps_a, steps_b, wanted=across_layouts
    ):
        if conditions:
            raise UsageError(
                "conditions on tensors cannot be given where layouts are compared",
                hint="Compare all tensors, or rank by rank.",
            )
        if not elements:
            raise UsageError(
                "layouts are compared by elements", hint="Leave elements in, or compare rank by rank."
            )
        with _runner(client) as runner:
            run = LayoutRun(side_a, side_b, choices, layout_map or LayoutMap())
            return run.compare(steps_a, steps_b, runner, unmatched_matter=not ignore_unmatched)
    pairing = pair_steps(steps_a, steps_b)
    builder = ComparisonBuilder(choices)
    with ExitStack() as stack:
        runner = stack.enter_context(_runner(client))
        loaded = stack.enter_context(closing(_load(pairing.pairs, side_a, side_b)))
        last = {a.rank: a for a, _ in pairing.pairs}
        for tensors_a, tensors_b in loaded:
            if isinstance(tensors_a, LeftOut) or isinstance(tensors_b, LeftOut):
                builder.leave_out(tensors_a, tensors_b)
            else:
                key = tensors_a.key
                builder.add(tensors_a, tensors_b, runner, is_last=key == last[key.rank])
    return builder.finish(side_a, side_b, pairing, unmatched_matter=not ignore_unmatched)


@contextmanager
def _runner(client: TaskClient | Callable[[], TaskClient] | None) -> Iterator[PairRunner]:
    """Yield where to compare: in threads, or on a cluster."""
    if client is None:
        with ThreadRunner() as threads:
            yield threads
    else:
        yield ClusterRunner(client() if callable(client) else client)


def _load(
    pairs: Iterable[tuple[StepKey, StepKey]], a: Source, b: Source
) -> Generator[tuple[StepTensors | LeftOut, StepTensors | LeftOut], None, None]:
    """Yield the tensors of each pair of steps. The next pair is read while one is looked at.

    A step whose index is damaged is left out.
    """
    steps = (side for key_a, key_b in pairs for side in ((a, key_a), (b, key_b)))
    loaded = prefetch(steps, lambda step: _load_step(*step), ahead=2, threads=2, name="dump-ingest-load")
    with closing(loaded):
        for tensors_a in loaded:
            yield tensors_a, next(loaded)


def _load_step(source: Source, key: StepKey) -> StepTensors | LeftOut:
    try:
        return source.load(key)
    except DamagedStore as exc:
        return LeftOut.damaged(key, exc.message)


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
