"""Calls of operators in the index of a step, and the kinds of inputs, outputs and operators.

Names are spelt as in MindSpore (`AllReduce`), CANN (`HcomAllReduce`), PyTorch (`all_reduce`,
`Distributed.all_reduce`, `c10d_functional.all_reduce.default`) and others. So they are compared in lower case
and without separators of words. Which tensors are parameters and gradients, types tell, or else names.

Tensors of equal content are treated as one tensor that passed from its writer to its readers.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum, auto
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from workers.arrays.statistics import FIELDS
from workers.store.consolidated.blocks import TENSOR_KINDS, TensorKey
from workers.store.model import RowKind
from workers.store.tables import Tables, record_of

if TYPE_CHECKING:
    from ingest.reader.step import Step

#: The graph of what runs again for the backward pass, as checkpointed modules do.
RECOMPUTED = "recompute"
#: Equal for tensors of equal content: made of the digest, or of the statistics without one.
Content: TypeAlias = tuple[object, ...]


class CallKey(NamedTuple):
    """Identifies a call of an operator on several ranks and in several steps."""

    net: str
    graph: str
    op_type: str
    op_name: str
    occurrence: int


def tensor_rows(tables: Tables) -> npt.NDArray[np.int64]:
    """Return the rows of all tensors, those of which only statistics were dumped included, (row,)."""
    return np.flatnonzero(np.isin(tables.label("kind"), TENSOR_KINDS))


def is_in_order(tables: Tables, rows: npt.NDArray[np.int64]) -> bool:
    """Return whether the dump has the order in which its operators ran."""
    return any(bool((tables.number(name)[rows] >= 0).any()) for name in ("timestamp", "sequence"))


def key_of(tables: Tables, row: int) -> CallKey:
    """Return the call that a tensor belongs to."""
    return keys_of(tables, np.array([row]))[0]


def keys_of(tables: Tables, rows: npt.NDArray[np.int64]) -> list[CallKey]:
    """Return the calls that tensors belong to, (row,)."""
    # The same few names occur in every step of every rank.
    labels = (map(sys.intern, _texts(tables, name, rows)) for name in ("net", "graph", "op_type", "op_name"))
    return list(map(CallKey, *labels, tables.number("occurrence")[rows].tolist()))


def told_hash(tables: Tables, row: int) -> str:
    """Return the hash that a log tells of a tensor, with its kind: `l1:1.5`, `xor:77`; "" if it tells none.

    It is not a digest: the sum of absolute values stays the same if elements change places.
    """
    tensor = record_of(tables, row).get("tensor")
    told = tensor.get("hash") if isinstance(tensor, dict) else None
    return told if isinstance(told, str) else ""


def content_of(step: Step, row: int) -> Content:
    """Return the content of a tensor; without a digest and with few statistics, one like no other."""
    return contents_of(step, np.array([row]))[0]


def contents_of(step: Step, rows: npt.NDArray[np.int64]) -> list[Content]:
    """Return the contents of tensors, (row,); see `content_of`."""
    tables = step.tables
    dtypes = list(map(sys.intern, _texts(tables, "dtype", rows)))
    width = tables.digest.shape[1]
    digests = tables.digest[rows].tobytes()
    contents: list[Content] = [
        (dtype, digests[place * width : (place + 1) * width]) for place, dtype in enumerate(dtypes)
    ]
    is_dumped = tables.label("kind")[rows] == RowKind.TENSOR.value
    has_record = (tables.label("record")[rows] != "").tolist()
    for place, known in _known_statistics(tables, rows, np.flatnonzero(~is_dumped)):
        row, dtype = int(rows[place]), dtypes[place]
        told = told_hash(tables, row) if has_record[place] else ""
        if told:
            contents[place] = "hash", str(tables.label("net")[row]), told
        else:
            # If little is known, equal statistics prove nothing: this content differs from all others.
            contents[place] = (dtype, step.key, row) if known is None else (dtype.lower(), known)
    return contents


def _known_statistics(
    tables: Tables, rows: npt.NDArray[np.int64], places: npt.NDArray[np.int64]
) -> Iterator[tuple[int, tuple[float | None, ...] | None]]:
    """Yield these places among rows, each with its statistics; None if too few of them are known."""
    statistics = tables.statistics[rows[places]]
    is_known = ~np.isnan(statistics)
    is_enough = is_known[:, FIELDS.index("nan_count") :].sum(axis=1) > 1
    # NaN differs from itself, and None does not.
    values = statistics.astype(object)
    values[~is_known] = None
    for place, of_row, enough in zip(places.tolist(), values.tolist(), is_enough.tolist(), strict=True):
        yield place, tuple(of_row) if enough else None


def _texts(tables: Tables, name: str, rows: npt.NDArray[np.int64]) -> list[str]:
    return list(map(str, tables.label(name)[rows].tolist()))


_SEPARATORS = re.compile(r"[^a-z0-9]+")
_PREFIX = r"(?:hcom|hccl|nccl|inner|lccl|mccl|dist|distributed|c10d|functional|comm|aclnn|matmul|mm)"
#: Prefixes that msProbe and TorchAir add to the type of an operator.
_API = re.compile(
    r"(?i)^(?:Tensor|Torch|Jax|Functional|Primitive|Mint(?:Functional)?|NPU|Aten|VF|Module|Cell)\."
)
_IN_NO_MODULE = re.compile(r"(?:Tensor|Torch|Jax|Functional)\.(\w+)\.\1\.\d+")
_COLLECTIVE = re.compile(
    rf"(?:mint)?{_PREFIX}*(?:allreduce|allgather|reducescatter|alltoall|neighborexchange|collective(?:gather|scatter|reduce|broadcast)"
    r"|psend|precv|batchisendirecv|barrier|allconcat).*"
    rf"|(?:mint)?{_PREFIX}*(?:broadcast|send|receive|recv|isend|irecv)(?:tensor|v2|default|\d+)?"
    r"|(?:mint)?(?:hcom|hccl|nccl|dist|distributed|c10d)+(?:functional)?(?:gather|scatter|reduce).*"
)
#: The inputs into which optimizers write whose gradient is not behind a scalar, by the definitions of their
#: operators in MindSpore (`mindspore.ops`) and CANN.
_OPTIMIZER_SLOTS = {
    r"^(?:apply)?sgd": frozenset({0, 3, 5}),  # parameters, gradient, learning_rate, accum, momentum, stat
    r"centeredrmsprop": frozenset({0, 1, 2, 3}),  # var, mean_gradient, mean_square, moment, grad
    r"ftrl": frozenset({0, 1, 2}),  # var, accum, linear, grad
    r"adagrad": frozenset({0, 1}),  # var, accum, lr, grad; sparse: var, accum, grad
    r"lars": frozenset(),  # returns a gradient
}
_ASSIGN = re.compile(r"^assign|scatterupdate|inplace")
_PYTORCH_INPLACE = re.compile(r"[a-z0-9]_$")
_CONTAINER = re.compile(r"(?:Module|Cell)\.")
_HAS_OPERANDS = re.compile(
    r"matmul|^add$|^r?sub(?:tract)?$|^mul(?:tiply)?$|^r?(?:real|true|floor)?div(?:ide)?$|^r?pow$"
    r"|^(?:remainder|f?mod)$|^(?:lt|le|gt|ge|eq|ne|(?:not)?equal|(?:less|greater)(?:equal)?)$"
    r"|biasadd|conv\d?d|dense|linear|layernorm|batchnorm|gather$"
)
#: How the types of single functions begin, which are numbered in order: one call more moves all numbers.
FUNCTIONS = ("Functional.", "Jax.", "Tensor.", "Torch.")
#: Functions that take numbers, too, which are not dumped: where a part begins, or what is filled in.
_TAKES_NUMBERS = re.compile(
    r"^(?:getitem|narrow|select|slice|roll|where|maskedfill|fill|fulllike|clamp\w*|clip)$"
)


@lru_cache(maxsize=4096)  # asked several times for every tensor
def is_input(io: str) -> bool:
    """Return whether a call reads tensors of a label: `input`, `input.1`, `kwargs`, `parameters.weight`."""
    return io.startswith(("input", "kwargs", "parameters."))


def is_output(io: str) -> bool:
    """Return whether a call writes tensors of a label: `output`, `output.0`, `parameters_grad.weight`."""
    return io.startswith(("output", "parameters_grad"))


def is_awaited(io: str) -> bool:
    """Return whether a tensor was dumped before anybody waited for the collective that writes it.

    PyTorch keeps its memory as `elem` of an `AsyncCollectiveTensor`.
    """
    return io.endswith(".elem")


def is_parameter(op_type: str) -> bool:
    """Return whether this is a parameter or an input of the network: MindSpore dumps it like an operator."""
    return op_type == "Parameter"


@lru_cache(maxsize=4096)
def is_numbered(op_type: str, op_name: str) -> bool:
    """Return whether only its number tells a call from others of its step: a function in no module.

    Ranks that call the function more often, to log something, have other calls by the same name.
    """
    return _IN_NO_MODULE.fullmatch(f"{op_type}.{op_name}") is not None


@lru_cache(maxsize=4096)
def is_collective(op_type: str) -> bool:
    """Return whether an operator passes tensors between ranks."""
    return _COLLECTIVE.fullmatch(_plain(op_type)) is not None


@lru_cache(maxsize=4096)
def _plain(name: str) -> str:
    return _SEPARATORS.sub("", _API.sub("", name).lower())


def _has(pattern: str) -> Callable[[str], bool]:
    search = re.compile(pattern).search
    return lambda op_type: search(_plain(op_type)) is not None


receives_as_is = _has(r"recv|receive|broadcast|allgather|alltoall|scatter|exchange")
"""Whether the output of a collective contains the input of another rank, bit for bit."""
gives_all_the_same = _has(r"allreduce|broadcast|allgather(?!matmul|mm)|allconcat")
"""Whether a collective has the same output on all ranks of its group, bit for bit."""
synchronises = _has(r"allreduce|allgather|reducescatter|alltoall|allconcat|barrier")
"""Whether a collective ends on any rank of its group only after all of them have begun it."""
is_point_to_point = _has(r"send|recv|receive")
"""Whether it sends to or receives from single ranks: one name on two ranks is not one transfer."""
is_optimizer = _has(
    r"apply(?!rotary)|momentum|^adam|adamw?$|adagrad|adadelta|adafactor|adamax|lamb(?!da)|^lars|rmsprop|ftrl|^sgd|optim"
)
"""Whether an operator updates parameters in place: its inputs may be dumped after the update."""


def writes_in_place(op_type: str) -> bool:
    """Return whether an operator may write its output into the memory of its input."""
    plain = _plain(op_type)
    return (
        is_optimizer(op_type)
        or _ASSIGN.search(plain) is not None
        or is_collective(op_type)
        or _PYTORCH_INPLACE.search(op_type) is not None
    )


def slots_written_in_place(op_type: str, shapes: Mapping[int, tuple[int, ...]]) -> frozenset[int]:
    """Return the inputs into which an operator writes.

    An optimizer writes into the parameter and its states. They come first, and have the shape of the
    parameter; the definitions of operators that differ from this are known. A collective may write into all
    of its inputs, and other operators write into their first one.

    Args:
        op_type: the type of the operator.
        shapes: the shapes of its inputs by their numbers.
    """
    plain = _plain(op_type)
    if not shapes or not writes_in_place(op_type):
        return frozenset()
    if is_collective(op_type):
        return frozenset(shapes)
    slots = sorted(shapes)
    if not is_optimizer(op_type):
        return frozenset(slots[:1])
    for pattern, written in _OPTIMIZER_SLOTS.items():
        if re.search(pattern, plain):
            return written & shapes.keys()
    return frozenset(takewhile(lambda slot: shapes[slot] == shapes[slots[0]], slots))


is_softmax = _has(r"softmax|attention|logsumexp|masked")
"""Whether -Inf in the input of an operator is a mask, which it turns into zeros."""
makes_masks = _has(r"mask|select|where|fill|triu|tril|full|scatter|constant")
"""Whether masks are made with an operator."""
checks_finite = _has(
    r"isfinite|allfinite|floatstatus|isinf|isnan|checkvalid|checkoverflow|foundinf|nonfinite"
)
"""Whether an operator looks for NaN and Inf, as loss scaling does."""


def is_container(op_type: str) -> bool:
    """Return whether this is a module, which msProbe dumps in addition to the operators in it."""
    return _CONTAINER.match(op_type) is not None


def holders(name: str) -> Iterator[str]:
    """Yield the paths of the modules that hold a module or function, the outermost first."""
    parts = name.split(".")
    return (".".join(parts[:length]) for length in range(1, len(parts)))


def needs_two_inputs(op_type: str) -> bool:
    """Return whether an operator must have read more than one tensor, or a number, which is not dumped."""
    return _HAS_OPERANDS.search(_plain(op_type)) is not None and "grad" not in _plain(op_type)


def takes_numbers(op_type: str) -> bool:
    """Return whether a call of a function may depend on more than tensors, such as each rank's own part."""
    return op_type.startswith(FUNCTIONS) and _TAKES_NUMBERS.match(_plain(op_type)) is not None


_GRADIENT = re.compile(
    r"(?:^|[._/])grad(?:ient)?s?(?:[./]|__)|^(?!(?:module|functional|tensor|torch)\.).*(?<![a-z])grad"
)
_PARAMETER = re.compile(r"param|weight|bias")
#: Calls have the names of modules: `bias_net` is none, but `fc.bias` may be one, unless the dump tells what
#: it is an instance of, such as `ParametrizationList`.
_CALL = re.compile(r"(?:Module|Functional|Tensor|Torch)\b")
_INSTANCE = re.compile(r"Module\.\w")
_PARAMETER_OF_CALL = re.compile(r"(?:^|[._])(?:param(?:eter)?s?[._]|(?:weight|bias)$)")


class StepPart(Enum):
    """What a tensor is in a step of training."""

    ACTIVATION = auto()
    PARAMETER = auto()
    GRADIENT = auto()
    """That of an activation."""
    PARAMETER_GRADIENT = auto()

    @property
    def is_gradient(self) -> bool:
        """Whether it is a gradient, of whatever."""
        return self in (StepPart.GRADIENT, StepPart.PARAMETER_GRADIENT)

    @property
    def is_of_parameter(self) -> bool:
        """Whether it is a parameter, or the gradient of one."""
        return self in (StepPart.PARAMETER, StepPart.PARAMETER_GRADIENT)


def _name_tells(key: TensorKey, *, is_gradient: bool) -> bool:
    if is_gradient or not _CALL.match(key.op_type):
        return _PARAMETER.search(key.name.lower()) is not None
    return not _INSTANCE.match(key.op_type) and _PARAMETER_OF_CALL.search(key.op_name) is not None


def parts_of(keys: Iterable[TensorKey]) -> list[StepPart]:
    """Return what each tensor of a step is, by the types that dumps give, or else by names."""
    keys = list(keys)
    parameters = {key.op_name for key in keys if is_parameter(key.op_type)}

    def part(key: TensorKey) -> StepPart:
        is_gradient = bool(_GRADIENT.search(key.name.lower()))
        is_named = _name_tells(key, is_gradient=is_gradient)
        if key.op_type == "Gradient":
            is_named = key.op_name in parameters or (is_named and not key.op_name.endswith(".output"))
        elif is_input(key.io):
            is_named = key.io.startswith("parameters.")
        is_named |= is_parameter(key.op_type)
        if is_gradient and not is_parameter(key.op_type):
            return StepPart.PARAMETER_GRADIENT if is_named else StepPart.GRADIENT
        return StepPart.PARAMETER if is_named else StepPart.ACTIVATION

    return list(map(part, keys))
