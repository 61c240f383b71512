"""Judges differences in the order of execution: what is a fact, what is rounding, what nobody computed with.

1. **Facts.** An operator that read the same bytes on both sides and returned others is different, however
   little, if both runs are deterministic. They are if other calls of such operators that read the same bytes
   have returned the same bytes, and so many that rounding in another order would have shown in them.
2. **Limits** decide where inputs differ. An operator passes on what its inputs differ by, at most `GROWTH`
   times as large, and adds its own rounding; see `rounding`:

       limit = base + GROWTH * (difference of its inputs)

   but never more than the fixed limit of the type, or `DRIFT` times what the step began with. In types
   narrower than float32, the fixed limit is for `SHALLOW` operators one after another: of more, independent
   rounding adds up as its squares do. Where it is not known what an operator read, all that was executed
   before and is within its limits stands for it.
3. **Noise.** A gradient that is zero in exact arithmetic, such as that of the bias of keys, is rounding
   alone. An optimizer that divides gradients by their size moves parameters by it as far as by any other. So
   what a parameter may differ by follows, element by element, from how uncertain its gradient was.
4. **Another order.** Samples of a batch, or tokens of an expert, are the same in another order if nothing
   that differs is anything else, and gradients of parameters, which are sums over all of them, are close.
5. **Not read.** A tensor from which nothing was computed as it was dumped: it was dumped before an
   asynchronous reduction into it had ended, or its memory was in use again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.questions.compare.dataflow import Dataflow, gradient_name, module_of
from ingest.questions.compare.differences import (
    DRIFT,
    FEWEST_LATER,
    GROWTH,
    MANY,
    PARALLEL,
    CallsWithSameBytes,
    Elements,
    Judgement,
    Measured,
    SeenSoFar,
    StepBefore,
    StepDifferences,
    have_same_rows,
    real_numbers,
    repeats,
    size_of,
    ways_of_rows,
    without_scale,
)
from ingest.questions.compare.result import Verdict
from ingest.questions.compare.thresholds import RoundingBound, default_limit, rounding
from ingest.reader.operator_kinds import StepPart, is_input
from ingest.reader.text import counted
from workers.arrays.comparison import Metrics

#: For how many operators, one after another, the fixed limit of a narrow type is.
SHALLOW = 16
#: How much larger the limit of gradients in narrow types is: they are rounded in both passes, and cancel.
_PASSES = 2.0
#: How much more than its uncertainty in the first order an element may move.
_MOVES = 4.0
#: The most elements of a parameter that are read to explain how it moved, and the most parameters of a step.
_MOST_ELEMENTS, _MOST_PARAMETERS = 1 << 26, 256

#: Equal steps in which calls are counted: the others would show the same.
_EQUAL_STEPS = 3
_OTHER_ORDER = "its rows are in another order, and all that follows is close"
CANCELS = "its addends cancel: rounding is relative to these"
_SAME_BYTES = "its operator read the same bytes"
_SAME_BEFORE = "it and its gradient, as dumped, were equal in the step before"
#: Verdicts on tensors whose differences do not count as what others read.
_WITHOUT_EFFECT = frozenset({Verdict.NOISE, Verdict.NOT_READ})
#: Verdicts on a gradient that tell nothing of how a parameter moved.
_UNTOLD = frozenset({None, Verdict.DIFFERENT, Verdict.IGNORED})


_Row: TypeAlias = npt.NDArray[np.float64]


class Judge:
    """Judges the steps of one rank of A against one of B, or of all of both, one after the other."""

    def __init__(self) -> None:
        self._known = SeenSoFar()
        self._steps = 0
        self._is_scale_undone = False
        """Whether parameters have agreed after a step whose gradients all had one factor."""
        self.scaled: int | None = None
        """The number of the first gradient of the last step, if all of them are B's times one factor."""
        self.blames_scale = False
        """Whether parameters have moved apart by such gradients of the step before."""

    def judge(
        self,
        tensors: Sequence[Measured],
        flow: Dataflow,
        elements: Elements,
        *,
        is_last: bool = False,
        has_other_calls: bool = False,
        has_other_shapes: bool = False,
        is_put_together: bool = False,
    ) -> dict[int, Judgement]:
        """Judge one step; return the judgements by the number of the tensor, of equal ones maybe none.

        Memory: at most six tensors of `_MOST_ELEMENTS` elements, as float64.

        Args:
            tensors: those that both sides have, in order of execution.
            flow: what operators of A read.
            elements: reads them, where verdicts hang on single elements.
            is_last: no step follows whose parameters could show what became of the gradients.
            has_other_calls: calls of both sides hold other samples: so do gradients, and only parameters are
                the same.
            has_other_shapes: activations have other shapes on both sides, as where a batch is cut in another
                way: then calls hold other samples, too, if the gradients of all parameters agree.
            is_put_together: tensors are put together of the pieces of several ranks.
        """
        self._steps += 1
        scaled = {} if is_last and not self._is_scale_undone else without_scale(tensors, flow.parts)
        tensors = [scaled.get(tensor.number, tensor) for tensor in tensors]
        judgements: dict[int, Judgement] = {}
        is_apart = any(tensor.unequal for tensor in tensors)
        rounding_of_zero = 0.0
        if is_apart or self._steps <= _EQUAL_STEPS:
            step = _StepJudge(
                self._known,
                tensors,
                flow,
                elements,
                has_other_calls=has_other_calls,
                has_other_shapes=has_other_shapes,
                is_put_together=is_put_together,
            )
            judgements, rounding_of_zero = step.judge(), step.rounding_of_zero
        moved = [known for n, known in judgements.items() if flow.parts[n] is StepPart.PARAMETER]
        is_apart_by_scale = any(known.verdict is Verdict.DIFFERENT for known in moved)
        self.blames_scale = self.scaled is not None and is_apart_by_scale
        self._is_scale_undone |= self.scaled is not None and not is_apart_by_scale
        self.scaled = next(iter(scaled), None)
        first = scaled[self.scaled].metrics if self.scaled is not None else None
        scale = first.norm_ratio if first else 1.0
        self._known.before = StepBefore(flow, judgements, elements, scale, rounding_of_zero)
        self._known.is_apart |= is_apart
        self._known.gradients.update(map(flow.repeated_name, flow.parameter_gradients))
        return judgements


class _StepJudge(StepDifferences):
    def __init__(
        self,
        known: SeenSoFar,
        tensors: Sequence[Measured],
        flow: Dataflow,
        elements: Elements,
        **told: bool,
    ) -> None:
        super().__init__(known, tensors, flow, elements, **told)
        self._judgements: dict[int, Judgement] = {}
        self._is_equal_so_far = True
        """Whether all that was executed in this step so far is equal."""
        self._parameters_read = 0
        self._noisy_matrix: int | None = None
        """The parameter of two axes or more that differs most of those that are noise."""
        self._executed: set[tuple[str, bool]] = set()
        """The operators so far, in the forward pass and in the backward one; each once, of micro-batches."""

    def judge(self) -> dict[int, Judgement]:
        for number, tensor in self._tensors.items():
            if self._flow.parts[number].is_gradient or self._flow.is_output(number):
                self._executed.add((self._flow.keys[number].op_name, self._flow.parts[number].is_gradient))
            judgement = self._judgements[number] = self._of(tensor)
            if judgement.verdict is Verdict.CLOSE and self._differences[number] <= judgement.bound.limit:
                self._known.healthy = max(self._known.healthy, self._differences[number])
            self._is_equal_so_far &= not tensor.unequal
            if tensor.unequal and self._flow.parts[number].is_gradient:
                self._known.moved_apart.add(self._flow.repeated_name(number))
            if judgement.verdict is Verdict.NOISE:
                self._remember_noise(number, tensor)
        self._judge_rows()
        return self._judgements

    def _judge_rows(self) -> None:
        """Take what differs for close if it has the rows of its counterpart, and all else is close."""
        different = [n for n, known in self._judgements.items() if known.verdict is Verdict.DIFFERENT]
        # Of an evaluation, which has no gradients, parameters tell that the programs are the same.
        parts, has_gradients = self._flow.parts, bool(self._flow.parameter_gradients)
        alike = [n for n in self._judgements if not has_gradients or parts[n] is not StepPart.PARAMETER]
        numbers = {n for n in different if self._is_cancelled_number(self._tensors[n])}
        rows = (n for n in different if n not in numbers)
        if len(alike) - len(different) < FEWEST_LATER or not all(map(self._is_in_another_order, rows)):
            # Calls of single functions are told by their numbers alone, as are the norms of each rank's own
            # shards: it is not sure that both sides hold the same as these.
            comparable = (n for n in different if self._tensors[n].metrics is not None)
            self._known.found |= not all(map(self._flow.is_numbered, comparable))
            return
        for number in different:
            bound = replace(self._judgements[number].bound, explained=True)
            reason = CANCELS if number in numbers else _OTHER_ORDER
            self._judgements[number] = Judgement(Verdict.CLOSE, bound, reason)

    def _remember_noise(self, number: int, tensor: Measured) -> None:
        part = self._flow.parts[number]
        if part is StepPart.PARAMETER_GRADIENT:
            self._known.noisy.add(module_of(self._flow.keys[number]))
        elif part is StepPart.PARAMETER and tensor.metrics is not None:
            last = -1.0 if self._noisy_matrix is None else self._differences[self._noisy_matrix]
            if len(tensor.shape) > 1 and self._differences[number] > last:
                self._noisy_matrix = number
            self._known.noise = max(self._known.noise, tensor.metrics.max_abs)
            if self._differences[number] <= self._known.coarsest:  # what was computed with it begins there
                self._known.healthy = max(self._known.healthy, self._differences[number])

    def _is_in_another_order(self, number: int) -> bool:
        """Return whether a tensor of samples or tokens has the rows of its counterpart in another order."""
        tensor = self._tensors[number]
        if self._flow.parts[number].is_of_parameter or not tensor.shape or tensor.size > _MOST_ELEMENTS:
            return False
        pair = self._elements(number)
        if pair is None or pair[0].shape != pair[1].shape:
            return False
        # What was read is in another order, too: its limits say nothing of what it adds.
        bound = self._judgements[number].bound
        limit = max(bound.limit, self._coarsest)
        if self._differences[number] <= limit:
            return bound.explained  # in any order, all is nearly the same
        is_offset = bool(self._known.noisy)
        ways = ways_of_rows(*(side.reshape(tensor.shape) for side in pair))
        return any(have_same_rows(*way, limit, but_for_mean=is_offset) for way in ways)

    def _of(self, tensor: Measured) -> Judgement:
        number, difference = tensor.number, self._differences[tensor.number]
        reads = self._flow.reads(number, self._tensors)
        fact = self._fact(tensor, reads)
        limit, base = self._limits(tensor, reads)
        times = difference / limit if limit else (math.inf if tensor.unequal else 0.0)
        bound = RoundingBound(limit, times, explained=True)
        if not tensor.unequal:
            return Judgement(Verdict.EQUAL, bound)
        if difference <= limit and not fact:
            return Judgement(Verdict.CLOSE, bound)
        if number in self._unread and not self._is_one_element(tensor, reads):
            verdict = Verdict.IGNORED if self._has_other_calls else Verdict.NOT_READ
            return Judgement(verdict, bound, self._unread[number])
        if fact:
            return Judgement(Verdict.DIFFERENT, replace(bound, explained=False), fact, "shown")
        if harmless := self._harmless(tensor, bound, reads):
            return harmless
        bound = RoundingBound(limit, times, self._is_explained(difference, base, reads))
        level = "likely" if reads is None else "shown"
        return Judgement(Verdict.DIFFERENT, bound, self._beyond(tensor, limit, reads), level)

    def _is_one_element(self, tensor: Measured, reads: Sequence[int] | None) -> bool:
        """Return whether one of many elements differs although its operator read the same bytes.

        It is wrong even if nothing was computed from it: memory that is caught in flight differs in more.
        """
        is_one = tensor.unequal == 1 and tensor.size >= MANY and tensor.is_alike and tensor.fits
        return is_one and not self._has_other_calls and self._has_same_sources(tensor, reads)

    def _harmless(
        self, tensor: Measured, bound: RoundingBound, reads: Sequence[int] | None
    ) -> Judgement | None:
        """Return the judgement on noise, or on what cancels, beyond its limit; None if it is neither."""
        if noise := self._noise(tensor, bound.limit, reads):
            return Judgement(Verdict.NOISE, bound, noise)
        is_first = all(known.verdict is not Verdict.DIFFERENT for known in self._judgements.values())
        if is_first and self._is_cancelled_number(tensor):
            return Judgement(Verdict.CLOSE, bound, CANCELS)
        if self._differences[tensor.number] <= bound.limit * self._cancellation(tensor, reads or ()):
            return Judgement(Verdict.CLOSE, bound, CANCELS)
        return None

    def _limits(self, tensor: Measured, reads: Sequence[int] | None) -> tuple[float, float]:
        """Return the difference that rounding and what was read explain, and that of rounding alone."""
        part = self._flow.parts[tensor.number]
        calls = self._calls_of(tensor.number)
        dtypes = self._dtypes(tensor)
        base = rounding(dtypes, 1 if part is StepPart.PARAMETER else self._length * calls)
        fixed = max(map(default_limit, dtypes))
        self._known.coarsest = max(self._known.coarsest, fixed)
        # If it read other than what was dumped, the usual counts.
        is_read = reads is not None and self._unread.keys().isdisjoint(reads)
        before = GROWTH * (self._largest(reads or ()) if is_read else self._known.healthy)
        before = max(before, self._of_exponents(tensor.number, reads or ()))
        is_narrow = self._known.coarsest > default_limit("float32")
        cap = max(self._known.coarsest, DRIFT * self._at_start) if fixed else 0.0
        if fixed and is_narrow:
            depth = math.sqrt(max(len(self._executed) / SHALLOW, 1.0))
            passes = _PASSES if part.is_gradient else 1.0
            cap = max(cap, self._known.coarsest * depth * passes, self._known.healthy)
        return min(base + min(tensor.spread, GROWTH * base) + before, cap), base

    def _of_exponents(self, number: int, reads: Iterable[int]) -> float:
        """Return the relative difference of what a softmax returns, by how far apart its exponents are.

        A mask that is added as a large number hides in their relative difference what is not masked.
        """
        if "softmax" not in self._flow.keys[number].op_type.lower():
            return 0.0
        read = (self._tensors[n].metrics for n in reads)
        return max((2 * each.max_abs for each in read if each and math.isfinite(each.max_abs)), default=0.0)

    def _cancellation(self, tensor: Measured, reads: Iterable[int]) -> float:
        """Return how many times smaller the gradient of a parameter is than what was added up makes likely.

        Rounding is relative to what is added up. What cancels, as for a bias before a normalisation, is
        smaller than sums of such addends are.
        """
        parts = self._flow.parts
        if parts[tensor.number] is not StepPart.PARAMETER_GRADIENT:
            return 1.0
        known = [self._tensors[n] for n in reads if not parts[n].is_of_parameter]
        known.sort(key=lambda each: not parts[each.number].is_gradient)
        likely = (
            _likely_sum(tensor, known) if sum(parts[each.number].is_gradient for each in known) == 1 else 0.0
        )
        return max(likely / tensor.rms, 1.0) if likely > 0 and tensor.rms > 0 else 1.0

    def _largest(self, numbers: Iterable[int]) -> float:
        """Return the largest difference of some tensors, of which something was computed as they are."""
        return max(
            (self._differences[n] for n in numbers if self._verdict(n) not in _WITHOUT_EFFECT), default=0.0
        )

    def _verdict(self, number: int) -> Verdict:
        known = self._judgements.get(number)
        return known.verdict if known else Verdict.EQUAL

    def _fact(self, tensor: Measured, reads: Sequence[int] | None) -> str:
        """Return why a difference is a fact: by its type, or as its operator read the same bytes; else "".

        Counts calls with the same bytes while at it.
        """
        if self._has_other_type(tensor, reads):
            own, other = tensor.dtypes
            before = "what its operator read" if self._flow.is_output(tensor.number) else "all before it"
            return f"{own} instead of {other}, though {before} and others like it have one type"
        if not self._is_done_alike(tensor) or not self._has_same_sources(tensor, reads):
            return ""
        calls = self._calls_like(tensor, reads or ())
        is_fact = bool(tensor.unequal) and calls.contradict(tensor)
        if not is_fact:
            calls.add(tensor)
            return ""
        is_moved = self._flow.parts[tensor.number] is StepPart.PARAMETER
        read, noun = (_SAME_BEFORE, "update") if is_moved else (_SAME_BYTES, "call")
        like = f"{counted(calls.equal, noun)} like it, with the same bytes, gave the same before"
        return f"{tensor.difference_text}, though {read}; {like}"

    def _is_done_alike(self, tensor: Measured) -> bool:
        """Return whether operators do the same on both sides.

        A layout or a flag may choose another kernel, which differs in last bits; an update has no kernels.
        """
        is_moved = self._flow.parts[tensor.number] is StepPart.PARAMETER
        is_other_kernel = not is_moved and tensor.differs_in_last_bits(self._calls_of(tensor.number))
        return tensor.is_alike and tensor.fits and not is_other_kernel

    def _calls_of(self, number: int) -> int:
        is_sum = self._flow.parts[number] is StepPart.PARAMETER_GRADIENT
        return self._flow.keys[number].occurrence + 1 if is_sum else 1

    def _has_other_type(self, tensor: Measured, reads: Sequence[int] | None) -> bool:
        """Return whether an operator of one type returned another one than those like it, on one side.

        Or was given one, as the first of all: by a cast that the other side lacks.
        """
        before = self._judgements if is_input(self._flow.keys[tensor.number].io) else reads
        if _has_one_type(tensor) or not before or not all(_has_one_type(self._tensors[n]) for n in before):
            return False
        kinds, keys = self._flow.kinds, self._flow.keys
        own = kinds[tensor.number], keys[tensor.number].io, keys[tensor.number].slot
        like = (n for n in self._tensors if (kinds[n], keys[n].io, keys[n].slot) == own)
        return any(_has_one_type(self._tensors[n]) for n in like)

    def _has_same_sources(self, tensor: Measured, reads: Sequence[int] | None) -> bool:
        flow, known = self._flow, self._known
        if flow.parts[tensor.number] is StepPart.PARAMETER:
            before, name = known.before, flow.repeated_name(tensor.number)
            sources = before and {before.verdict(name), before.verdict(gradient_name(name))}
            # The norm that all are clipped to may differ by rounding if another gradient does.
            is_far = not known.moved_apart or self._differences[tensor.number] > rounding(tensor.dtypes, 1)
            return sources == {Verdict.EQUAL} and gradient_name(name) not in known.moved_apart and is_far
        if not flow.is_output(tensor.number):
            return False
        is_later_call = flow.keys[tensor.number].occurrence and not flow.parts[tensor.number].is_gradient
        is_equal = self._is_equal_so_far and tensor.number < flow.first_lone_gradient
        if not is_equal and (is_later_call or flow.may_receive(tensor.number)):
            return False  # weights may have moved meanwhile, or may be those of a functional call
        if reads is not None and (flow.has_parameters or not known.is_apart):
            return all(not self._tensors[number].unequal for number in reads)
        return self._is_equal_so_far and not known.is_apart

    def _calls_like(self, tensor: Measured, reads: Sequence[int]) -> CallsWithSameBytes:
        """Return the calls of the kind that a tensor was returned by, on tensors of the same shapes.

        Kernels and their threads are chosen by shapes, also by those of the kernels of convolutions. Updates
        work element by element.
        """
        is_moved = self._flow.parts[tensor.number] is StepPart.PARAMETER
        known = ((self._tensors[n].shape, self._flow.parts[n].is_of_parameter) for n in reads)
        shapes = tuple(shape for shape, is_of_parameter in known if not is_of_parameter or len(shape) > 2)
        form = len(tensor.shape) > 1 if is_moved else (tensor.shape, shapes)
        return self._known.calls[self._flow.kinds[tensor.number], form, tensor.dtypes]

    def _beyond(self, tensor: Measured, limit: float, reads: Sequence[int] | None) -> str:
        metrics, difference = tensor.metrics, self._differences[tensor.number]
        if metrics is None:
            return "the pieces of its ranks make up no tensor that is near"
        if odd := metrics.nan_mismatch + metrics.inf_mismatch:
            return f"{odd} NaN or Inf in one of the two"
        if not limit:
            return f"{metrics.unequal} of {metrics.count} elements differ"
        why = f"rounding of {tensor.dtypes[0]} in sums of {self._length}, and what "
        why += "came before" if reads is None else "its inputs differ by"
        times = difference / limit
        return f"relative difference {difference:.2g}, {times:.2g} times the limit {limit:.2g} ({why})"

    def _is_explained(self, difference: float, base: float, reads: Sequence[int] | None) -> bool:
        """Return whether an operator that read what differs before may differ by this, right or wrong.

        Of exact types, such as indices, any difference may follow from what was read, if that differs.
        """
        before = self._largest(self._judgements if reads is None else reads)
        return before > 0 if not base else difference <= base + GROWTH * before

    def _noise(self, tensor: Measured, limit: float, reads: Sequence[int] | None) -> str:
        """Return why a difference is what exact arithmetic leaves open; "" if it is not known to be."""
        part, metrics = self._flow.parts[tensor.number], tensor.metrics
        if metrics is None or metrics.nan_mismatch or metrics.inf_mismatch:
            return ""
        if part.is_gradient:
            return self._noise_of_gradient(tensor, limit)
        if part is StepPart.PARAMETER:
            return self._noise_of_parameter(tensor, metrics)
        noise = self._copied_noise(tensor) or self._carried_noise(tensor, metrics, limit, reads or ())
        return noise or (self._shifted_buffer(tensor, metrics) if self._may_be_buffer(tensor) else "")

    def _may_be_buffer(self, tensor: Measured) -> bool:
        """Return whether a function of a module may have read a buffer of it, as an earlier call left it."""
        if not self._flow.is_numbered(tensor.number):
            return False
        within = accumulate(self._flow.keys[tensor.number].op_name.split(".")[:-1], "{}.{}".format)
        return any((module, tensor.shape) in self._buffers for module in within)

    @cached_property
    def _buffers(self) -> frozenset[tuple[str, tuple[int, ...]]]:
        """The modules and shapes of parameters without a gradient."""
        flow = self._flow
        return frozenset(
            (module_of(flow.keys[number]), tensor.shape)
            for number, tensor in self._tensors.items()
            if flow.parts[number] is StepPart.PARAMETER
            and gradient_name(flow.repeated_name(number)) not in flow.last_of
        )

    def _noise_of_gradient(self, tensor: Measured, limit: float) -> str:
        """Return why a gradient is noise: by itself, or by the matrix that it may have come back through."""
        if self._is_rounding_of_zero(tensor.number):
            return "rounding of what is zero in exact arithmetic"
        matrix = self._noisy_matrix
        passed = 0.0 if matrix is None else min(2 * self._differences[matrix], GROWTH * limit)
        if matrix is None or self._differences[tensor.number] > limit + passed:
            return ""
        return f"no more than what {self._flow.names[matrix]} differs by, which is noise, makes"

    def _noise_of_parameter(self, tensor: Measured, metrics: Metrics) -> str:
        noise = self.rounded_away(tensor.number) or self._shifted_buffer(tensor, metrics)
        return noise or self._uncertain_update(tensor, self._flow.repeated_name(tensor.number))

    def _shifted_buffer(self, tensor: Measured, metrics: Metrics) -> str:
        """Return why a buffer may differ, as a running mean behind a bias that is noise; "" if it may not."""
        name = gradient_name(self._flow.repeated_name(tensor.number))
        has_gradient = bool(name) and name in self._flow.last_of
        is_near = 0 < metrics.max_abs <= self._known.noise and not has_gradient
        return "no further off than a parameter that is noise, of which it may be a mean" if is_near else ""

    def _copied_noise(self, tensor: Measured) -> str:
        """Return which noise an input is, as where a function was given a bias; "" if none."""
        if self._flow.is_output(tensor.number):
            return ""
        noisy = [self._tensors[n] for n, known in self._judgements.items() if known.verdict is Verdict.NOISE]
        same = (each for each in noisy if (each.metrics, each.shape) == (tensor.metrics, tensor.shape))
        if copied := next(same, None):
            return f"it is {self._flow.names[copied.number]}, which is noise"
        last = next(filter(self._flow.is_output, reversed(self._judgements)), tensor.number)
        is_near = self._differences[tensor.number] <= GROWTH * self._differences[last]
        if not is_near or self._verdict(last) is not Verdict.NOISE:
            return ""
        # Between the two is something that was not dumped.
        return f"no more than what {self._flow.names[last]} differs by, which is noise, makes"

    def _carried_noise(self, tensor: Measured, metrics: Metrics, limit: float, reads: Sequence[int]) -> str:
        """Return which noise that an operator read makes a difference; "" if none, or if it is larger."""
        noisy = [number for number in reads if self._is_noise(number)]
        carried = max((self._carried(metrics, self._tensors[number]) for number in noisy), default=0.0)
        has_noisy_bias = self._flow.keys[tensor.number].op_name in self._known.noisy
        if has_noisy_bias and self._is_offset(tensor, limit):
            return "all its rows differ by one, as a bias whose gradient is rounding alone makes them"
        if not noisy or self._differences[tensor.number] > limit + GROWTH * carried:
            return ""
        return f"no more than what {self._flow.names[noisy[0]]} differs by, which is noise, makes"

    def _is_offset(self, tensor: Measured, limit: float) -> bool:
        """Return whether nothing but one row that is added to all explains how a tensor differs."""
        pair = self._elements(tensor.number) if tensor.shape and tensor.size <= _MOST_ELEMENTS else None
        if pair is None or pair[0].shape != pair[1].shape or self._flow.has_parameters:
            return False
        a, b = (np.asarray(side, np.float64).reshape(-1, tensor.shape[-1]) for side in pair)
        rest = (a - b) - (a - b).mean(axis=0)
        return len(a) > 1 and bool(np.linalg.norm(rest) <= limit * np.linalg.norm(b))

    def _is_noise(self, number: int) -> bool:
        """Return whether a tensor differs by noise; some dumps have parameters behind what reads them."""
        tensor = self._tensors[number]
        is_later = number not in self._judgements and self._flow.parts[number] is StepPart.PARAMETER
        return self._verdict(number) is Verdict.NOISE or (is_later and bool(self._noise(tensor, 0.0, None)))

    def _carried(self, metrics: Metrics, read: Measured) -> float:
        """Return the relative difference that what an operator read makes in what it returned."""
        if len(read.shape) != 1 or read.metrics is None or not size_of(metrics):
            return read.difference
        # A bias, or the weight of a norm: what it differs by is added to each row.
        return read.metrics.rmse / size_of(metrics)

    def _uncertain_update(self, tensor: Measured, name: str) -> str:
        """Return why a parameter may have moved apart; "" if its gradient in the step before forbids it.

        An optimizer moves an element by at most about `largest`, the largest step of any, times the relative
        uncertainty of its gradients so far.
        """
        before, gradient = self._known.before, gradient_name(name)
        self._parameters_read += 1
        if self._known.found or tensor.size > _MOST_ELEMENTS or self._parameters_read > _MOST_PARAMETERS:
            return ""
        if before is None or before.verdict(name) in _UNTOLD:
            return ""
        if before.verdict(gradient) in _UNTOLD:
            has_gradients = bool(before.flow.parameter_gradients)
            return "" if has_gradients else self._few_moved(tensor, before.read(name))
        pairs = [self._elements(tensor.number), before.read(name), before.read(gradient)]
        flat = [real_numbers(values) for pair in pairs if pair for values in pair]
        smallest = min((values.size for values in flat), default=0)
        flat = [values[:smallest] if repeats(values, smallest) else values for values in flat]
        sizes = [values.size for values in flat]
        if (
            len(flat) != 2 * len(pairs)
            or len({*sizes[:4]}) != 1
            or sizes[4] != sizes[5]
            or sizes[4] % sizes[0]
        ):
            return ""
        a, b, a_before, b_before, of_a, of_b = flat
        apart, largest, rounded = _moved_apart(tensor.dtypes, a, b, a_before, b_before)
        # Of gradients that ranks hold each its own of, any that is certain counts.
        uncertain = _uncertainty(of_a, of_b, before, gradient).reshape(-1, a.size).min(axis=0)
        uncertain = np.maximum(uncertain, self._known.uncertain.get(name, 0.0))
        with np.errstate(all="ignore"):
            allowed = largest * np.maximum(uncertain, self._at_start) + np.abs(a_before - b_before) + rounded
            if not bool(np.all(apart <= _MOVES * allowed)):
                return ""
        self._known.uncertain[name] = uncertain.astype(np.float32)
        return f"moved by no more than {gradient} allows, which is uncertain there"

    def _few_moved(self, tensor: Measured, last: tuple[npt.NDArray[Any], npt.NDArray[Any]] | None) -> str:
        """Return why few elements of a parameter may have moved apart whose gradients were not dumped.

        An update that divides gradients by their size moves an element by rounding as far as any other.
        """
        pairs = [self._elements(tensor.number), last]
        flat = [real_numbers(values) for pair in pairs if pair for values in pair]
        if len(flat) != 2 * len(pairs) or len({values.size for values in flat}) != 1:
            return ""
        apart, largest, rounded = _moved_apart(tensor.dtypes, *flat)
        is_far = apart.max(initial=0.0) > largest
        if is_far or np.count_nonzero(apart > rounded) * MANY > apart.size:
            return ""
        return "few of its elements moved apart, by less than an update: their gradients may be rounding"


def _uncertainty(a: _Row, b: _Row, before: StepBefore, gradient: str) -> _Row:
    """Return by element how uncertain the gradient of a step is, relative to its size: 2 if its sign is.

    A factor of all elements, such as the number of ranks, leaves nothing open: the update shows whether it is
    undone.
    """
    factor = float(a @ b / max(float(b @ b), 1e-300))
    is_parallel = factor > 0 and np.linalg.norm(a - factor * b) <= PARALLEL * np.linalg.norm(a)
    a = a / (factor if is_parallel else before.scale)
    with np.errstate(all="ignore"):
        uncertain = np.minimum(np.abs(a - b) / np.abs(b), 2.0)
    uncertain[a == b] = 0.0
    uncertain[(np.abs(b) <= GROWTH * before.rounding) & (b != 0)] = 2.0
    if before.verdict(gradient) is Verdict.NOISE:
        uncertain[:] = 2.0  # it is zero in exact arithmetic
    return uncertain


def _moved_apart(
    dtypes: tuple[str, str], a: _Row, b: _Row, a_before: _Row, b_before: _Row
) -> tuple[_Row, float, _Row]:
    """Return how far an update has moved elements of two parameters apart.

    Returns:
        By element; the largest change of any of both; and what rounding makes of each.
    """
    with np.errstate(all="ignore"):
        apart = np.abs((a - b) - (a_before - b_before))
        largest = max(np.abs(a - a_before).max(initial=0.0), np.abs(b - b_before).max(initial=0.0))
        return apart, float(largest), rounding(dtypes, 1) * np.maximum(np.abs(a), np.abs(b))


def _likely_sum(parameter: Measured, known: Sequence[Measured]) -> float:
    """Return the size that the gradient of a parameter has if addends have any signs; NaN if not known.

    It is a sum over samples and places of what its module returned, of the gradient of that, times an input
    for a matrix. The sum of n addends of any signs has about the size of one times the square root of n.

    Args:
        parameter: the gradient of the parameter.
        known: the gradient of what its module returned, and what that read.
    """
    gradient, *inputs = known
    is_matrix = len(parameter.shape) > 1
    if (
        not parameter.shape
        or gradient.size % parameter.shape[0]
        or len(inputs) not in ({1} if is_matrix else {0, 1})
    ):
        return math.nan
    if any("int" in each.dtypes[0] for each in inputs):
        return math.nan  # rows of an embedding are chosen, and not multiplied
    addends = gradient.size // parameter.shape[0]
    return math.sqrt(addends) * gradient.rms * (inputs[0].rms if is_matrix else 1.0)


def _has_one_type(tensor: Measured) -> bool:
    return tensor.dtypes[0] == tensor.dtypes[1]
