"""Kinds of inputs, outputs and operators, by the names that dump systems give them.

Names are spelt as in MindSpore (`AllReduce`), CANN (`HcomAllReduce`), PyTorch (`all_reduce`,
`Distributed.all_reduce`, `c10d_functional.all_reduce.default`) and others. So they are compared in lower case
and without separators of words. Which tensors are parameters and gradients, types tell, or else names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, auto
from functools import lru_cache
from itertools import takewhile

from workers.store.consolidated.blocks import TensorKey

_SEPARATORS = re.compile(r"[^a-z0-9]+")
_PREFIX = r"(?:hcom|hccl|nccl|inner|lccl|mccl|dist|distributed|c10d|functional|comm|aclnn|matmul|mm)"
#: Prefixes that msProbe and TorchAir add to the type of an operator.
_API = re.compile(r"(?i)^(?:Tensor|Torch|Functional|Primitive|Mint(?:Functional)?|NPU|Aten|VF|Module|Cell)\.")
_IN_NO_MODULE = re.compile(r"(?:Tensor|Torch|Functional)\.(\w+)\.\1\.\d+")
_COLLECTIVE = re.compile(
    rf"(?:mint)?{_PREFIX}*(?:allreduce|allgather|reducescatter|alltoall|neighborexchange|collective(?:gather|scatter|reduce|broadcast)"
    r"|psend|precv|batchisendirecv|barrier|allconcat).*"
    rf"|(?:mint)?{_PREFIX}*(?:broadcast|send|receive|recv|isend|irecv)(?:tensor|v2|default|\d+)?"
    r"|(?:mint)?(?:hcom|hccl|nccl|dist|distributed|c10d)+(?:functional)?(?:gather|scatter|reduce).*"
)
_SAME_OUTPUT = re.compile(r"allreduce|broadcast|allgather(?!matmul|mm)|allconcat")
_SYNCHRONISES = re.compile(r"allreduce|allgather|reducescatter|alltoall|allconcat|barrier")
_POINT_TO_POINT = re.compile(r"send|recv|receive")
_RECEIVES = re.compile(r"recv|receive|broadcast|allgather|alltoall|scatter|exchange")
_OPTIMIZER = re.compile(
    r"apply(?!rotary)|momentum|^adam|adamw?$|adagrad|adadelta|adafactor|adamax|lamb(?!da)|^lars|rmsprop|ftrl|^sgd|optim"
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
_SOFTMAX = re.compile(r"softmax|attention|logsumexp|masked")
_MAKES_MASKS = re.compile(r"mask|select|where|fill|triu|tril|full|scatter|constant")
_CHECKS = re.compile(
    r"isfinite|allfinite|floatstatus|isinf|isnan|checkvalid|checkoverflow|foundinf|nonfinite"
)
_PYTORCH_INPLACE = re.compile(r"[a-z0-9]_$")
_CONTAINER = re.compile(r"(?:Module|Cell)\.")
_HAS_OPERANDS = re.compile(
    r"matmul|^add$|^sub$|^mul$|realdiv|^div$|biasadd|conv\d?d|dense|linear|layernorm|batchnorm|gather$"
)


@lru_cache(maxsize=4096)  # asked several times for every tensor
def is_input(io: str) -> bool:
    """Return whether a call reads tensors of a label: `input`, `input.1`, `kwargs`, `parameters.weight`."""
    return io.startswith(("input", "kwargs", "parameters."))


def is_output(io: str) -> bool:
    """Return whether a call writes tensors of a label: `output`, `output.0`, `parameters_grad.weight`."""
    return io.startswith(("output", "parameters_grad"))


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


def receives_as_is(op_type: str) -> bool:
    """Return whether the output of a collective contains the input of another rank, bit for bit."""
    return _RECEIVES.search(_plain(op_type)) is not None


def gives_all_the_same(op_type: str) -> bool:
    """Return whether a collective has the same output on all ranks of its group, bit for bit."""
    return _SAME_OUTPUT.search(_plain(op_type)) is not None


def synchronises(op_type: str) -> bool:
    """Return whether a collective ends on any rank of its group only after all of them have begun it."""
    return _SYNCHRONISES.search(_plain(op_type)) is not None


def is_point_to_point(op_type: str) -> bool:
    """Return whether it sends to or receives from single ranks: one name on two ranks is not one transfer."""
    return _POINT_TO_POINT.search(_plain(op_type)) is not None


def is_optimizer(op_type: str) -> bool:
    """Return whether an operator updates parameters in place: its inputs may be dumped after the update."""
    return _OPTIMIZER.search(_plain(op_type)) is not None


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


def is_softmax(op_type: str) -> bool:
    """Return whether -Inf in the input of an operator is a mask, which it turns into zeros."""
    return _SOFTMAX.search(_plain(op_type)) is not None


def makes_masks(op_type: str) -> bool:
    """Return whether masks are made with an operator."""
    return _MAKES_MASKS.search(_plain(op_type)) is not None


def checks_finite(op_type: str) -> bool:
    """Return whether an operator looks for NaN and Inf, as loss scaling does."""
    return _CHECKS.search(_plain(op_type)) is not None


def is_container(op_type: str) -> bool:
    """Return whether this is a module, which msProbe dumps in addition to the operators in it."""
    return _CONTAINER.match(op_type) is not None


def holders(name: str) -> Iterator[str]:
    """Yield the paths of the modules that hold a module or function, the outermost first."""
    parts = name.split(".")
    return (".".join(parts[:length]) for length in range(1, len(parts)))


def needs_two_inputs(op_type: str) -> bool:
    """Return whether an operator must have read more than one tensor."""
    return _HAS_OPERANDS.search(_plain(op_type)) is not None and "grad" not in _plain(op_type)


@lru_cache(maxsize=4096)
def _plain(name: str) -> str:
    return _SEPARATORS.sub("", _API.sub("", name).lower())


_GRADIENT = re.compile(
    r"(?:^|[._/])grad(?:ient)?s?(?:[./]|__)|^(?!(?:module|functional|tensor|torch)\.).*(?<![a-z])grad"
)
_PARAMETER = re.compile(r"param|weight|bias")
#: Calls have the names of modules: `bias_net` is none, but `fc.bias` may be one.
_CALL = re.compile(r"(?:Module|Functional|Tensor|Torch)\b")
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


def parts_of(keys: Iterable[TensorKey]) -> list[StepPart]:
    """Return what each tensor of a step is, by the types that dumps give, or else by names."""
    keys = list(keys)
    parameters = {key.op_name for key in keys if is_parameter(key.op_type)}

    def part(key: TensorKey) -> StepPart:
        name = key.name.lower()
        is_gradient = bool(_GRADIENT.search(name))
        is_call = _CALL.match(key.op_type) and not is_gradient
        named = _PARAMETER_OF_CALL.search(key.op_name) if is_call else _PARAMETER.search(name)
        is_named = named is not None
        if key.op_type == "Gradient":
            is_named = key.op_name in parameters or (is_named and not key.op_name.endswith(".output"))
        elif is_input(key.io):
            is_named = key.io.startswith("parameters.")
        is_named |= is_parameter(key.op_type)
        if is_gradient and not is_parameter(key.op_type):
            return StepPart.PARAMETER_GRADIENT if is_named else StepPart.GRADIENT
        return StepPart.PARAMETER if is_named else StepPart.ACTIVATION

    return list(map(part, keys))
