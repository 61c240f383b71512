"""What a tensor is in training: a loss, a gradient, a weight, a state of the optimizer, or an activation.

A role is derived from the index and not stored in it: old stores have roles, too, and a better definition
needs no conversion. It follows from names, the definitions of operators, and the order of execution:

- a weight or a state of the optimizer is what the dump calls a parameter, and what an optimizer reads in that
  place (`ApplyMomentum.input.0` is the weight, `.3` its gradient);
- a gradient is what a backward operator writes;
- the loss is, in each graph, the last single number that a loss function writes, or else the last that the
  network writes;
- an activation is everything else that the network writes.

Names without a scope (`MatMul.MatMul-op47`, from MindSpore before 2.3) do not say whether an operator runs
forward or backward. What follows the loss then counts as backward.

An input of an operator has no separate role, because it is the output of another operator. Optimizers and
the backward calls of msProbe are exceptions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from workers.store.tables import Tables


class Role(StrEnum):
    """What a tensor is in training."""

    LOSS = "loss"
    GRADIENT = "gradient"
    WEIGHT = "weight"
    """A parameter of the network."""
    OPTIMIZER_STATE = "optimizer_state"
    """Moments, learning rate, counters of steps."""
    ACTIVATION = "activation"
    """What the network writes on its way forward."""


ROLES = tuple(role.value for role in Role)


class Hint(IntEnum):
    """What the name of a tensor says about its role."""

    NONE = 0
    GRADIENT = 1
    WEIGHT = 2
    OPTIMIZER_STATE = 3
    ACTIVATION = 4
    """The loss, if it is the last single number of its graph and no loss function wrote one."""
    OF_LOSS = 5
    """Written by a loss function."""
    UNSCOPED = 6
    """Written forward or backward; the order of execution tells which."""
    UNSCOPED_LOSS = 7
    """Written by a loss function, or by its gradient."""


#: By hint, the role of a tensor that the order of execution does not decide.
_ROLE_OF_HINT = np.array(
    [
        "",
        *(role.value for role in (Role.GRADIENT, Role.WEIGHT, Role.OPTIMIZER_STATE)),
        *[Role.ACTIVATION.value] * 4,
    ],
    object,
)

_SEPARATORS = re.compile(r"[^a-z0-9]+")
_BACKWARD_NAME = re.compile(r"(?i)(?:^|[_/.])gradients?(?:[_/.]|$)|backward")
_BACKWARD_TYPE = re.compile(r"(?<!Stop)Grad(?!ientArgs|uate|ientDescent)|Backprop|[Bb]ackward")
_LOSS_TYPE = re.compile(
    r"crossentropy|nllloss|mseloss|l1loss|smoothl1|bceloss|ctcloss|kldiv|loss(?:v\d+|forward)?$"
)
#: A cell that computes a loss, or is called one; `WithLossCell` wraps the whole network.
_LOSS_SCOPE = re.compile(
    r"(?i)(?:^|[_/.-])(?:loss(?:_fn)?|criterion)-|-(?!With)\w*?Loss(?!Cell|Scal)\w*?[_/.]"
)
_OPTIMIZER_SCOPE = re.compile(
    r"-\w*?(?:Adam|Momentum|SGD|RMSProp|Adagrad|Adadelta|Adafactor|AdaMax|Lamb|LARS|FTRL|Rprop|ASGD|Lion|Optimizer)"
)
#: No cell is part of it: cells are written as `name-Class`.
_UNSCOPED_NAME = re.compile(r"[^/-]*-op\d+")
#: A backward call of msProbe, whose inputs are the gradients of the outputs of the forward call.
_BACKWARD_CALL = re.compile(r"\.backward(?:\.\d+)?$")
#: Parameters that belong to an optimizer, by the names that MindSpore and PyTorch give them.
_STATE_NAME = re.compile(
    r"(?i)(?:moments?\d?|accum(?:ulation)?|adam_[mvw]|exp_avg(?:_sq)?|mean_square|mean_gradient|stat|velocity"
    r"|learning_rate|lr|momentum|global_step|beta[12]_power|scale_sense|loss_scale|weight_decay"
    r"|current_iterator_step|last_overflow_iterator_step)(?:[._]|$)"
)
#: The way to a state in a checkpoint leads through its optimizer: `optimizer.state.0.exp_avg`.
_IN_OPTIMIZER = re.compile(r"(?i)(?:.*\.)?\w*optim\w*\..+", re.DOTALL)
#: Inputs of the network, which MindSpore dumps as parameters.
_NETWORK_INPUT = re.compile(r"inputs?_?\d*|x|y|data|label|args?_?\d+")
#: Which input of an optimizer is its gradient, by the definitions of operators in `mindspore.ops`; input 0 is
#: the weight, all others are states. The first one that fits counts.
_GRADIENT_SLOTS = tuple(
    (re.compile(pattern), slot)
    for pattern, slot in (
        (r"fusedweightscaleapplymomentum", 5),
        (r"fused(?:weight|scale)applymomentum|fusedscaleapplymomentum", 4),
        (r"momentum", 3),
        (r"^(?:apply)?sgd", 1),
        (r"centeredrmsprop", 4),
        (r"rmsprop", 4),
        (r"adamwithamsgradv2", 10),
        (r"adamwithamsgrad", 7),
        (r"adamweightdecay", 8),
        (r"adamax", 8),
        (r"^(?:apply|fused)*adam$", 9),
        (r"adagradda", 3),
        (r"proximaladagrad", 5),
        (r"adagrad", 3),
        (r"adadelta", 6),
        (r"ftrl", 3),
        (r"addsign|powersign", 6),
        (r"proximalgradientdescent", 4),
        (r"gradientdescent", 2),
        (r"^lars", 1),
    )
)
_OPTIMIZER_TYPE = re.compile(
    r"apply(?!rotary)|^adam|^sgd|^momentum|adagrad|adadelta|rmsprop|ftrl|^lars|fused\w*momentum|^fusedadam|^lamb(?!da)"
)
#: Number of tensors whose hints are kept: enough for some large steps.
_KEPT = 1 << 17


@lru_cache(maxsize=_KEPT)
def hint_of(op_type: str, op_name: str, io: str, slot: int) -> Hint:
    """Return the role that the name of a tensor suggests."""
    if io.startswith("parameters_grad"):
        return Hint.GRADIENT
    if io.startswith("parameters."):
        return Hint.WEIGHT
    if op_type == "Parameter":
        return _hint_of_parameter(op_name)
    plain = _SEPARATORS.sub("", op_type.lower())
    if _OPTIMIZER_TYPE.search(plain):
        return _hint_of_operand(plain, slot) if io.startswith("input") else Hint.NONE
    if _BACKWARD_CALL.search(op_name):
        return Hint.GRADIENT
    return _hint_of_output(op_type, plain, op_name) if io.startswith("output") else Hint.NONE


def _hint_of_output(op_type: str, plain: str, op_name: str) -> Hint:
    if _BACKWARD_NAME.search(op_name) or _BACKWARD_TYPE.search(op_type):
        return Hint.GRADIENT
    if _OPTIMIZER_SCOPE.search(op_name):
        return Hint.NONE
    is_unscoped = _UNSCOPED_NAME.fullmatch(op_name) is not None
    if _LOSS_TYPE.search(plain) or _LOSS_SCOPE.search(op_name):
        return Hint.UNSCOPED_LOSS if is_unscoped else Hint.OF_LOSS
    return Hint.UNSCOPED if is_unscoped else Hint.ACTIVATION


def _hint_of_parameter(name: str) -> Hint:
    if _NETWORK_INPUT.fullmatch(name):
        return Hint.NONE
    is_state = _STATE_NAME.match(name) or _IN_OPTIMIZER.fullmatch(name)
    return Hint.OPTIMIZER_STATE if is_state else Hint.WEIGHT


def _hint_of_operand(plain_type: str, slot: int) -> Hint:
    """Return the role of a tensor in a slot of an optimizer; not every type tells which is its gradient."""
    if slot == 0:
        return Hint.WEIGHT
    gradient = next((place for pattern, place in _GRADIENT_SLOTS if pattern.search(plain_type)), None)
    if gradient is None:
        return Hint.NONE
    return Hint.GRADIENT if slot == gradient else Hint.OPTIMIZER_STATE


def hints_of(names: Iterable[tuple[str, str, str, int]]) -> npt.NDArray[np.int8]:
    """Return the hints of tensors, (tensor,), from operator type, operator name, io and slot."""
    return np.fromiter((hint_of(*name) for name in names), np.int8)


def roles_of(
    hints: npt.NDArray[np.int8], counts: npt.NDArray[np.float64], graphs: Sequence[Any]
) -> npt.NDArray[Any]:
    """Return the role of each tensor of one step of one rank, (tensor,) of str; "" for none.

    Args:
        hints: (tensor,), in order of execution.
        counts: (tensor,), numbers of elements; NaN if unknown.
        graphs: (tensor,), to which graph of which network each belongs.
    """
    roles: npt.NDArray[Any] = _ROLE_OF_HINT[hints].copy()
    if not hints.size:
        return roles
    is_single, is_trained = counts == 1, bool((hints == Hint.GRADIENT).any())
    _, graph_of = np.unique(np.array([str(graph) for graph in graphs], object), return_inverse=True)
    for graph in range(int(graph_of.max()) + 1):
        places = np.flatnonzero(graph_of == graph)
        roles[places] = _roles_in_graph(roles[places], hints[places], is_single[places], is_trained)
    return roles


def _roles_in_graph(
    roles: npt.NDArray[Any],
    hints: npt.NDArray[np.int8],
    is_single: npt.NDArray[np.bool_],
    is_trained: bool,  # noqa: FBT001  (private, and used once)
) -> npt.NDArray[Any]:
    """Return the roles in one graph, after the loss has been found: roles of unscoped names depend on it."""
    unscoped = np.isin(hints, (Hint.UNSCOPED, Hint.UNSCOPED_LOSS))
    backward = np.flatnonzero(hints == Hint.GRADIENT)
    first_backward = int(backward[0]) if backward.size else hints.size
    loss = _place_of_loss(hints, is_single, first_backward, is_trained)
    if loss is not None:
        roles[loss] = Role.LOSS.value
    begin = first_backward if loss is None else loss
    roles[unscoped & (np.arange(hints.size) > begin)] = Role.GRADIENT.value
    return roles


def _place_of_loss(
    hints: npt.NDArray[np.int8],
    is_single: npt.NDArray[np.bool_],
    first_backward: int,
    is_trained: bool,  # noqa: FBT001  (private, and used once)
) -> int | None:
    """Return the place of the loss; None if the graph has none.

    A graph runs forward up to its loss. So what comes before the first gradient is preferred: single numbers
    after it, such as the norm of all gradients, are not the loss. A step without any gradient trains nothing:
    there, only what a loss function writes counts.
    """
    before = np.arange(hints.size) < first_backward
    fallback = [(Hint.ACTIVATION,), (Hint.UNSCOPED,)] if is_trained else []
    for wanted in ((Hint.OF_LOSS, Hint.UNSCOPED_LOSS), *fallback):
        for among in (before, ~before):
            places = np.flatnonzero(np.isin(hints, wanted) & is_single & among)
            if places.size:
                return int(places[-1])
    return None


def roles_of_tables(tables: Tables, is_tensor: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    """Return the role of each row of a step, (row,) of str; "" if it has none, or is not a tensor."""
    rows = np.flatnonzero(is_tensor)
    labels = (tables.label(name)[rows].tolist() for name in ("op_type", "op_name", "io"))
    hints = hints_of(zip(*labels, tables.number("slot")[rows].tolist(), strict=True))
    counts = tables.statistic("count")[rows]
    graphs = list(zip(tables.label("net")[rows].tolist(), tables.label("graph")[rows].tolist(), strict=True))
    roles = np.full(len(is_tensor), "", object)
    roles[rows] = roles_of(hints, counts, graphs)
    return roles
