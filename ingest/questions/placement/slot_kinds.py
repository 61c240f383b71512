"""Which tensors replicas hold in common, judged by the names that frameworks and vendors give.

A name only tells what to expect. Whether replicas do agree on a tensor, and which of them, the dump tells;
see `expectations`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache

from workers.store.consolidated.blocks import TensorKey


class SlotKind(IntEnum):
    """Why replicas should agree on a tensor."""

    OTHER = 0
    """Its name gives no reason: it counts only after it agreed in several steps."""
    PARAMETER = 1
    """A weight, its state in an optimizer, or anything else that the dump calls a parameter: batches, too."""
    OPTIMIZER = 2
    """Read by an optimizer: weights, states, reduced gradients, learning rates."""
    COLLECTIVE = 3
    """The output of a collective that leaves the same on every rank of its group."""
    OPTIMIZER_OUTPUT = 4
    """The output of an optimizer. Many update their inputs in place and leave the output as it was."""


#: How an answer names the kind of a tensor that differs.
WORDS = {
    SlotKind.OTHER: "agreed before",
    SlotKind.PARAMETER: "parameter",
    SlotKind.OPTIMIZER: "optimizer input",
    SlotKind.COLLECTIVE: "collective output",
    SlotKind.OPTIMIZER_OUTPUT: "optimizer output",
}

_LETTERS = re.compile(r"[^a-z0-9]")
_SUFFIX = r"(v|d|s|op|async|sync|inplace|base|object|list|coalesced|intotensor|tensor|out|\d)*$"
_COLLECTIVES = re.compile(rf"(allreduce|allgather){_SUFFIX}")
#: `BroadcastTo` and `BroadcastGradientArgs` are arithmetic on shapes, so the rest of the name counts, too.
_BROADCAST = re.compile(
    r"^(h?ccl|hcom|nccl|rccl|mccl|gloo|mpi|c10d|functional|ascend|npu|gpu|cpu|device|dist|distributed|inner|"
    rf"outer|comm)*broadcast{_SUFFIX}"
)
_BROADCAST_OF_SHAPES = re.compile(r"broadcasttensors")
_OPTIMIZER = re.compile(
    r"^(resource|sparse|fused|foreach|apply|cast|npu|dynamic|multitensor|centered|keras|ema|distributed|scale)*"
    r"(adam\w*|adafactor\w*|adagrad\w*|adadelta\w*|adamax\w*|adasum\w*|addsign|powersign|momentum\w*|nesterov\w*|"
    r"sgd\w*|gradientdescent\w*|rmsprop\w*|ftrl\w*|lamb|lambupdate\w*|lambapply\w*|lambnext\w*|lars\w*|lion|"
    r"muon|proximal\w*|rprop|asgd)$"
)
#: How names of parameters, and of states of optimizers, begin where a dump has no operators.
_STATE_NAME = re.compile(
    r"[._/]*(?:param(?:eter)?s?|(?:max_)?exp_avg\w*|moments?\d?|momentum_buffer|adam_?[mv]\d?)[._/]"
)


def slot_kind_of(key: TensorKey) -> SlotKind:
    """Return why replicas should agree on a tensor, judged by its name."""
    is_parameter = key.op_type == "Parameter" or key.io.startswith("parameters.")
    if is_parameter or (_STATE_NAME.match(key.op_name) and "grad" not in key.op_name):
        return SlotKind.PARAMETER
    return _kind_of_operator(key.op_type, key.io == "output", key.io == "input")


@lru_cache(maxsize=4096)
def _kind_of_operator(op_type: str, is_output: bool, is_input: bool) -> SlotKind:  # noqa: FBT001  (for the cache)
    plain = _LETTERS.sub("", op_type.lower())
    if is_output and (
        _COLLECTIVES.search(plain) or (_BROADCAST.search(plain) and not _BROADCAST_OF_SHAPES.search(plain))
    ):
        return SlotKind.COLLECTIVE
    if _OPTIMIZER.search(plain):
        return SlotKind.OPTIMIZER_OUTPUT if is_output else SlotKind.OPTIMIZER if is_input else SlotKind.OTHER
    return SlotKind.OTHER


def outputs_with_gradients(keys: Sequence[TensorKey]) -> list[tuple[int, int]]:
    """Return outputs of modules, and the gradients of these, by their places."""
    gradients = {key.op_name: place for place, key in enumerate(keys) if key.op_type == "Gradient"}
    outputs = (
        (place, gradients.get(f"{key.op_name}.output", -1))
        for place, key in enumerate(keys)
        if key.op_type.startswith("Module") and (key.io, key.slot, key.occurrence) == ("output", 0, 0)
    )
    return [(output, gradient) for output, gradient in outputs if gradient >= 0]


def is_bias(key: TensorKey) -> bool:
    """Return whether a tensor is a bias, by its name."""
    name = f"{key.op_type}.{key.op_name}".lower()
    return "bias" in name and "grad" not in name
