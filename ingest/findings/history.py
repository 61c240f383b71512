"""What rules over several steps need of a step and of those before it, aligned along ranks and tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from ingest.reader.catalog import Catalog
from ingest.reader.snapshot import take_snapshot
from ingest.reader.step import Step
from ingest.reader.step_statistics import StepStatistics
from ingest.reader.step_tables import histograms_of
from ingest.reader.tensor_filter import BlockFilter
from workers.arrays.compiled.kernel_loops import BINS
from workers.errors import DamagedStore, UsageError
from workers.store.consolidated.blocks import Block, TensorAxis, TensorKey

Values: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]
#: A step, and what tells one generation of it from another.
_Generation: TypeAlias = tuple[int, str]

#: Those that rules over several steps look at.
_STATISTICS = ("count", "l2_norm", "mean", "std", "min", "max", "nan_count")
#: The history takes no more memory; beyond it, fewer steps are kept.
MAX_HISTORY_NBYTES = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StepValues:
    """What is kept of one step, by (rank, tensor of the axis)."""

    number: int
    ranks: tuple[int, ...]
    row: npt.NDArray[np.int32]
    """-1 for a tensor that a rank does not have."""
    values: dict[str, Values]
    digest: npt.NDArray[np.uint8]
    """(rank, tensor, 16)."""
    fulfils: Mapping[str, Mask | UsageError] = field(default_factory=dict)
    """By condition of a rule: (rank, tensor), or why it cannot be evaluated."""
    has_elements: bool = True
    """Whether digests are those of elements; False: of statistics alone."""
    cumulative: npt.NDArray[np.float32] | None = None
    """(rank, tensor, bin): see `Histogram.cumulative`; None if no rule needs histograms."""

    @property
    def nbytes(self) -> int:
        """Memory that the arrays take."""
        masks = (mask.nbytes for mask in self.fulfils.values() if not isinstance(mask, UsageError))
        values = (values.nbytes for values in self.values.values())
        of_histograms = 0 if self.cumulative is None else self.cumulative.nbytes
        return self.row.nbytes + self.digest.nbytes + sum(values) + sum(masks) + of_histograms


@dataclass(frozen=True, slots=True)
class TrainedParameter:
    """The places of a parameter and of what is recorded with it, on an axis of tensors."""

    parameter: int
    gradients: Sequence[int] = ()
    """Its gradient after each backward pass of a step, in order."""
    output_gradients: Sequence[int] = ()
    """The gradients of the outputs of its module, one for each call."""
    outputs: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class TrainingTensors:
    """Which tensors belong together, by the names that recorders of PyTorch give.

    `Parameter.{name}`, `Gradient.{name}`, `Module.{class}.{path}` and `Gradient.{path}.output`, where a name
    is a path and the name of a parameter.
    """

    parameters: Mapping[str, TrainedParameter]
    modules: Mapping[tuple[str, str], tuple[Sequence[int], Sequence[int]]]
    """By class and path: the first inputs and outputs of each call."""
    gradients: Mapping[str, Sequence[int]]
    """By name of a parameter, or by `{path}.output`."""

    @classmethod
    def of(cls, keys: Sequence[TensorKey]) -> TrainingTensors:
        """Sort the tensors of an axis. What a checkpointed part of a model computes again is left out."""
        of_type: dict[str, dict[str, list[int]]] = {"Parameter": {}, "Gradient": {}}
        modules: dict[tuple[str, str], tuple[list[int], list[int]]] = {}
        for place in sorted(range(len(keys)), key=lambda place: keys[place].occurrence):
            key = keys[place]
            kind, _, module = key.op_type.partition(".")
            if key.copy or key.graph == "recompute":
                continue
            if kind in of_type and key.slot == 0:
                of_type[kind].setdefault(key.op_name, []).append(place)
            elif kind == "Module" and key.io in ("input", "output"):
                inputs_and_outputs = modules.setdefault((module, key.op_name), ([], []))
                inputs_and_outputs[key.io == "output"].append(place)
        outputs = {path: places[1] for (_, path), places in modules.items()}
        gradients = of_type["Gradient"]
        parameters = {}
        for name, places in of_type["Parameter"].items():
            path = name.rpartition(".")[0]
            of_outputs = gradients.get(f"{path}.output", ())
            parameters[name] = TrainedParameter(
                places[0], gradients.get(name, ()), of_outputs, outputs.get(path, ())
            )
        return cls(parameters, modules, gradients)


@dataclass(frozen=True)
class StepWindow:
    """A step and those before it, aligned along the ranks of the step and the axis of tensors."""

    now: StepValues
    before: Sequence[StepValues]
    keys: Sequence[TensorKey]
    is_cut: bool = False
    """Whether steps before are left out because they take too much memory."""
    _whole: dict[int, npt.NDArray[Any]] = field(default_factory=dict)

    @property
    def width(self) -> int:
        """Of the axis."""
        return len(self.keys)

    @property
    def steps(self) -> list[StepValues]:
        """All steps, the oldest first."""
        return [*self.before, self.now]

    @cached_property
    def training(self) -> TrainingTensors:
        """What belongs together."""
        return TrainingTensors.of(self.keys)

    def row(self, step: StepValues) -> npt.NDArray[np.int32]:
        """Return the rows of one of the steps in its index, (rank, tensor); -1 for what a rank lacks."""
        return self._aligned(step, step.row, -1)

    def value(self, name: str, step: StepValues | None = None) -> Values:
        """Return a statistic of one of the steps, by default of the last one, (rank, tensor)."""
        of = step or self.now
        return self._aligned(of, of.values[name], np.nan)

    def fulfils(self, condition: str) -> Mask:
        """Return a mask of the tensors of the step that fulfil a condition, (rank, tensor).

        Raises:
            UsageError: it cannot be evaluated.
        """
        mask = self.now.fulfils[condition]
        if isinstance(mask, UsageError):
            raise mask
        return self._aligned(self.now, mask, False)  # noqa: FBT003  (what an absent tensor is)

    def values_before(self, name: str, steps: int) -> Values:
        """Return a statistic of the steps before, (step, rank, tensor)."""
        known = [self.value(name, step) for step in self.before[-steps:]]
        return np.array(known).reshape(len(known), len(self.now.ranks), self.width)

    def digest(self, step: StepValues) -> npt.NDArray[np.uint8]:
        """Return the digests of one of the steps, (rank, tensor, 16); zeros for what it does not have."""
        return self._aligned(step, step.digest, 0)

    def cumulative(self, step: StepValues) -> npt.NDArray[np.float32]:
        """Return the distributions of one of the steps, (rank, tensor, bin); NaN where they are not known."""
        assert step.cumulative is not None  # noqa: S101  (for mypy: the rule says that it needs them)
        return self._aligned(step, step.cumulative, np.nan)

    def _aligned(self, step: StepValues, values: npt.NDArray[Any], fill: float) -> npt.NDArray[Any]:
        if step.ranks == self.now.ranks and values.shape[1] == self.width:
            return values
        if id(values) in self._whole:
            return self._whole[id(values)]
        whole = np.full((len(self.now.ranks), self.width, *values.shape[2:]), fill, values.dtype)
        places = {rank: place for place, rank in enumerate(step.ranks)}
        into = [place for place, rank in enumerate(self.now.ranks) if rank in places]
        out_of = [places[rank] for rank in self.now.ranks if rank in places]
        whole[into, : values.shape[1]] = values[out_of]
        self._whole[id(values)] = whole
        return whole


@dataclass
class History:
    """Reads steps, and keeps what rules need of them as long as later steps are compared with them.

    Memory: `MAX_HISTORY_NBYTES`, or two steps if these take more; and one step of all ranks as
    `StepStatistics` has it.
    """

    chooses: Callable[[TensorKey], bool]
    steps_before: int
    conditions: Collection[str] = ()
    needs_histograms: bool = False
    axis: TensorAxis = field(default_factory=TensorAxis)
    _kept: dict[_Generation, StepValues | None] = field(default_factory=dict)
    """By step and generation; None for a step that could not be read, or takes too much memory."""
    _cut: set[_Generation] = field(default_factory=set)

    def window(self, catalog: Catalog, step: int, before: Mapping[int, str], generation: str) -> StepWindow:
        """Return a step and those before it, and forget older ones.

        Args:
            catalog: the store.
            step: the step.
            before: the steps before it, and the generation of each.
            generation: that of the step.

        Raises:
            DamagedStore: the step could not be read. Steps before it that cannot be read are left out.
            StoreUnavailable: the store did not answer; try again.
        """
        wanted = [(number, before[number]) for number in sorted(before)[-self.steps_before :]]
        wanted.append((step, generation))
        self._keep(catalog, wanted)
        steps = [values for key in wanted if (values := self._kept[key]) is not None]
        if self._kept[wanted[-1]] is None:
            raise DamagedStore(f"step {step} could not be read")
        return StepWindow(steps[-1], steps[:-1], self.axis.keys, is_cut=bool(self._cut))

    def _keep(self, catalog: Catalog, wanted: Sequence[_Generation]) -> None:
        kept = {key: self._kept[key] for key in wanted if key in self._kept}
        cut = self._cut.intersection(kept)
        unread = dict(key for key in wanted if key not in kept)
        for number, values in self._read(catalog, unread) if unread else ():
            kept[number, unread[number]] = values
            if oldest := _beyond_memory(kept):
                kept |= dict.fromkeys(oldest)
                cut.update(oldest)
                if (number, unread[number]) in oldest:
                    cut.update(key for key in unread.items() if key not in kept)
                    break  # the others are older still
        self._kept, self._cut = {key: kept.get(key) for key in wanted}, cut

    def _read(self, catalog: Catalog, unread: Mapping[int, str]) -> Iterator[tuple[int, StepValues]]:
        try:
            statistics = StepStatistics(take_snapshot(catalog, step=list(unread), include_partial=True))
        except UsageError:
            # Some of them are gone, or all are.
            for step in sorted(unread, reverse=True) if len(unread) > 1 else ():
                with suppress(DamagedStore):
                    yield from self._read(catalog, {step: unread[step]})
            return
        for step in reversed(statistics.snapshot.steps):
            steps = statistics.snapshot.of_step(step) if self.needs_histograms else {}
            try:
                values = self._reduced(step, statistics.block(step), statistics.axis, steps)
            except DamagedStore:
                continue  # it must not hide findings in the steps after it
            yield step, values

    def _reduced(self, number: int, block: Block, axis: TensorAxis, steps: Mapping[int, Step]) -> StepValues:
        keys = axis.keys[: block.row.shape[1]]
        places = np.array([place for place, key in enumerate(keys) if self.chooses(key)], np.int64)
        own = self.axis.extend(keys[place] for place in places)

        def on_axis(chosen: npt.NDArray[Any], fill: float) -> npt.NDArray[Any]:
            whole = np.full((len(block.ranks), len(self.axis), *chosen.shape[2:]), fill, chosen.dtype)
            whole[:, own] = chosen
            return whole

        row = on_axis(block.row[:, places].astype(np.int32), -1)
        # Over all tensors of the step: the role of one depends on those around it.
        masks = fulfilled(self.conditions, block, axis).items()
        return StepValues(
            number,
            block.ranks,
            row,
            {name: on_axis(block.statistic(name)[:, places], np.nan) for name in _STATISTICS},
            on_axis(_digests(block, places), 0),
            {
                condition: mask if isinstance(mask, UsageError) else on_axis(mask[:, places], 0)
                for condition, mask in masks
            },
            bool(block.digest[:, places].any()),
            _cumulative(block.ranks, row, steps) if self.needs_histograms else None,
        )


def _beyond_memory(kept: Mapping[_Generation, StepValues | None]) -> list[_Generation]:
    """Return the oldest of these steps, without which the others take no more memory than they may."""
    sizes = {key: values.nbytes for key, values in sorted(kept.items()) if values is not None}
    total, oldest = sum(sizes.values()), []
    for key in list(sizes)[:-2]:  # a step is compared with the one before, whatever they take
        if total <= MAX_HISTORY_NBYTES:
            break
        total -= sizes[key]
        oldest.append(key)
    return oldest


def _cumulative(
    ranks: Sequence[int], row: npt.NDArray[np.int32], steps: Mapping[int, Step]
) -> npt.NDArray[np.float32]:
    """Return the distributions of one step, (rank, tensor, bin), from the histograms of these ranks."""
    cumulative = np.full((*row.shape, BINS - 1), np.nan, np.float32)
    for place, rank in enumerate(ranks):
        known = histograms_of(steps[rank])
        for tensor in np.flatnonzero(row[place] >= 0).tolist():
            histogram = known.get(int(row[place, tensor]))
            if histogram is not None:
                cumulative[place, tensor] = histogram.cumulative()
        steps[rank].forget_tables()
    return cumulative


def _digests(block: Block, places: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Return keys of contents: digests, or digests of the statistics if only these were dumped."""
    digest = block.digest[:, places].copy()
    lacking = ~digest.any(axis=2) & np.isfinite(block.statistics[:, places]).any(axis=2)
    for rank, place in np.argwhere(lacking).tolist():
        known = block.statistics[rank, places[place]]
        digest[rank, place] = np.frombuffer(xxhash.xxh3_128_digest(known.tobytes()), np.uint8)
    return digest


def fulfilled(conditions: Iterable[str], block: Block, axis: TensorAxis) -> dict[str, Mask | UsageError]:
    """Evaluate each condition `where` on a step, (rank, tensor), or return why it cannot be evaluated."""
    masks: dict[str, Mask | UsageError] = {}
    for text in conditions:
        try:
            masks[text] = BlockFilter({"where": text}, axis).mask(block)
        except UsageError as exc:
            masks[text] = exc
    return masks
