"""The steps that a Zarr view shows, each in the generation in which it was first looked at."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from ingest.reader.catalog import Catalog
from ingest.reader.damage import Damage
from ingest.reader.snapshot import NOT_COMMITTED, LeftOut, partial_reason
from ingest.reader.step import Step
from ingest.reader.zarr_view import attributes
from ingest.reader.zarr_view.arrays import ViewArray
from ingest.reader.zarr_view.elements import ViewElements
from ingest.reader.zarr_view.node_names import StepNames, name_tensors
from workers.errors import UsageError
from workers.model import StepKey
from workers.store import commit, metadata
from workers.store.commit import Commit

#: Steps whose index is kept.
_INDEXES_KEPT = 16


@dataclass(frozen=True, slots=True, eq=False)
class StepNodes:
    """The nodes below one step: its graphs, operators and arrays. Paths are relative to the step."""

    step: Step
    names: StepNames

    def document(self, path: str) -> metadata.Document | None:
        """Return the metadata of a node; None if it does not exist."""
        if (array := self.array(path)) is not None:
            return array.document(attributes.of_tensor(self.step, array.elements.row))
        if (operator := self.names.operators.get(path)) is not None:
            return metadata.group(attributes.of_operator(self.step, operator))
        if path in self.names.graphs:
            return metadata.group({"graph": path})
        return None

    def array(self, path: str) -> ViewArray | None:
        """Return the array at a path; None if no array is there."""
        row = self.names.row_of(path)
        return None if row is None else ViewArray.of(ViewElements(self.step, row))


class ShownSteps:
    """The steps that a view shows: complete ones or, if wanted, partial ones, too. Thread-safe.

    Memory: the index of 16 steps (some 10 MiB for 5000 tensors), and the commit of every step that was
    looked at.
    """

    def __init__(self, store: Catalog, *, include_partial: bool) -> None:
        """Show the steps that `store` has now."""
        self.store = store.reopened()
        self.include_partial = include_partial
        self._steps: dict[StepKey, Step] = {}
        self._nodes: OrderedDict[StepKey, StepNodes] = OrderedDict()
        self._lock = threading.Lock()
        self._opening: dict[StepKey, threading.Lock] = {}

    @property
    def commits(self) -> list[Commit]:
        """The commits of the steps that were looked at."""
        with self._lock:
            return [step.commit for step in self._steps.values()]

    def pin(self, commits: Iterable[Commit]) -> None:
        """Show these generations of steps that were not looked at yet."""
        for committed in commits:
            self._pin(Step(self.store.objects, committed))

    @cached_property
    def ranks(self) -> list[int]:
        """The ranks of which the store has any object, in order."""
        return commit.list_ranks(self.store.objects)

    def of_rank(self, rank: int) -> list[Step]:
        """Return the steps of a rank that are shown, in order. Reads their commits."""
        committed, _ = self._read_rank(rank)
        return [self._pin(step) for step in committed if self._is_shown(step.commit)]

    def left_out(self) -> list[LeftOut]:
        """Return the steps in the store that are not shown, by rank. Reads the commit of every step."""
        return [left for rank in self.ranks for left in self._left_out_of(rank)]

    def _left_out_of(self, rank: int) -> list[LeftOut]:
        committed, damages = self._read_rank(rank)
        left_out = [LeftOut.damaged(damage.key, damage.reason) for damage in damages]
        for step in committed:
            if self._is_shown(step.commit):
                self._pin(step)
            elif not _is_empty_run(step.commit):
                left_out.append(LeftOut(step.key, partial_reason(step.commit.summary)))
        known = {step.key for step in committed} | {damage.key for damage in damages}
        listed = commit.list_keys(self.store.objects, [rank])
        left_out += [LeftOut(key, NOT_COMMITTED) for key in listed if key not in known]
        return sorted(left_out, key=lambda left: left.key.order)

    def _read_rank(self, rank: int) -> tuple[list[Step], list[Damage]]:
        damages: list[Damage] = []
        try:
            return self.store.select(rank, damages=damages), damages
        except UsageError:  # the rank has no commit
            return [], damages

    def is_known(self, key: StepKey) -> bool:
        """Return whether the commit of a step is in memory."""
        return key in self._steps

    def is_open(self, key: StepKey) -> bool:
        """Return whether the index of a step is in memory."""
        return key in self._nodes

    def step(self, key: StepKey) -> Step | None:
        """Return the generation of a step that is shown; None if the step is not committed.

        Raises:
            UsageError: the step is partial.
            DamagedStore: its commit is damaged.
        """
        with self._lock:
            if key in self._steps:
                return self._steps[key]
        committed = commit.read(self.store.objects, key)
        if committed is None or _is_empty_run(committed):
            return None
        if not self._is_shown(committed):
            raise UsageError(
                f"{self.store.url}: {key} is {partial_reason(committed.summary)}",
                hint="`as_zarr(include_partial=True)` shows partial steps.",
            )
        return self._pin(Step(self.store.objects, committed))

    def nodes(self, key: StepKey) -> StepNodes | None:
        """Return the nodes of a step, whose index is read if needed; None if the step is not committed.

        Raises:
            UsageError: the step is partial.
            DamagedStore: its commit or index is damaged.
        """
        with self._lock:
            if key in self._nodes:
                self._nodes.move_to_end(key)
                return self._nodes[key]
            opening = self._opening.setdefault(key, threading.Lock())
        with opening:  # zarr requests many chunks of one step at once
            with self._lock:
                if key in self._nodes:
                    return self._nodes[key]
            step = self.step(key)
            if step is None:
                return None
            nodes = StepNodes(step, name_tensors(step.tables))
            with self._lock:
                self._nodes[key] = nodes
                self._forget_oldest()
            return nodes

    def _forget_oldest(self) -> None:
        while len(self._nodes) > _INDEXES_KEPT:
            key, _ = self._nodes.popitem(last=False)
            # The same generation, without its index.
            self._steps[key] = Step(self.store.objects, self._steps[key].commit)

    def _pin(self, step: Step) -> Step:
        with self._lock:
            return self._steps.setdefault(step.key, step)

    def _is_shown(self, committed: Commit) -> bool:
        is_allowed = self.include_partial or committed.summary.status == "complete"
        return is_allowed and not _is_empty_run(committed)


def _is_empty_run(committed: Commit) -> bool:
    """Return whether this is the commit of run files without tensors: graphs and execution orders alone."""
    summary = committed.summary
    return committed.key.step is None and not summary.tensors and not summary.statistics_only
