"""What the configuration of a dump asked for, and what of it is not in the store."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ingest.dump_configs.model import AskedDump, Io, Match, OperatorPattern, flatten
from ingest.reader.catalog import Catalog, Damage, warn_of, with_tables
from ingest.reader.choice import Choice, format_ranges
from ingest.reader.context import context_of
from ingest.reader.context.files import DumpConfiguration, configuration_of
from ingest.reader.snapshot import refuse_url
from ingest.reader.step import Step, TableList
from ingest.reader.text import Plain
from workers.arrays.statistics import FIELDS
from workers.model import grouped
from workers.store.model import RowKind

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class MissingItem(Plain):
    """Something that the configuration of a dump asked for and that is not in the store."""

    what: str
    """`step`, `rank`, `operator`, `statistic`, `elements`, `statistics`, `inputs` or `outputs`."""
    name: str
    """Its name: as in the configuration, or as the graph has it; steps as ranges such as `4-7`."""
    rank: int | None
    reason: str
    """Why it is missing, as far as that is known; "" if it is not."""


class MissingItems(TableList[MissingItem]):
    """What is missing: a list, which is also a table with the columns of `ls --missing --json`."""

    columns = ("what", "name", "rank", "reason")
    shown = columns
    noun = "missing item"

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each item; the rank is `Int64`, and `<NA>` for an item that is not about one."""
        return super().to_pandas().astype({"rank": "Int64"})


#: Types of operators without a dump, in lower case and without `_`, by the reason.
_NEVER_DUMPED = {
    "control flow has no tensors of its own": (
        ["if", "while", "case", "for", "statelessif", "statelesswhile", "statelesscase", "partitionedcall"]
    ),
    "it runs as no task (`_no_task`): there is nothing to dump": (
        ["data", "const", "constant", "variable", "netoutput", "stackpush", "stackpop", "stack", "stackclose"]
    ),
    "it exists in the graph alone, and runs as no kernel": (
        ["load", "updatestate", "depend", "maketuple", "tuplegetitem", "return", "valuenode"]
    ),
    "it only renames memory, so it is optimised away or runs as no kernel": (
        ["reshape", "expanddims", "squeeze", "flatten", "identity", "noop", "controltrigger"]
    ),
}


def why_never_dumped(op_type: str) -> str:
    """Return why an operator of a type has no dump; "" if nothing speaks against one.

    >>> why_never_dumped("While")
    'control flow has no tensors of its own'
    """
    name = op_type.lower().replace("_", "")
    return next((why for why, types in _NEVER_DUMPED.items() if name in types), "")


#: What MindSpore and CANN call the statistics of the index.
_STATISTICS = {
    "max": "max",
    "min": "min",
    "avg": "mean",
    "l2norm": "l2_norm",
    "nan count": "nan_count",
    "nan": "nan_count",
    "zero count": "zero_count",
    "positive inf count": "pos_inf_count",
    "positive inf": "pos_inf_count",
    "negative inf count": "neg_inf_count",
    "negative inf": "neg_inf_count",
}
_ALL_DEVICES = frozenset(range(8))
_TYPE = re.compile(r"(?P<type>[A-Za-z]\w*?)(?:-op\d+|_\d+)?$")


def missing(
    store: Catalog,
    rank: Choice = None,
    *,
    most_ranks: int | None = None,
    damages: list[Damage] | None = None,
) -> MissingItems:
    """List what the configuration of the dump asked for and the store does not have.

    Known are the `data_dump.json` that MindSpore keeps in the dump, and the JSON of ACL. Without one, nothing
    is said to be missing. Reads the indexes of one step of each rank.

    Args:
        store: the store.
        rank: only this rank, or these.
        most_ranks: how many of them to look at, from the first on; None for all.
        damages: damaged steps are added to it; by default, a `DamagedStepWarning` names them.

    Raises:
        UsageError: a rank is not in the store.
    """
    refuse_url(store)
    found: list[Damage] = []
    by_rank = grouped((opened.key.rank, opened) for opened in store.select(rank, damages=found))
    chosen = sorted(by_rank)[:most_ranks]
    items = MissingItems()
    told = configuration_of(store, chosen[0]) if chosen else DumpConfiguration("")
    if told.source:
        if rank is None:
            items += _ranks(store, told)
        for number in chosen:
            if (newest := _newest(by_rank[number], found)) is not None:
                items += _steps(store, newest, told.asked)
                items += _operators(store, newest, told.asked)
                items += _content(newest, told.asked)
    if damages is None:
        warn_of(found, has_others=bool(chosen))
    else:
        damages += found
    # What is the same on all ranks is said once.
    return _merged(items, chosen)


def _newest(steps: Sequence[Step], damages: list[Damage]) -> Step | None:
    """Return the newest step whose index can be read; None without any. Newer ones are added to `damages`."""
    numbered = [opened for opened in steps if opened.key.step is not None]
    ordered = sorted(numbered, key=lambda opened: opened.key.order, reverse=True)
    # One by one: without reading ahead.
    return next((readable for opened in ordered for readable in with_tables([opened], damages)), None)


def _merged(items: MissingItems, ranks: Sequence[int]) -> MissingItems:
    by_rank = grouped(((item.what, item.name, item.reason), item.rank) for item in items)
    return MissingItems(
        MissingItem(what, name, rank, reason)
        for (what, name, reason), which in by_rank.items()
        for rank in ([None] if len(which) == len(ranks) > 1 else which)
    )


def _ranks(store: Catalog, told: DumpConfiguration) -> Iterator[MissingItem]:
    devices = told.asked.devices
    if devices == _ALL_DEVICES or told.device == "CPU" or max(store.ranks) >= len(_ALL_DEVICES):
        return
    for device in sorted((devices or frozenset()) - set(store.ranks)):
        reason = "no process dumped on this device, or its dump was not ingested"
        yield MissingItem("rank", str(device), None, reason)


def _steps(store: Catalog, newest: Step, asked: AskedDump) -> Iterator[MissingItem]:
    rank = newest.key.rank
    steps = sorted(key.step for key in store.keys if key.rank == rank and key.step is not None)
    absent = sorted((asked.steps or frozenset()) - set(steps))
    later = [step for step in absent if step > steps[-1]]
    earlier = [step for step in absent if step < steps[-1]]
    if later:
        reason = f"the newest step is {steps[-1]}: the job has ended, or has not got that far"
        yield MissingItem("step", format_ranges(later), rank, reason)
    if earlier:
        context = context_of(store, rank)
        ran = {step for graph in _graphs_of(newest) for step in context.history(graph)}
        did_not_run = bool(ran) and ran.isdisjoint(earlier)
        reason = "according to their history, its graphs did not run in these steps" if did_not_run else ""
        yield MissingItem("step", format_ranges(earlier), rank, reason)


def _operators(store: Catalog, step: Step, asked: AskedDump) -> Iterator[MissingItem]:
    labels = (step.tables.label(name).astype(str).tolist() for name in ("op_type", "op_name"))
    pairs = set(zip(*labels, strict=True))
    context = context_of(store, step.key.rank)
    # The full names of the operators of all graphs of the step, as the dump lists them.
    planned = [name for graph in _graphs_of(step) for name in context.execution_order(graph)]
    for pattern in asked.operators or ():
        if not any(pattern.matches(*pair) for pair in pairs):
            yield MissingItem("operator", pattern.text, step.key.rank, _why_missing(pattern, planned))


def _why_missing(pattern: OperatorPattern, planned: Sequence[str]) -> str:
    in_graph = [name for name in planned if pattern.matches(_type_of(name), flatten(name))]
    if in_graph:
        why = why_never_dumped(_type_of(in_graph[0]))
        return f"{in_graph[0]} is in the graph, but was not dumped" + (f": {why}" if why else "")
    if pattern.match is Match.TYPE and (why := why_never_dumped(pattern.text)):
        return why
    if planned:
        return "the graph has no operator of this name: it was fused, renamed or optimised away"
    return "the dump has no operator of this name, and no graph that says why"


def _graphs_of(step: Step) -> list[str]:
    return sorted({str(graph) for graph in step.tables.label("graph").tolist() if graph})


def _type_of(name: str) -> str:
    match = _TYPE.search(name.rpartition("/")[2])
    return match["type"] if match else ""


def _content(step: Step, asked: AskedDump) -> Iterator[MissingItem]:
    tables, rank = step.tables, step.key.rank
    kinds = tables.label("kind").astype(str)
    tensors, reported = kinds == RowKind.TENSOR.value, kinds == RowKind.STATISTICS.value
    if not (tensors | reported).any():
        return
    if asked.tensors and not tensors.any():
        yield MissingItem("elements", "elements of tensors", rank, "the dump has statistics alone")
    if asked.statistics:
        yield from _statistics(step, asked, reported)
    ios = {str(io) for io in np.unique(tables.label("io")[tensors | reported].astype(str))}
    for wanted, beginning in ((Io.INPUTS, "input"), (Io.OUTPUTS, "output")):
        if asked.io in (Io.BOTH, wanted) and not any(io.startswith(beginning) for io in ios):
            yield MissingItem(wanted.value, f"all {wanted.value}", rank, "")


def _statistics(step: Step, asked: AskedDump, reported: npt.NDArray[np.bool_]) -> Iterator[MissingItem]:
    tables, rank = step.tables, step.key.rank
    from_file = ~np.isin(tables.label("statistics_from").astype(str), ("", "computed"))
    if not (reported | from_file).any():
        reason = "the dump has no file of statistics; those in the store were computed from elements"
        yield MissingItem("statistics", "statistics of the dump system", rank, reason)
    for category in asked.categories if reported.any() else ():
        name = _STATISTICS.get(category.lower())
        if name in FIELDS and np.isnan(tables.statistic(name)[reported]).all():
            yield MissingItem("statistic", category, rank, "no row of the file of statistics has it")
