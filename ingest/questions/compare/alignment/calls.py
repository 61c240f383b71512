"""What is known of the calls of two programs before they are aligned, and of the values that pass between."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.questions.compare.runner import PairRunner, batched
from ingest.questions.compare.step_tensors import StepTensors
from ingest.reader.context.ir import flatten
from ingest.reader.operator_kinds import is_input, is_output
from workers.arrays.dtypes import from_name
from workers.arrays.statistics import FIELDS
from workers.store.consolidated.blocks import OperatorKey
from workers.tasks.compare import read_contents

_PREFIX = re.compile(r"^(?:aten|prims?|torch|tensor|functional|primitive|mint|module|cell|npu|vf|ops)[._:]+")
_SUFFIX = re.compile(r"[._](?:default|out|tensor|scalar|int|dim_?intlist|self|onednn)$")
_SEPARATORS = re.compile(r"[^a-z0-9]+")
_BACKWARD = re.compile(r"grad(?!uate)|backward|bprop")
_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in {
        "matmul": r"matmul|addmm|bmm|^mm|linear|dense|gemm|einsum|mmfp",
        "conv": r"conv(?!ert)",
        "bias": r"biasadd|addmm|linear|dense",
        "add": r"(?<!bias)add(?!mm|rms|cmul|cdiv)|^sum|reducesum|tensoradd",
        "sub": r"sub",
        "mul": r"(?<!mat)mul(?!ti|n)",
        "div": r"div|rsqrt|reciprocal",
        "relu": r"relu",
        "gelu": r"gelu",
        "silu": r"silu|swish|swiglu",
        "sigmoid": r"sigmoid",
        "tanh": r"tanh",
        "softmax": r"softmax|attention",
        "norm": r"norm",
        "pool": r"pool",
        "mean": r"mean",
        "loss": r"loss|nll|entropy",
        "embedding": r"embedding|gather|indexselect|take",
        "dropout": r"dropout",
        "attention": r"attention|sdpa",
        "parameter": r"^parameter$",
        "reduce": r"allreduce|reducescatter|allgather|alltoall",
        "optimizer": r"adam|momentum|sgd|lamb|lars|rmsprop|adagrad|ftrl",
        "move": r"^t$|transpose|permute|view|reshape|flatten|squeeze|contiguous|clone|copy|detach|alias"
        r"|identity|expand|broadcast|^cast$|^to$|^depend$|^load$|tupleget|getitem|slice|split|concat|^cat$|stack",
    }.items()
)


@lru_cache(maxsize=4096)
def plain_type(op_type: str) -> str:
    """Return a type of operators without what frameworks put around it: `addmm` for `aten.addmm.out`."""
    text, before = op_type.lower(), ""
    while text != before:
        before, text = text, _SUFFIX.sub("", _PREFIX.sub("", text))
    return _SEPARATORS.sub("", text)


@lru_cache(maxsize=4096)
def kinds_of(op_type: str) -> frozenset[str]:
    """Return the kinds of an operator type; its plain name if they are not known.

    >>> sorted(kinds_of("MatMulBiasAddReluFusion"))
    ['bias', 'matmul', 'relu']
    """
    plain = plain_type(op_type)
    known = {kind for kind, pattern in _KINDS if pattern.search(plain)}
    known = known or {plain}
    return frozenset(f"{kind} backward" for kind in known) if _BACKWARD.search(plain) else frozenset(known)


def only_moves(op_type: str) -> bool:
    """Return whether operators of a type pass elements on as they are, in another place or shape."""
    return kinds_of(op_type) == {"move"}


#: The marks of a value: none of them depends on the order of elements, nor on the shape.
MARKS = ("l1_norm", "l2_norm", "min", "max", "mean")
_MEAN = MARKS.index("mean")
#: Relative difference of marks up to which values may be the same, in types of 32 bits and more.
NEARLY = 1e-3
#: The same in narrower types: an element of bfloat16 has 8 bits.
NEARLY_NARROW = 2.0**-7

Numbers: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Value:
    """One tensor that a call reads or writes."""

    size: int
    """The number of elements."""
    content: Hashable = None
    """Equal for equal elements on either side; None if it is not known."""
    marks: tuple[float, ...] = (math.nan,) * len(MARKS)
    """What `MARKS` names; NaN for what is not known."""
    is_weak: bool = False
    """Whether many tensors are equal to it by chance: it is constant, or has one element."""
    is_narrow: bool = False
    """Whether its type has 16 bits at most."""

    @property
    def identity(self) -> Hashable:
        """Equal for tensors of one side that have the same elements; None if nothing is known of them."""
        if self.content is not None:
            return self.content
        known = tuple(None if math.isnan(mark) else mark for mark in self.marks)
        return known if any(mark is not None for mark in known) else None


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """A call of an operator."""

    op_type: str
    inputs: tuple[Value, ...] = ()
    outputs: tuple[Value, ...] = ()
    scope: str = ""
    """Where it is in the network, as far as its name tells."""

    @property
    def kinds(self) -> frozenset[str]:
        """What it does."""
        return kinds_of(self.op_type)

    @property
    def result(self) -> Value | None:
        """What it is known by: its first output; without any, its first input."""
        return next(iter((*self.outputs, *self.inputs)), None)


@dataclass(frozen=True, slots=True)
class ValueClasses:
    """Which values of two programs are the same, or nearly."""

    of_value: dict[int, int]
    """The class by `id` of a value; values of which nothing is known are in none."""
    weak: frozenset[int]
    """Classes of values that are equal by chance."""

    def of(self, value: Value | None) -> int:
        """Return the class of a value; -1 for none."""
        return -1 if value is None else self.of_value.get(id(value), -1)


def classes_of(a: Sequence[OperatorCall], b: Sequence[OperatorCall]) -> ValueClasses:
    """Return the classes of all values of two programs: of equal content, or with nearly equal marks."""
    values = [value for call in (*a, *b) for value in (*call.inputs, *call.outputs)]
    first: dict[Hashable, int] = {}
    distinct: list[Value] = []
    place_of: dict[int, int] = {}
    for value in values:
        identity = value.identity
        if identity is None:
            continue
        place = first.setdefault((value.size, identity), len(distinct))
        if place == len(distinct):
            distinct.append(value)
        place_of[id(value)] = place
    roots = _joined(distinct)
    weak = frozenset(roots[place] for place, value in enumerate(distinct) if value.is_weak)
    return ValueClasses({key: roots[place] for key, place in place_of.items()}, weak)


def _joined(values: Sequence[Value]) -> list[int]:
    """Return for each value the number of its class."""
    roots = list(range(len(values)))

    def root(place: int) -> int:
        while roots[place] != place:
            roots[place] = roots[roots[place]]
            place = roots[place]
        return place

    for first, second in _near_pairs(values):
        roots[root(first)] = root(second)
    return [root(place) for place in range(len(values))]


def _near_pairs(values: Sequence[Value]) -> Iterable[tuple[int, int]]:
    """Yield the pairs of values of one size whose marks are nearly equal."""
    by_size: dict[tuple[int, bool], list[int]] = {}
    for place, value in enumerate(values):
        by_size.setdefault((value.size, value.is_weak), []).append(place)
    for places in by_size.values():
        marks = np.array([values[place].marks for place in places], np.float64)
        narrow = np.array([values[place].is_narrow for place in places])
        scale = np.nanmax(np.abs(np.nan_to_num(marks[:, 1:_MEAN], nan=0.0)), axis=1, initial=0.0)
        for column in (0, 1):  # sorted by one of the norms, near values are near each other
            known = np.flatnonzero(~np.isnan(marks[:, column]))
            order = known[np.argsort(marks[known, column], kind="stable")]
            for rank, place in enumerate(order.tolist()):
                limit = marks[place, column] * (1 + 2 * NEARLY_NARROW) + 1e-300
                stop = int(np.searchsorted(marks[order, column], limit, side="right"))
                others = order[rank + 1 : stop]
                for other in others[_are_near(marks, scale, narrow, place, others)].tolist():
                    yield places[place], places[other]


def _are_near(
    marks: npt.NDArray[np.float64],
    scale: npt.NDArray[np.float64],
    narrow: npt.NDArray[np.bool_],
    place: int,
    others: Numbers,
) -> npt.NDArray[np.bool_]:
    """Return a mask of the other values whose marks are near those of one, as far as both are known."""
    mine, theirs = marks[place], marks[others]
    tolerance = np.where(narrow[others] | narrow[place], NEARLY_NARROW, NEARLY)[:, None]
    with np.errstate(invalid="ignore"):
        size = np.maximum(np.abs(mine), np.abs(theirs))
        # Extremes and means may be near zero: what counts is how large elements are.
        size[:, 2:] = np.maximum(size[:, 2:], np.maximum(scale[place], scale[others])[:, None])
        near = (np.abs(mine - theirs) <= tolerance * size) | (mine == theirs)
    return np.asarray((near | np.isnan(mine) | np.isnan(theirs)).all(axis=1))


def sources_of(calls: Sequence[OperatorCall]) -> list[tuple[int, ...]]:
    """Return for each call the calls that wrote what it reads: the latest ones before it, or parameters.

    Calls that only pass elements on wrote nothing.
    """
    written: dict[Hashable, int] = {}
    for number, call in enumerate(calls):
        if call.op_type == "Parameter":
            for value in call.outputs:
                if value.identity is not None:
                    written.setdefault((value.size, value.identity), number)
    sources: list[tuple[int, ...]] = []
    for number, call in enumerate(calls):
        writers = dict.fromkeys(
            written[key]
            for value in call.inputs
            if (key := (value.size, value.identity)) in written and value.identity is not None
        )
        sources.append(tuple(source for source in writers if source != number))
        if call.op_type != "Parameter":
            for value in call.outputs:
                key = value.size, value.identity
                if value.identity is not None and not (only_moves(call.op_type) and key in written):
                    written[key] = number
    return sources


_L1 = "l1:"
_NUMBER = re.compile(r"-op\d+$")
#: MindSpore 2.0 writes `gradMatMul-expand` and `gradMaxPool-meta` for what later versions call `Grad_MatMul`.
_GRADIENT = re.compile(r"(?:^|(?<=[/_]))grad([A-Z]\w*?)(?:-(?:expand|meta))?(?=/)")
_COLUMNS = tuple(FIELDS.index(name) if name in FIELDS else None for name in MARKS)
_NARROW_NBYTES = 2


def with_contents(side: StepTensors, numbers: Iterable[int], runner: PairRunner) -> StepTensors:
    """Return a step with the digests and statistics of these tensors, which are read if they are not known.

    Raises:
        StoreError: a store cannot be reached.
        DumpError: a file of a dump changed, or cannot be read.
    """
    unknown = [number for number in numbers if side.dumped[number] and not side.digests[number].any()]
    if not unknown:
        return side
    digests, statistics = side.digests.copy(), side.statistics.copy()
    batches = batched([side.operand(number) for number in unknown], runner.parts)
    answers = chain.from_iterable(runner.map(read_contents, batches))
    for number, answer in zip(unknown, answers, strict=True):
        if answer.digest:
            digests[number] = np.frombuffer(answer.digest, np.uint8)
        if answer.statistics:
            statistics[number] = answer.statistics
    return replace(side, digests=digests, statistics=statistics)


def calls_of(side: StepTensors) -> tuple[list[OperatorKey], list[OperatorCall], list[Value]]:
    """Return the operators of a step in order of execution, each as a call; and the value of each tensor.

    Raises:
        StoreError: the store cannot be read.
    """
    values = [_value(side, number) for number in range(len(side.keys))]
    firsts: dict[OperatorKey, int] = {}
    inputs: dict[OperatorKey, list[Value]] = {}
    outputs: dict[OperatorKey, list[Value]] = {}
    for number, key in enumerate(side.keys):
        firsts.setdefault(key.operator, number)
        inputs.setdefault(key.operator, [])
        outputs.setdefault(key.operator, [])
        if is_output(key.io):
            outputs[key.operator].append(values[number])
        elif is_input(key.io):
            inputs[key.operator].append(values[number])
    calls = [
        OperatorCall(
            key[2],
            tuple(inputs[key]),
            tuple(outputs[key]),
            scope_of(side.operands.full_name(first) or key[3], key[2]) or key[3],
        )
        for key, first in firsts.items()
    ]
    return list(inputs), calls, values


def scope_of(name: str, op_type: str) -> str:
    """Return the cells that an operator is in, from its name; "" for none, as in `MatMul-op47`.

    Two versions of a framework may name one operator `MatMul-op104` and
    `Gradients_Default_network-Net_fc-Dense_Grad_MatMul_MatMul-op0`. The graph files of a dump have the whole
    name, in which the scope is spelt alike.
    """
    plain = flatten(_GRADIENT.sub(r"Grad_\1", _NUMBER.sub("", name)))
    scope = plain.removesuffix(op_type).rstrip("_")
    return scope if scope != plain else ""


def _told_hash(side: StepTensors, number: int) -> str | None:
    """Return the hash that the dump has instead of a tensor; None if it has none."""
    tensor = side.operands.attributes(number).get("tensor")
    told = tensor.get("hash") if isinstance(tensor, dict) else None
    return told if isinstance(told, str) else None


def _value(side: StepTensors, number: int) -> Value:
    statistics = side.statistics[number]
    marks = [math.nan if column is None else float(statistics[column]) for column in _COLUMNS]
    content: Hashable = None
    if side.digests[number].any():
        content = side.dtypes[number], side.digests[number].tobytes()
    elif not side.dumped[number]:
        told = _told_hash(side, number)
        if told is not None and told.startswith(_L1):
            marks[0] = float(told.removeprefix(_L1))
        else:
            content = told
    size = math.prod(side.shapes[number])
    low, high = marks[2], marks[3]
    is_weak = size <= 1 or low == high or 0.0 in marks[:2]
    return Value(size, content, tuple(marks), is_weak, _is_narrow(side.dtypes[number]))


def _is_narrow(dtype: str) -> bool:
    try:
        return from_name(dtype).itemsize <= _NARROW_NBYTES
    except ValueError:
        return False
