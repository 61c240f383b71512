"""How far the tensors of a step are apart, and which of them nobody computed with as they were dumped.

A tensor is compared with its counterpart as it is, without a factor, and with its rows in any order.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, filterfalse
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.identities.limits import UNWRITTEN, unit_of
from ingest.questions.compare.dataflow import Dataflow, gradient_name, module_of
from ingest.questions.compare.result import Verdict
from ingest.questions.compare.thresholds import (
    RoundingBound,
    default_limit,
    longest_sum,
    relative_difference,
    rounding,
)
from ingest.reader.operator_kinds import StepPart
from workers.arrays.comparison import Metrics

#: Gradients have one factor if what is left of them without it is less than this, relative to them.
PARALLEL = 1e-3
#: Few elements are less than one in this many; a smaller tensor does not tell few from many.
MANY = 64
#: Last bits of a small tensor differ by another order of sums if those of one element in this many do, and of
#: at least as many: a fault is in one element.
_SHARE = 4
#: Calls with the same bytes on both sides show that operators are deterministic if rounding had shown in them
#: but with this probability. How many calls that takes.
_CHANCE = 1e-6
_FEWEST_CALLS = 2


class Measured(NamedTuple):
    """How far a tensor of A is from its counterpart."""

    number: int
    dtypes: tuple[str, str]
    shape: tuple[int, ...]
    metrics: Metrics | None = None
    """None if the bytes are equal, or nothing makes the two comparable."""
    fits: bool = True
    """Whether they could be compared: pieces of ranks may make up no tensor."""
    spread: float = 0.0
    """By how much replicas differ among themselves."""
    is_alike: bool = True
    """Whether its ranks hold it alike on both sides, so that operators on it do the same on both."""
    zeros: float = 0.0
    """The share of its elements that are zero: rounding does not show in these."""
    averaged: float = 1.0
    """The factor of the sum if what ranks of A hold is taken for its mean, and the other way round for B."""
    rms: float = math.nan
    """The root mean square of its elements; NaN if it is not known."""

    @property
    def unequal(self) -> int:
        """How many elements differ, be it in their bits alone."""
        if self.metrics is None or self.metrics.bit_equal:
            return 0 if self.fits else self.size
        return max(self.metrics.unequal, 1)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def differs_in_last_bits(self, calls: int) -> bool:
        """Return whether the last bits of many elements differ, and nothing else; narrow types hide that.

        `calls` is over how many it was added up: each rounds.
        """
        unit = max(map(unit_of, self.dtypes))
        share = MANY if self.size >= MANY else _SHARE
        is_many = self.unequal >= _SHARE and self.unequal * share > self.size
        if self.metrics is None or not is_many or not 0 < unit <= unit_of("float32"):
            return False
        is_factor = abs(self.metrics.norm_ratio - 1) > MANY * unit  # which may have been undone
        return self.difference <= calls * unit and not is_factor

    @property
    def difference_text(self) -> str:
        """How it differs: by a factor, or in how many elements, and by how much."""
        factor = self.metrics.norm_ratio if self.metrics else 1.0
        if self.difference <= PARALLEL < abs(factor - 1):
            return f"it is {factor:.4g} times B"
        return f"{self.unequal} of {self.size} elements differ, relative difference {self.difference:.2g}"

    @property
    def difference(self) -> float:
        """The relative difference; infinite if the two cannot be compared."""
        return relative_difference(self.metrics) if self.fits else math.inf


@dataclass(slots=True)
class CallsWithSameBytes:
    """Calls that read the same bytes on both sides."""

    equal: int = 0
    elements: float = 0.0
    """How many elements other than zero these returned."""
    unequal: int = 0

    def add(self, tensor: Measured) -> None:
        """Count what such a call returned, unless its difference is a fact."""
        self.equal += not tensor.unequal
        self.elements += 0 if tensor.unequal else tensor.size * (1 - tensor.zeros)
        self.unequal += bool(tensor.unequal)

    def contradict(self, tensor: Measured) -> bool:
        """Return whether these show that the difference of a tensor is not rounding in another order."""
        if self.unequal or self.equal < _FEWEST_CALLS:
            return False
        share = min(tensor.unequal / max(tensor.size, 1), 1 - 1e-12)
        return self.elements * math.log1p(-share) < math.log(_CHANCE)


def without_scale(tensors: Sequence[Measured], parts: Sequence[StepPart]) -> dict[int, Measured]:
    """Return by number the gradients without the factor that all of them have, from that of the loss on.

    One side may divide the loss by the number of micro-batches, or multiply it against underflow, and the
    other one its gradients afterwards: parameters show whether they were. Where no gradient of a parameter
    has the factor, it is not undone: so a factor that each rank has its own of is reduced.
    """
    gradients = [each for each in tensors if parts[each.number].is_gradient]
    unequal = [each for each in gradients if each.unequal]
    parallel = _parallel(unequal)
    whole = [each for each in gradients if parts[each.number] is StepPart.PARAMETER_GRADIENT]
    if StepPart.PARAMETER not in parts or not _may_have_factor(whole, parallel):
        return {}
    factors = [metrics.norm_ratio for metrics in parallel.values()]
    factors += [each.averaged for each in unequal if each.averaged != 1.0]
    is_one = all(math.isclose(factor, factors[0], rel_tol=PARALLEL) for factor in factors)
    if not factors or not is_one or math.isclose(factors[0], 1.0, rel_tol=PARALLEL):
        return {}
    return {
        each.number: each._replace(metrics=parallel[each.number])
        for each in unequal
        if each.number in parallel
    }


def _may_have_factor(whole: Sequence[Measured], parallel: Container[int]) -> bool:
    """Return whether gradients of parameters may all have one factor: most do, and none is equal.

    A single number always has one.
    """
    telling = [each for each in whole if each.unequal and each.size > 1 and each.averaged == 1.0]
    has_equal = any(each.zeros < 1 for each in whole if not each.unequal)
    return not has_equal and 2 * sum(each.number in parallel for each in telling) >= len(telling)


def _parallel(tensors: Iterable[Measured]) -> dict[int, Metrics]:
    """Return what is left without a factor, which is little, of tensors other than means of parts."""
    rest = {
        each.number: but_for_factor(each.metrics)
        for each in tensors
        if each.metrics is not None and each.averaged == 1.0
    }
    return {number: metrics for number, metrics in rest.items() if metrics.relative_euclidean <= PARALLEL}


def but_for_factor(metrics: Metrics, factor: float | None = None) -> Metrics:
    """Return what is left of a difference without a factor of A.

    Args:
        metrics: how far A is from B.
        factor: the factor; by default the one that leaves least, which `norm_ratio` then is.
    """
    found = metrics.cosine * metrics.norm_ratio
    off = 0.0 if factor is None else found / factor - 1
    rest = math.hypot(math.sqrt(max(1.0 - metrics.cosine**2, 0.0)), off)
    rmse = metrics.rmse * rest / metrics.relative_euclidean if metrics.relative_euclidean else 0.0
    ratio = found if factor is None else found / factor
    return replace(metrics, relative_euclidean=rest, rmse=rmse, norm_ratio=ratio)


def have_same_rows(
    a: npt.NDArray[Any], b: npt.NDArray[Any], length: int, limit: float, *, but_for_mean: bool = False
) -> bool:
    """Return whether rows of a length are the same within a limit, but in another order.

    They may differ by one row that is added to all, `but_for_mean`. Rows are sorted by a random projection,
    which keeps those together that differ by rounding.
    """
    if a.dtype.kind == "c":
        return False
    try:
        first, second = (np.asarray(side, np.float64).reshape(-1, length) for side in (a, b))
    except (ValueError, TypeError):  # no numbers
        return False
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return False
    size = np.linalg.norm(second)
    if but_for_mean:
        first, second = (side - side.mean(axis=0) for side in (first, second))
    if np.linalg.norm(first - second) <= limit * size:
        return False  # in the same order
    by = np.random.default_rng(0).standard_normal(length)
    first, second = (side[np.argsort(side @ by)] for side in (first, second))
    return bool(np.linalg.norm(first - second) <= limit * size)


def ways_of_rows(
    a: npt.NDArray[Any], b: npt.NDArray[Any]
) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any], int]]:
    """Yield both sides and the length of rows: of samples, or of tokens, whichever comes first."""
    shape = b.shape
    for length in {math.prod(shape[1:]), shape[-1] if len(shape) > 1 else 1} - {0}:
        yield a, b, length
    if len(shape) > 1 and b.size:  # tokens first, then samples
        yield np.moveaxis(a, 1, 0), np.moveaxis(b, 1, 0), b.size // shape[1]


def real_numbers(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return values in one row; of complex ones, their parts."""
    row = np.ascontiguousarray(values).reshape(-1)
    return (row.view(row.real.dtype) if row.dtype.kind == "c" else row).astype(np.float64)


def repeats(values: npt.NDArray[Any], size: int) -> bool:
    """Return whether values are those of replicas, one after another, of which each has a size."""
    return size > 0 and values.size % size == 0 and bool((values.reshape(-1, size) == values[:size]).all())


#: By how much one operator may enlarge the relative difference of what it reads.
GROWTH = 16.0
#: By how much the differences of one step may exceed those with which it began.
DRIFT = 32.0
#: A tensor was not read if at least this many tensors were executed later, and all are this much closer.
FEWEST_LATER, _CLOSER = 3, 1024.0
#: A call of the model has at least one in this many of the tensors of a step.
_FEW_CALLS = 32
#: Elements that are sorted to see whether they are the same in another order.
_MOST_SORTED = 1 << 22
#: What a model reads is of other samples if it is off by more than this; numbers of tokens, if they are off.
_OTHER = 0.5
#: The share of elements of which not all are padding.
_ALL = 0.9
_IDLE = "it is of a first pass of which no parameter has a gradient: nothing is trained by it"
#: For each gradient, as many parameters may move without one.
_MOVED = 2
_OTHER_SAMPLES = "its call holds other samples than that of B"
_OTHER_ORDER = (
    "its call holds other samples than that of B, or in another order: the gradients of all parameters agree"
)
_OVERWRITTEN = "its operator writes over it, and what it has written agrees"
_SPARSE = "it is a part of a sparse tensor, of which each rank has rows: the next parameter tells"
AWAITED = "dumped before anybody waited for the collective that writes it"

Elements: TypeAlias = Callable[[int], tuple[npt.NDArray[Any], npt.NDArray[Any]] | None]
"""Returns the elements of a tensor of A, by its number, and of its counterpart; None if it cannot."""


class Judgement(NamedTuple):
    """The verdict on one tensor."""

    verdict: Verdict
    bound: RoundingBound
    reason: str = ""
    level: str = ""
    """What a difference that nothing before explains rests on: `shown` if it is known what its operator read,
    else `likely`."""


class StepBefore(NamedTuple):
    """What is kept of a step to explain how parameters moved."""

    flow: Dataflow
    judgements: Mapping[int, Judgement]
    elements: Elements
    scale: float = 1.0
    """The factor of all gradients."""
    rounding: float = 0.0
    """How large rounding alone makes elements of gradients."""

    def verdict(self, name: str) -> Verdict | None:
        """Return the verdict on a tensor; None if one side does not have it in this step."""
        number = self.flow.last_of.get(name)
        if number is None or (self.flow.in_b and number not in self.flow.in_b):
            return None
        return self.judgements[number].verdict if number in self.judgements else Verdict.EQUAL

    def has_same(self, later: Dataflow, number: int) -> bool:
        """Return whether a tensor of the step after it has the bytes that it had in this one."""
        own = self.flow.last_of.get(later.repeated_name(number))
        return own is not None and self.flow.digest(own) == later.digest(number)

    def read(self, name: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]] | None:
        """Return the elements of a tensor and of its counterpart."""
        return self.elements(self.flow.last_of[name])


@dataclass(slots=True)
class SeenSoFar:
    """What the steps so far have shown."""

    healthy: float = 0.0
    """The largest difference of a tensor within its limits."""
    coarsest: float = 0.0
    """The largest fixed limit: what is computed from bfloat16 is as coarse."""
    calls: defaultdict[object, CallsWithSameBytes] = field(
        default_factory=lambda: defaultdict(CallsWithSameBytes)
    )
    """By kind, shape and types of elements of what they returned."""
    is_apart: bool = False
    """Whether anything differed in the steps before."""
    gradients: set[str] = field(default_factory=set)
    """The gradients of parameters of all steps before."""
    moved_apart: set[str] = field(default_factory=set)
    """Gradients that have differed: what an optimizer keeps of them still does."""
    noisy: set[str] = field(default_factory=set)
    """Modules of which the gradient of a parameter has been rounding alone."""
    noise: float = 0.0
    """How far apart elements of parameters are that differ by noise."""
    found: bool = False
    """Whether a difference that nothing explains was found."""
    before: StepBefore | None = None
    sizes: dict[str, float] = field(default_factory=dict)
    """By module: the largest root mean square of what it read and wrote."""
    uncertain: dict[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    """The relative uncertainty of the gradients, by the name and element of each parameter that moved apart:
    momentum goes on with what was uncertain in earlier steps."""


class StepDifferences:
    """The differences of one step, and which of them have no effect."""

    def __init__(
        self,
        known: SeenSoFar,
        tensors: Sequence[Measured],
        flow: Dataflow,
        elements: Elements,
        *,
        has_other_calls: bool,
        has_other_shapes: bool,
        is_put_together: bool,
    ) -> None:
        """Begin a step; the arguments are those of `Judge.judge`."""
        self._known, self._flow, self._elements = known, flow, elements
        self._has_other_shapes, self._is_put_together = has_other_shapes, is_put_together
        self._has_other_calls = has_other_calls
        self._tensors = {tensor.number: tensor for tensor in tensors}
        self._differences = {number: tensor.difference for number, tensor in self._tensors.items()}
        self._at_start = known.healthy
        self._length = longest_sum({tensor.shape for tensor in tensors})
        self._coarsest = max((rounding(tensor.dtypes, self._length) for tensor in tensors), default=0.0)
        self._usual = _usual_gradient(flow, tensors)
        for number, tensor in self._tensors.items():
            if flow.parts[number] is StepPart.ACTIVATION and tensor.rms > 0:
                name = flow.keys[number].op_name
                known.sizes[name] = max(known.sizes.get(name, 0.0), tensor.rms)
        self._unread = self._of_other_samples() if has_other_calls else self._without_readers()

    @cached_property
    def _usual_size(self) -> float:
        return float(np.median([*self._known.sizes.values(), 0.0]))

    def rounded_away(self, number: int) -> str:
        """Return why a bias or a running mean may differ: all of it is rounding of what it is added to."""
        tensor, sizes = self._tensors[number], self._known.sizes
        size = sizes.get(module_of(self._flow.keys[number]), self._usual_size)
        rounding_of_sum = GROWTH * max(map(unit_of, tensor.dtypes)) * size
        metrics = tensor.metrics
        is_below = metrics is not None and 0 < size_of(metrics) + metrics.max_abs <= rounding_of_sum
        return "no more than rounding of what its module computes with" if is_below else ""

    def _is_cancelled_number(self, tensor: Measured) -> bool:
        """Return whether a number, such as a loss, is off by no more than its type allows sums.

        What was added up is not known, and may be far larger. So it is for what the program saved, such as a
        reward for each sample.
        """
        is_saved = self._flow.keys[tensor.number].op_type == "saved"
        is_number = self._flow.parts[tensor.number] is StepPart.ACTIVATION and (tensor.size == 1 or is_saved)
        is_near = self._differences[tensor.number] <= max(map(default_limit, tensor.dtypes))
        return is_number and is_near and self._flow.reads(tensor.number, self._tensors) is None

    def _dtypes(self, tensor: Measured) -> tuple[str, str]:
        """Return the types that a tensor was rounded to; a coarser one within its module counts for both."""
        if not tensor.unequal or not any(map(unit_of, tensor.dtypes)):
            return tensor.dtypes
        within = max(self._flow.dtypes_within(tensor.number), key=unit_of, default="")
        return tensor.dtypes if unit_of(within) <= max(map(unit_of, tensor.dtypes)) else (within, within)

    @property
    def rounding_of_zero(self) -> float:
        """The size at which rounding of the coarsest type makes gradients differ that are zero."""
        return self._coarsest * self._usual

    def _is_rounding_of_zero(self, number: int) -> bool:
        metrics, scale = self._tensors[number].metrics, self.rounding_of_zero
        return metrics is not None and 0 < metrics.rmse <= scale and size_of(metrics) <= GROWTH * scale

    def _of_other_samples(self) -> dict[int, str]:
        """Return, by number, why it is not known what gradients should be, unless that is zero.

        Nor is it of what the program saved of each call, such as its loss. Gradients of parameters are alike
        once all calls, and ranks, are added up.
        """
        gradients = (n for n in self._tensors if self._flow.parts[n].is_gradient and not self._is_added_up(n))
        unread = {n: _OTHER_SAMPLES for n in gradients if not self._is_rounding_of_zero(n)}
        return unread | dict.fromkeys(filter(self._is_saved_of_calls, self._tensors), _OTHER_SAMPLES)

    def _is_added_up(self, number: int) -> bool:
        """Return whether the gradient of a parameter has the parts of all calls and of all ranks."""
        is_of_parameter = self._flow.parts[number] is StepPart.PARAMETER_GRADIENT
        is_part = self._flow.is_sparse(number) or self._flow.is_partial_sum(number)
        return is_of_parameter and not is_part and self._tensors[number].spread <= self._coarsest

    def _is_saved_of_calls(self, number: int) -> bool:
        keys, last = self._flow.keys, self._flow.last_of[self._flow.repeated_name(number)]
        return keys[number].op_type == "saved" and keys[last].occurrence > 0

    def _without_readers(self) -> dict[int, str]:
        """Return, by number, why differing tensors have no effect: nothing was computed from them."""
        unread = dict.fromkeys(self._flow.idle, _IDLE)
        unread |= {n: AWAITED for n in self._tensors if self._flow.is_awaited(n)}
        unread |= {n: _OVERWRITTEN for n in self._tensors if self._is_overwritten_alike(n)}
        sparse = filter(self._flow.is_sparse, self._tensors if self._is_put_together else ())
        unread |= dict.fromkeys(sparse, _SPARSE)
        later, closest = 0, 0.0
        of_parameters = self._largest_of_gradients()
        is_cut_otherwise = self._is_cut_otherwise(unread, of_parameters)
        # What is executed last may be the next batch. Where there are gradients, they tell what was read.
        gradients = (self._differences[n] for n in self._flow.parameter_gradients if n in self._differences)
        of_gradients = min(of_parameters, max(filter(math.isfinite, gradients), default=0.0))
        for number, tensor in reversed(self._tensors.items()):
            part = self._flow.parts[number]
            if number in unread or (part.is_of_parameter and not self._flow.is_partial_sum(number)):
                continue
            # What cannot be compared at all is not any closer for that.
            difference = min(self._differences[number], 1.0)
            why = self._read_as_other(tensor, of_parameters)
            why = why or self._of_other_order(number, of_parameters, is_cut_otherwise=is_cut_otherwise)
            if not why and later >= FEWEST_LATER and max(closest, of_gradients) * _CLOSER < difference:
                why = self._in_flight(number, later, unread)
            if why:
                unread[number] = why
            else:
                later, closest = later + 1, max(closest, self._differences[number])
        return unread

    def _of_other_order(self, number: int, of_parameters: float, *, is_cut_otherwise: bool) -> str:
        """Return why a tensor that is far apart had no effect on the gradients of parameters, or ""."""
        difference = min(self._differences[number], 1.0)
        if is_cut_otherwise and of_parameters < difference > self._coarsest:
            return _OTHER_ORDER
        if not self._flow.parts[number].is_gradient or of_parameters * _CLOSER >= difference:
            return ""
        closer = f"the gradients of all parameters are at least {_CLOSER:.0f} times closer"
        return f"nothing was computed from it: {closer}"

    def _in_flight(self, number: int, later: int, unread: Container[int]) -> str:
        """Return why a tensor has no effect that is far from the `later` ones; "" if it may have one."""
        difference = min(self._differences[number], 1.0)
        # Without gradients of parameters, nothing tells that batches are cut in another way.
        has_effect = self._flow.parameter_gradients and self._has_effect(number, difference, unread)
        metrics = self._tensors[number].metrics
        is_number = metrics is not None and metrics.count == 1  # such as a loss, which is written at once
        may_be = bool(self._tensors[number].unequal) and self._flow.is_same_rank and not is_number
        if has_effect or not may_be or self._is_evaluated_apart(number, difference):
            return ""
        closer = f"the {later} tensors that were executed later are at least {_CLOSER:.0f} times closer"
        return f"nothing was computed from it: {closer}"

    def _is_evaluated_apart(self, number: int, difference: float) -> bool:
        """Return whether a module gave something else because it read it, and not in some places alone.

        No gradient tells what was computed from a copy that is an average of the model, a teacher or a
        reference; nor from a sample. Of what is trained, places that are padding may differ.
        """
        path, tensor = self._flow.keys[number].op_name, self._tensors[number]
        is_trained = any(f"{module}.".startswith(f"{path}.") for module in self._trained_modules)
        is_padding = is_trained and tensor.unequal < _ALL * tensor.size
        read = () if is_padding else self._flow.reads(number, self._tensors) or ()
        read = [n for n in read if self._flow.parts[n] is StepPart.ACTIVATION]
        return any(self._differences[n] * _CLOSER >= difference for n in read)

    def _read_as_other(self, tensor: Measured, of_parameters: float) -> str:
        """Return what shows that something else was read than a differing tensor; "" if nothing does.

        That is what agrees and was read in its place; or, if activations have other shapes on both sides, as
        where a batch is cut in another way, that the gradients of all parameters agree.
        """
        reader = self._flow.read_otherwise(tensor.number) if tensor.unequal else None
        if reader in self._differences and self._differences[reader] <= self._coarsest:
            return f"caught in flight: {self._flow.names[reader]} reads other bytes, which agree"
        is_of_ranks = self._is_put_together or self._is_saved_of_calls(tensor.number)
        is_cut = (
            self._has_other_shapes or (is_of_ranks and self._has_loose_pieces(tensor.number))
        ) and tensor.unequal
        return _OTHER_SAMPLES if is_cut and of_parameters <= self._most_of_gradients else ""

    def _has_loose_pieces(self, number: int) -> bool:
        """Return whether pieces of ranks make up nothing in the call of the model that a tensor is of.

        So it is if calls are cut otherwise. A gradient may be of any call.
        """
        begins = list(self._loose_calls)
        of = bisect_right(begins, number) - 1
        is_of_call = self._flow.parts[number] is StepPart.ACTIVATION and of >= 0
        return self._loose_calls[begins[of]] if is_of_call else any(self._loose_calls.values())

    @cached_property
    def _loose_calls(self) -> dict[int, bool]:
        """By the number of what a call of the model reads first: whether pieces make up nothing in it."""
        keys, parts = self._flow.keys, self._flow.parts
        activations = [n for n in self._tensors if parts[n] is StepPart.ACTIVATION]
        model = keys[activations[0]]._replace(occurrence=0) if activations else None
        loose, begin = dict[int, bool](), -1
        for n in activations:
            is_begin = keys[n]._replace(occurrence=0) == model
            begin = n if is_begin else begin
            most = _OTHER if any(map(unit_of, self._tensors[n].dtypes)) else 0.0
            is_apart = is_begin and self._differences[n] > most
            loose[begin] = loose.get(begin, False) or is_apart or not self._tensors[n].fits
        return loose

    @cached_property
    def _most_of_gradients(self) -> float:
        """How far gradients of parameters may be apart, by the types that they were computed in."""
        gradients = filter(self._tensors.__contains__, self._flow.parameter_gradients)
        dtypes = {dtype for n in gradients for dtype in self._dtypes(self._tensors[n])}
        return max(*map(default_limit, dtypes), DRIFT * self._at_start, 0.0)

    def _is_overwritten_alike(self, number: int) -> bool:
        if not self._tensors[number].unequal or not self._flow.is_overwritten(number):
            return False
        written = self._flow.outputs[self._flow.keys[number].operator]
        return all(n in self._tensors and self._differences[n] <= self._coarsest for n in written)

    def _is_cut_otherwise(self, unread: Container[int], of_parameters: float) -> bool:
        """Return whether the batch is cut in another way, so that no activation is alike, but gradients are.

        Only what differs by more than rounding counts: a norm forgets what its input differed by, and a loss
        over the samples of all ranks is the same however they are spread.
        """
        activations = [n for n in self._tensors if self._flow.parts[n] is StepPart.ACTIVATION]
        read = (n for n in activations if self._differences[n] > self._coarsest and n not in unread)
        different = [n for n in read if not self._is_cancelled_number(self._tensors[n])]
        if not different or activations.index(different[0]) > len(different):
            return False  # what is read first is alike
        if self._has_call_alike(activations, different):
            return False  # what trains is alike, and a call that generates is not
        least = min(min(self._differences[n], 1.0) for n in different)
        if of_parameters * _CLOSER < least:
            return True
        return of_parameters < min(least, self._most_of_gradients) and self._reads_same_elements

    def _has_call_alike(self, activations: Iterable[int], different: Iterable[int]) -> bool:
        """Return whether at least half of what a call of the model computes is alike on both sides.

        What is equal in any order does not count: parameters that are read, and counts of elements. Nor do
        the calls of a module that is called more often than the model, such as a mask.
        """
        computed = [n for n in activations if self._is_computed(n)]
        calls, apart = (
            Counter(self._flow.keys[n].occurrence for n in each)
            for each in (computed, set(different).intersection(computed))
        )
        usual = {call: count for call, count in calls.items() if count * _FEW_CALLS >= calls.total()}
        return any(2 * apart[call] <= count for call, count in usual.items())

    def _is_computed(self, number: int) -> bool:
        """Return whether a tensor holds other numbers than whole ones, and not those of a parameter."""
        is_float = any(map(unit_of, self._tensors[number].dtypes))
        return is_float and self._flow.digest(number) not in self._of_parameters

    @cached_property
    def _of_parameters(self) -> frozenset[bytes]:
        parts = enumerate(self._flow.parts)
        return frozenset(self._flow.digest(n) for n, part in parts if part is StepPart.PARAMETER) - {b""}

    def _has_effect(self, number: int, difference: float, unread: Container[int]) -> bool:
        """Return whether an operator that was given what was dumped of a tensor returned something else.

        What nothing was computed from does not count.
        """
        results = (n for n in self._flow.results(number) if n not in unread)
        return any(self._differences.get(n, 0.0) * _CLOSER >= difference for n in results)

    def _largest_of_gradients(self) -> float:
        """Return the largest difference of the gradients of all parameters, without noise; else infinity.

        Of those that are added up over calls, the last ones are whole. For what moves without a gradient, as
        averages of others do, its own difference counts, unless that is most. What calls move is not known.
        """
        flow = self._flow
        parameters = [n for n in self._tensors if flow.parts[n] is StepPart.PARAMETER]
        last = {n: flow.last_of.get(gradient_name(flow.repeated_name(n)), -1) for n in parameters}
        known = [own for own in last.values() if own in self._tensors]
        moved = self._moved_alone(last)
        by_calls = {module_of(flow.keys[n]) for n in moved} & self._trained_modules
        if by_calls or len(moved) > _MOVED * len(known):
            return math.inf
        told = filterfalse(self._is_rounding_of_zero, known), filterfalse(self.rounded_away, moved)
        return max(map(self._differences.__getitem__, chain(*told)), default=math.inf)

    def _moved_alone(self, gradients: Mapping[int, int]) -> list[int]:
        """Return the parameters that have no gradient and may have moved; `gradients` are by parameter."""
        lacking = (n for n, gradient in gradients.items() if gradient not in self._tensors)
        return [n for n in lacking if not self._is_frozen(n, gradients[n])]

    def _is_frozen(self, number: int, gradient: int) -> bool:
        """Return whether a parameter has no gradient, and did not move since the step before, if any.

        Where it had one in another step, nothing it was used in was called in this one. What has none while
        others of its module do is a buffer, which its calls move: as far as elements go whatever their order.
        """
        flow, before = self._flow, self._known.before
        if gradient >= 0:
            return False
        is_kept = before is None or before.has_same(flow, number)
        was_there = gradient_name(flow.repeated_name(number)) in self._known.gradients
        is_buffer = module_of(flow.keys[number]) in self._trained_modules
        is_still = is_kept and not self._tensors[number].unequal
        return was_there or is_still or (is_buffer and self._reads_same_elements)

    @cached_property
    def _reads_same_elements(self) -> bool:
        """Whether the calls of what is called first read the same elements on both sides, in any order."""
        parts, name_of = self._flow.parts, self._flow.repeated_name
        activations = [n for n in self._tensors if parts[n] is StepPart.ACTIVATION]
        first = next((n for n in activations if self._tensors[n].unequal), None)
        calls = [n for n in activations if first is not None and name_of(n) == name_of(first)]
        if sum(self._tensors[n].size for n in calls) > _MOST_SORTED:
            return False
        # Pieces that make up nothing are of other samples on each rank, as in an evaluation.
        pairs = [pair for n in calls if (pair := self._elements(n)) is not None]
        if first is None or not pairs:
            return first is None
        a, b = (
            np.sort(np.concatenate([np.asarray(pair[n], np.float64).ravel() for pair in pairs]))
            for n in (0, 1)
        )
        return a.shape == b.shape and np.allclose(a, b, rtol=self._coarsest, atol=0.0)

    @cached_property
    def _trained_modules(self) -> frozenset[str]:
        return frozenset(module_of(self._flow.keys[n]) for n in self._flow.parameter_gradients)


def _usual_gradient(flow: Dataflow, tensors: Iterable[Measured]) -> float:
    """Return the median root mean square of the gradients of a step that differ; 0 if there are none.

    Memory that was dumped before it was written is left out.
    """
    gradients = (each for each in tensors if flow.parts[each.number].is_gradient)
    written = (each for each in gradients if each.metrics and not flow.is_awaited(each.number))
    sizes = [size for each in written if each.metrics and 0 < (size := size_of(each.metrics)) < UNWRITTEN]
    return float(np.median(sizes)) if sizes else 0.0


def size_of(metrics: Metrics) -> float:
    """Return the root mean square of the elements of B; 0 if it is not known, as of equal tensors."""
    distance = metrics.relative_euclidean
    return metrics.rmse / distance if 0 < distance < math.inf else 0.0
