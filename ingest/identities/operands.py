"""What the calls of a step read and wrote: with parameters, put together of the shards of all ranks.

Ranks may hold parameters in shards and compute with them as a whole, as FSDP does: a DTensor tells the cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any, NamedTuple, Self

import numpy as np

from ingest.identities.definition import Array, CallOperands, Expectation, wide
from ingest.identities.gradients import CONVOLUTIONS, GRADIENT, KINDS, added, parameter_gradients, passed_back
from ingest.identities.limits import unit_roundoff
from ingest.identities.operators import DEFINITIONS, plain_name
from ingest.reader.operator_kinds import CallKey, is_container
from ingest.reader.step import Step
from ingest.reader.step_flow import FlowCall, FlowOperand, flow_of
from ingest.reader.tensor import Tensor
from ingest.reader.unsharded import shard_of
from workers.arrays.comparison import is_real
from workers.arrays.dtypes import from_name
from workers.arrays.sharded.placement import Held
from workers.model import grouped


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """Where a shard lies: of each dimension of the mesh, how it cuts which axis, and the place on it."""

    shards: tuple[tuple[Held, int] | None, ...]
    """By `shard_of`: a strided cut lies within those of later dimensions."""
    place: tuple[int, ...]

    @property
    def cuts(self) -> tuple[int, ...]:
        """The dimensions that cut the parameter."""
        return tuple(number for number, shard in enumerate(self.shards) if shard)

    def axis(self, number: int) -> int:
        """Return which axis a dimension cuts that is one of `cuts`."""
        shard = self.shards[number]
        return shard[1] if shard else 0

    def elsewhere(self, along: Sequence[int]) -> tuple[int, ...]:
        """Return the place on all dimensions but some."""
        return tuple(place for number, place in enumerate(self.place) if number not in along)

    def kept(self, along: Sequence[int] = ()) -> tuple[int, ...]:
        """Return the place on the dimensions that cut the parameter after it was gathered along some."""
        return tuple(self.place[number] for number in self.cuts if number not in along)

    def ways(self) -> Iterator[tuple[int, ...]]:
        """Yield which dimensions may be gathered before a module computes, in their order; at last none."""
        within = {number for number, shard in enumerate(self.shards) if shard and shard[0] is Held.STRIDED}
        ordered = sorted(self.cuts, key=lambda number: (number not in within, -number))
        yield from dict.fromkeys(chain([tuple(ordered)], ((number,) for number in ordered), [()]))


def shard_place(attributes: Mapping[str, Any]) -> ShardPlace | None:
    """Read the place of a shard from the attributes of a tensor; None if it is whole, or not known."""
    tensor = attributes.get("tensor")
    known = tensor if isinstance(tensor, Mapping) else {}
    placements, place = (known.get(name) for name in ("placements", "mesh_coordinate"))
    if not isinstance(placements, list) or not isinstance(place, list) or len(placements) != len(place):
        return None
    found = ShardPlace(tuple(map(shard_of, placements)), tuple(place))
    return found if found.cuts else None


class ShardCut(NamedTuple):
    """Along which dimensions of the mesh a parameter is gathered before a module computes with it."""

    along: tuple[int, ...]
    own: tuple[slice, ...]
    """Where the shard of the rank lies in what is gathered."""
    shape: tuple[int, ...]
    """Of what is gathered."""


def gathered(
    own: ShardPlace, shards: Mapping[ShardPlace, Array], along: Sequence[int]
) -> tuple[Array, ShardCut] | None:
    """Put the shards of a parameter together along dimensions of the mesh, in this order.

    Args:
        own: where the shard lies that is asked about.
        shards: those of all ranks.
        along: the dimensions.

    Returns:
        None if a shard is missing, or they do not fit.
    """
    there = own.elsewhere(along)
    held = {shard.place: value for shard, value in shards.items() if shard.elsewhere(along) == there}
    place, spans = own.place, [slice(0, length) for length in held[own.place].shape]
    for number in along:
        axis = own.axis(number)
        lines = _lines(held, number)
        if not all(_is_line(line, axis) for line in lines.values()):
            return None
        at_own, place = place[number], (*place[:number], 0, *place[number + 1 :])
        before = sum(lines[place][other].shape[axis] for other in range(at_own))
        spans[axis] = slice(spans[axis].start + before, spans[axis].stop + before)
        held = {at: _joined(line, axis) for at, line in lines.items()}
    return held[place], ShardCut(tuple(along), tuple(spans), held[place].shape)


def _lines(held: Mapping[tuple[int, ...], Array], number: int) -> dict[tuple[int, ...], dict[int, Array]]:
    """Return shards by their place on the other dimensions of the mesh, and on this one."""
    lines: dict[tuple[int, ...], dict[int, Array]] = {}
    for at, value in held.items():
        lines.setdefault((*at[:number], 0, *at[number + 1 :]), {})[at[number]] = value
    return lines


def _joined(shards: Mapping[int, Array], axis: int) -> Array:
    return np.concatenate([shards[number] for number in sorted(shards)], axis)


def _is_line(shards: Mapping[int, Array], axis: int) -> bool:
    """Return whether shards are all of one line, and fit together along an axis."""
    others = {(*each.shape[:axis], *each.shape[axis + 1 :]) for each in shards.values()}
    is_cut = all(axis < each.ndim for each in shards.values())
    return is_cut and len(others) == 1 and sorted(shards) == list(range(len(shards)))


def gathered_for(
    kind: str,
    name: str,
    own: ShardPlace,
    shards: Mapping[ShardPlace, Array],
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    *,
    known: ShardCut | None = None,
) -> tuple[Array, ShardCut] | None:
    """Put a parameter together as its module needs it, or return the shard alone; None if neither fits.

    Args:
        kind: the module, by `plain_name`.
        name: of the parameter.
        own: where the shard lies that is asked about.
        shards: those of all ranks.
        shapes: of what the module reads first, and of what it gives.
        known: what another call of the module needed, which is tried first.
    """
    ways = own.ways() if known is None else dict.fromkeys((known.along, *own.ways()))
    made = (gathered(own, shards, along) for along in (ways if own in shards else ()))
    fitting = (each for each in made if each and fits(kind, name.rpartition(".")[2], each[1].shape, *shapes))
    return next(fitting, None)


def fits(
    kind: str, parameter: str, shape: tuple[int, ...], read: tuple[int, ...], wrote: tuple[int, ...]
) -> bool:
    """Return whether a module can compute with a parameter of a shape.

    Args:
        kind: the module, by `plain_name`.
        parameter: `weight` or `bias`.
        shape: of the parameter.
        read: the shape of what the module reads first.
        wrote: the shape of what it gives.
    """
    if not (shape and read and wrote):
        return False
    if kind in CONVOLUTIONS:
        is_transposed = CONVOLUTIONS[kind] and parameter == "weight"
        return shape[:1] == (read if is_transposed else wrote)[1:2]
    if "norm" in kind:
        return shape in (read[-len(shape) :], read[1:2])
    if kind == "embedding" or parameter == "bias":
        return shape[-1] == wrote[-1]
    return shape == (wrote[-1], read[-1])


def narrowed(whole: Array, outputs: Sequence[Array]) -> Array:
    """Return a parameter that was gathered in the type of what its module gives, if that is narrower."""
    given = outputs[0].dtype if outputs else whole.dtype
    is_narrower = 0 < unit_roundoff(whole.dtype) < unit_roundoff(given)
    return whole.astype(given) if is_narrower else whole


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
        self.parameters, self.gradients = (
            {key.op_name: call.outputs[0] for key, call in calls if key.op_type == kind and call.outputs}
            for kind in ("Parameter", GRADIENT)
        )
        self._peers = {}
        self._cuts: dict[str, ShardCut] = {}
        self._arrays: dict[object, Array] = {}
        self._held = 0
        self._local: dict[tuple[str, tuple[int, ...], str, int], list[Expectation]] = {}
        self._left = _LOCAL

    def parameter_content(self, name: str) -> object:
        """Return what is equal for equal values of a parameter; None if it was not dumped."""
        known = self.parameters.get(name)
        return known and known.content

    def known(self, operand: FlowOperand | None) -> Array | None:
        """Return the elements of a tensor; None if there is none, or they cannot be read."""
        return self._read(operand) if operand is not None and self._is_readable(operand) else None

    def gradient_of(self, name: str) -> Array | None:
        """Return the gradient of a parameter in float64; None if it cannot be read."""
        known = self.known(self.gradients.get(name))
        return None if known is None else wide(known)

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
        weight = self.parameters.get(f"{call.key.op_name}.weight")
        if name in DEFINITIONS or weight is None or not call.inputs or not is_container(call.op_type):
            return name
        if len(weight.shape) == 1:
            return "layernorm" if f"{call.key.op_name}.bias" in self.parameters else "rmsnorm"
        if len(weight.shape) != 2:
            return name
        return "linear" if "float" in Tensor(self._step, call.inputs[0].row).dtype else "embedding"

    def local_gradient(
        self, parameter: str, shape: tuple[int, ...], way: str, row: int | None = None
    ) -> list[Expectation]:
        """Return what this rank's calls of a module add to the gradient of a parameter; variants of it.

        All ranks of a step ask each other: small ones are kept until the next step.

        Args:
            parameter: its name.
            shape: as the module computes with it.
            way: see `parameter_gradients`.
            row: of the gradient, if it was recorded several times; by default the last one.
        """
        if row is None:
            row = self.gradients[parameter].row if parameter in self.gradients else -1
        if (known := self._local.get((parameter, shape, way, row))) is not None:
            return known
        made = self._local_gradient(parameter, shape, way, row)
        size = len(made) * math.prod(shape)
        if size <= self._left:
            self._local[parameter, shape, way, row] = made
            self._left -= size
        return made

    def _local_gradient(
        self, parameter: str, shape: tuple[int, ...], way: str, row: int
    ) -> list[Expectation]:
        module, _, name = parameter.rpartition(".")
        parts: list[list[Expectation]] = []
        narrowest = 0.0
        for call in self._calls_before(module, row):
            kind, x, gradient = self._kind(call), call.inputs[0], self._gradient_of_output(call.key)
            if kind not in KINDS or gradient is None or not self._is_readable(x):
                return []
            passed = self._read(gradient)
            narrowest = max(narrowest, unit_roundoff(passed.dtype))
            with np.errstate(all="ignore"):  # what is not finite is not judged
                parts.append(list(parameter_gradients(kind, name, self._read(x), passed, shape, way=way)))
        return [added(each, narrowest) for each in zip(*parts, strict=False)] if all(parts) else []

    def _calls_before(self, module: str, row: int) -> list[FlowCall]:
        """Return the calls of a module that passed something back before a gradient of it was recorded.

        Later ones are those of the next micro-batch, or of a loss that does not train it.
        """
        calls = self._calls_passing_back.get(module, [])
        return [call for passed, call in calls if passed < row] or [call for _, call in calls]

    @cached_property
    def _calls_passing_back(self) -> dict[str, list[tuple[int, FlowCall]]]:
        """The calls of each module, with the row of the gradient of what they gave."""
        passed = {key: gradient.row for (key, slot), gradient in self._passed_back.items() if not slot}
        return grouped(
            (key.op_name, (passed[key], call))
            for key, call in self._flow.calls.items()
            if key in passed and is_container(key.op_type) and call.inputs
        )

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
            parameter = self.parameters.get(f"{call.key.op_name}.{name}")
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
        whole, mask = self.parameters.get(f"{path}_orig"), self.parameters.get(f"{path}_mask")
        if whole and mask and self._is_readable(whole) and self._is_readable(mask):
            return np.asarray(read(whole) * read(mask))
        made = self._parametrized.get(f"{call.key.op_name}.parametrizations.{name}", [])
        before = [each for each in made if call.outputs and each.row < call.outputs[0].row]
        last = max(before, key=lambda each: each.row, default=None)
        return None if last is None or not self._is_readable(last) else read(last)

    @cached_property
    def _parametrized(self) -> dict[str, list[FlowOperand]]:
        found: dict[str, list[FlowOperand]] = {}
        for key, call in self._flow.calls.items():
            path, _, number = key.op_name.rpartition(".")
            if ".parametrizations." in path and number.isdecimal() and call.outputs:
                found.setdefault(path, []).append(call.outputs[0])
        return found

    @cached_property
    def places(self) -> dict[str, ShardPlace]:
        """Where the shards of parameters lie that this rank holds, by name; of whole ones, nothing."""
        told = ((name, Tensor(self._step, each.row).attributes) for name, each in self.parameters.items())
        return {name: place for name, known in told if (place := shard_place(known)) is not None}

    def _holding(self, name: str, along: Sequence[int] = ()) -> list[Self]:
        """Return the ranks that have the same of a parameter after it was gathered along some dimensions."""
        own, peers = self.places.get(name), [*self._peers.values()]
        if own is None:
            return peers
        places = ((peer, peer.places.get(name)) for peer in peers)
        return [peer for peer, place in places if place and place.kept(along) == own.kept(along)]

    def _gathered(self, name: str, call: FlowCall) -> tuple[Array, ShardCut] | None:
        """Return a parameter as a call has it, put together of shards; None if no shards are known to fit."""
        own, known = self.places.get(name), self._cuts.get(name)
        if own is None or not (call.inputs and call.outputs):
            return None
        peers = self._peers.values()
        held = ((peer.places.get(name), peer.known(peer.parameters.get(name))) for peer in peers)
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
        if name in self.places and name not in self._cuts:
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
        self._peers = {}
        self._arrays.clear()
        self._held = 0
