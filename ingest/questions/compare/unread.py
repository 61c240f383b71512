"""How far the tensors of a step are apart, and which of them nobody computed with as they were dumped."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, filterfalse
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.identities.limits import UNWRITTEN, unit_of
from ingest.questions.compare.dataflow import Dataflow, gradient_name, module_of
from ingest.questions.compare.measured import CallsWithSameBytes, Measured
from ingest.questions.compare.result import Verdict
from ingest.questions.compare.thresholds import RoundingBound, default_limit, longest_sum, rounding
from ingest.reader.operator_kinds import StepPart
from workers.arrays.comparison import Metrics

#: By how much one operator may enlarge the relative difference of what it reads.
GROWTH = 16.0
#: By how much the differences of one step may exceed those with which it began.
DRIFT = 32.0
#: A tensor was not read if at least this many tensors were executed later, and all are this much closer.
FEWEST_LATER, _CLOSER = 3, 1024.0
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
        """Return the verdict on a tensor; None if the step does not have it."""
        number = self.flow.last_of.get(name)
        if number is None:
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


class MeasuredStep(NamedTuple):
    """One step, as `Judge.judge` takes it."""

    tensors: Sequence[Measured]
    flow: Dataflow
    elements: Elements
    has_other_calls: bool
    has_other_shapes: bool
    is_put_together: bool


class StepDifferences:
    """The differences of one step, and which of them have no effect."""

    def __init__(self, known: SeenSoFar, step: MeasuredStep) -> None:
        tensors, flow, self._elements = step.tensors, step.flow, step.elements
        self._has_other_calls, self._has_other_shapes = step.has_other_calls, step.has_other_shapes
        self._is_put_together = step.is_put_together
        self._known, self._flow = known, flow
        self._tensors = {tensor.number: tensor for tensor in tensors}
        self._differences = {number: tensor.difference for number, tensor in self._tensors.items()}
        self._at_start = known.healthy
        self._length = longest_sum({tensor.shape for tensor in tensors})
        self._coarsest = max((rounding(tensor.dtypes, self._length) for tensor in tensors), default=0.0)
        self._usual = _usual_gradient(flow, tensors)
        self._remember_sizes()
        self._unread = self._of_other_samples() if self._has_other_calls else self._without_readers()

    def _remember_sizes(self) -> None:
        sizes, keys = self._known.sizes, self._flow.keys
        for number, tensor in self._tensors.items():
            if self._flow.parts[number] is StepPart.ACTIVATION and tensor.rms > 0:
                sizes[keys[number].op_name] = max(sizes.get(keys[number].op_name, 0.0), tensor.rms)

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
        """Return whether a gradient is as small as rounding of the coarsest type makes gradients differ."""
        metrics, scale = self._tensors[number].metrics, self.rounding_of_zero
        return metrics is not None and 0 < metrics.rmse <= scale and size_of(metrics) <= GROWTH * scale

    def _of_other_samples(self) -> dict[int, str]:
        """Return, by number, why it is not known what gradients should be, unless that is zero.

        Nor is it of what the program saved of each call, such as its loss.
        """
        gradients = (n for n in self._tensors if self._flow.parts[n].is_gradient)
        unread = {n: _OTHER_SAMPLES for n in gradients if not self._is_rounding_of_zero(n)}
        return unread | dict.fromkeys(filter(self._is_saved_of_calls, self._tensors), _OTHER_SAMPLES)

    def _is_saved_of_calls(self, number: int) -> bool:
        """Return whether the program saved a tensor several times in the step, once for each call."""
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
        if has_effect or not self._may_be_in_flight(number) or self._is_evaluated_apart(number, difference):
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
        """Return whether what an operator has written over a differing tensor agrees."""
        if not self._tensors[number].unequal or not self._flow.is_overwritten(number):
            return False
        written = self._flow.outputs_of(number)
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
        calls, apart = (
            Counter(self._flow.keys[n].occurrence for n in each) for each in (activations, different)
        )
        if any(2 * apart[call] <= count for call, count in calls.items()):
            return False  # what trains is alike, and a call that generates is not
        least = min(min(self._differences[n], 1.0) for n in different)
        if of_parameters * _CLOSER < least:
            return True
        return of_parameters < min(least, self._most_of_gradients) and self._reads_same_elements

    def _may_be_in_flight(self, number: int) -> bool:
        """Return whether a tensor may have been dumped before it was written; a loss may not."""
        tensor = self._tensors[number]
        is_number = tensor.metrics is not None and tensor.metrics.count == 1
        return bool(tensor.unequal) and self._flow.is_same_rank and not is_number

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
        """The modules of which parameters have gradients in this step."""
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
