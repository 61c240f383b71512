"""What the calls of a step read and wrote: with parameters, put together of the shards of all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Self

import numpy as np

from ingest.identities.activations import GRADIENT, passed_back
from ingest.identities.backward import KINDS, added, parameter_gradients
from ingest.identities.definition import Array, CallOperands, Expectation, wide
from ingest.identities.limits import unit_roundoff
from ingest.identities.operators import DEFINITIONS, plain_name
from ingest.identities.shards import ShardCut, ShardPlace, gathered_for, narrowed, shard_place
from ingest.reader.operator_kinds import CallKey, is_container
from ingest.reader.step import Step
from ingest.reader.step_flow import FlowCall, FlowOperand, flow_of
from ingest.reader.tensor import Tensor
from workers.arrays.comparison import is_real
from workers.arrays.dtypes import from_name

#: Names of the parameters that a module of PyTorch computes with, in the order of its function.
PARAMETERS = ("weight", "bias")
#: Elements of gradients of a rank that are kept for the other ranks: 16 bytes for each.
_LOCAL = 1 << 20
#: Bytes of tensors of a step that are kept after they were read.
_HELD = 1 << 25


class StepOperands:
    """Those of one step of one rank."""

    _peers: Mapping[int, Self]
    """The same step of all ranks, itself among them."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._flow = flow_of(step)
        calls = self._flow.calls.items()
        self._parameters, self._gradients = (
            {key.op_name: call.outputs[0] for key, call in calls if key.op_type == kind and call.outputs}
            for kind in ("Parameter", GRADIENT)
        )
        self._peers = {}
        self._cuts: dict[str, ShardCut] = {}
        self._arrays: dict[object, Array] = {}
        self._held = 0
        self._local: dict[tuple[str, tuple[int, ...], str], list[Expectation]] = {}
        self._left = _LOCAL

    def parameter_content(self, name: str) -> object:
        """Return what is equal for equal values of a parameter; None if it was not dumped."""
        known = self._parameters.get(name)
        return known and known.content

    def gradient_content(self, name: str) -> object:
        """Return what is equal for equal gradients of a parameter; None if it was not dumped."""
        known = self._gradients.get(name)
        return known and known.content

    def gradient_of(self, name: str) -> Array | None:
        """Return the gradient of a parameter in float64; None if it cannot be read."""
        known = self._gradients.get(name)
        return wide(self._read(known)) if known is not None and self._is_readable(known) else None

    def operand_of(self, key: CallKey) -> FlowOperand | None:
        """Return the first output of a call."""
        call = self._flow.calls.get(key)
        return call.outputs[0] if call and call.outputs else None

    def inputs_of(self, key: CallKey) -> list[Array]:
        """Return the inputs of a call, in order; none if one of them cannot be read."""
        call = self._flow.calls.get(key)
        given = sorted(call.inputs, key=lambda each: each.slot) if call else []
        return [self._read(each) for each in given] if all(map(self._is_readable, given)) else []

    def _kind(self, call: FlowCall) -> str:
        """Return the name of what a call computes: of a module of another name, what its weight suggests."""
        name = plain_name(call.op_type)
        weight = self._parameters.get(f"{call.key.op_name}.weight")
        if name in DEFINITIONS or weight is None or not call.inputs or not is_container(call.op_type):
            return name
        if len(weight.shape) == 1:
            return "layernorm" if f"{call.key.op_name}.bias" in self._parameters else "rmsnorm"
        if len(weight.shape) != 2:
            return name
        return "linear" if "float" in Tensor(self._step, call.inputs[0].row).dtype else "embedding"

    def local_gradient(self, parameter: str, shape: tuple[int, ...], way: str) -> list[Expectation]:
        """Return what this rank's calls of a module add to the gradient of a parameter; variants of it.

        All ranks of a step ask each other: small ones are kept until the next step.

        Args:
            parameter: its name.
            shape: as the module computes with it.
            way: see `parameter_gradients`.
        """
        if (known := self._local.get((parameter, shape, way))) is not None:
            return known
        made = self._local_gradient(parameter, shape, way)
        size = len(made) * math.prod(shape)
        if size <= self._left:
            self._local[parameter, shape, way] = made
            self._left -= size
        return made

    def _local_gradient(self, parameter: str, shape: tuple[int, ...], way: str) -> list[Expectation]:
        module, _, name = parameter.rpartition(".")
        parts: list[list[Expectation]] = []
        narrowest = 0.0
        for key, call in self._flow.calls.items():
            if key.op_name != module or not is_container(key.op_type) or not call.inputs:
                continue
            kind, x, gradient = self._kind(call), call.inputs[0], self._gradient_of_output(key)
            if kind not in KINDS or gradient is None or not self._is_readable(x):
                return []
            passed = self._read(gradient)
            narrowest = max(narrowest, unit_roundoff(passed.dtype))
            with np.errstate(all="ignore"):  # what is not finite is not judged
                parts.append(list(parameter_gradients(kind, name, self._read(x), passed, shape, way=way)))
        if not all(parts):
            return []
        return [added(each, narrowest) for each in zip(*parts, strict=False)]

    def _gradient_of_output(self, module: CallKey) -> FlowOperand | None:
        """Return the gradient of what a call of a module gave; None if it cannot be read."""
        found = self._passed_back.get((module, 0))
        is_known = found is not None and found.shape == self._flow.calls[module].outputs[0].shape
        return found if found is not None and is_known and self._is_readable(found) else None

    @cached_property
    def _passed_back(self) -> dict[tuple[CallKey, int], FlowOperand]:
        return passed_back(self._flow)

    def _is_readable(self, operand: FlowOperand) -> bool:
        tensor = Tensor(self._step, operand.row)
        return tensor.is_dumped and not tensor.removed and is_real(from_name(tensor.dtype))

    def _operands(self, call: FlowCall, read: Callable[[FlowOperand], Array] | None = None) -> CallOperands:
        """Read what a call read and wrote, with the parameters of its module, as far as they were dumped."""
        read = read or self._read
        named = {each.io.rpartition(".")[2]: read(each) for each in call.inputs if "." in each.io}
        outputs = [read(each) for each in call.outputs]
        for name in PARAMETERS if is_container(call.op_type) else ():
            parameter = self._parameters.get(f"{call.key.op_name}.{name}")
            if parameter is not None and self._is_readable(parameter):
                whole = self._gathered(f"{call.key.op_name}.{name}", call)
                named[name] = read(parameter) if whole is None else narrowed(whole[0], outputs)
            elif (made := self._made(call, name, read)) is not None:
                named[name] = made
        return CallOperands(
            [*map(read, call.positional), *(named[each] for each in PARAMETERS if each in named)],
            named,
            outputs,
        )

    def _made(self, call: FlowCall, name: str, read: Callable[[FlowOperand], Array]) -> Array | None:
        """Return a parameter that was made of others before a call, as pruned and parametrized ones are."""
        path = f"{call.key.op_name}.{name}"
        whole, mask = self._parameters.get(f"{path}_orig"), self._parameters.get(f"{path}_mask")
        if whole and mask and self._is_readable(whole) and self._is_readable(mask):
            return np.asarray(read(whole) * read(mask))
        made = self._parametrized.get(f"{call.key.op_name}.parametrizations.{name}", [])
        before = [each for each in made if call.outputs and each.row < call.outputs[0].row]
        last = max(before, key=lambda each: each.row, default=None)
        return read(last) if last is not None and self._is_readable(last) else None

    @cached_property
    def _parametrized(self) -> dict[str, list[FlowOperand]]:
        """What parametrizations gave, by the path of their list."""
        found: dict[str, list[FlowOperand]] = {}
        for key, call in self._flow.calls.items():
            path, _, number = key.op_name.rpartition(".")
            if ".parametrizations." in path and number.isdecimal() and call.outputs:
                found.setdefault(path, []).append(call.outputs[0])
        return found

    def shard_place(self, name: str) -> ShardPlace | None:
        """Return where the shard of a parameter lies that this rank holds; None if it holds all of it."""
        return self._places.get(name)

    @cached_property
    def _places(self) -> dict[str, ShardPlace]:
        told = ((name, Tensor(self._step, each.row).attributes) for name, each in self._parameters.items())
        return {name: place for name, known in told if (place := shard_place(known)) is not None}

    def shard(self, name: str) -> Array | None:
        """Return what this rank holds of a parameter; None if it cannot be read."""
        known = self._parameters.get(name)
        return self._read(known) if known is not None and self._is_readable(known) else None

    def _holding(self, name: str, along: Sequence[int] = ()) -> list[Self]:
        """Return the ranks that have the same of a parameter after it was gathered along some dimensions."""
        own, peers = self.shard_place(name), [*self._peers.values()]
        if own is None:
            return peers
        places = ((peer, peer.shard_place(name)) for peer in peers)
        return [peer for peer, place in places if place and place.kept(along) == own.kept(along)]

    def _gathered(self, name: str, call: FlowCall) -> tuple[Array, ShardCut] | None:
        """Return a parameter as a call has it, put together of shards; None if no shards are known to fit."""
        own, known = self.shard_place(name), self._cuts.get(name)
        if own is None or not (call.inputs and call.outputs):
            return None
        held = ((peer.shard_place(name), peer.shard(name)) for peer in self._peers.values())
        shards = {place: value for place, value in held if place and value is not None}
        shapes = call.inputs[0].shape, call.outputs[0].shape
        found = gathered_for(self._kind(call), name, own, shards, shapes, known=known)
        if found is not None:
            self._cuts[name] = found[1]
        return found

    def _cut_of(self, name: str) -> ShardCut | None:
        """Return how a parameter is gathered before its module computes; None if it is not."""
        module = name.rpartition(".")[0]
        calls = (call for key, call in self._flow.calls.items() if key.op_name == module)
        if name in self._places and name not in self._cuts:
            for first in islice(filter(lambda call: is_container(call.op_type), calls), 1):
                self._gathered(name, first)
        return self._cuts.get(name)

    def _read(self, operand: FlowOperand) -> Array:
        """Read a tensor; those that were read last are kept, because several calls ask for them."""
        key = operand.content, operand.shape
        found = self._arrays.pop(key, None)
        if found is None:
            found = Tensor(self._step, operand.row).read(verify=False)
            self._held += found.nbytes
        self._arrays[key] = found  # the last one in the order of a dict
        while self._held > _HELD and len(self._arrays) > 1:
            self._held -= self._arrays.pop(next(iter(self._arrays))).nbytes
        return found

    def give_up_gradients(self) -> None:
        """Give up what was kept for other ranks."""
        self._local.clear()

    def _give_up(self) -> None:
        """Give up the other ranks, and what was read."""
        self._peers = {}
        self._arrays.clear()
        self._held = 0
