"""Which tensors of a step are parameters and gradients: by the types that dumps give, or else by names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum, auto

from ingest.reader.flow.operator_kinds import is_input, is_parameter
from workers.store.consolidated.blocks import TensorKey

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
