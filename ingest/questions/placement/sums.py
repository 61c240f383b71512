"""What the outputs and gradients of linear layers are sums of, over which ranks: computed from stored values.

    output                 sum of (input @ weight.T), + bias
    gradient of the input  sum of (gradient of output @ weight), over all layers that read it
    gradient of a weight   sum of (gradient of output.T @ input); of the weight of a norm, of output gradient
                           times normalised input; of a bias, of the output gradient

Which ranks are summed over is not told by names: it is tried which sum gives what was stored, within the
rounding of the types. A result that is exactly what one rank can compute alone was not reduced.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.identities.difference import DifferenceShape, named_difference, shape_of_difference
from ingest.identities.limits import UNWRITTEN, unit_roundoff
from ingest.reader.snapshot import Snapshot
from ingest.reader.tensor import Tensor
from workers.errors import DamagedStore
from workers.store.consolidated.blocks import Block, TensorKey

Array: TypeAlias = npt.NDArray[Any]
ByRank: TypeAlias = Mapping[int, Array]
Groups: TypeAlias = tuple[tuple[int, ...], ...]
"""Ranks by group; each rank is in one."""

#: How many roundings of the type, and of the float32 sums, an identity may be off.
_ROUNDINGS = 16.0
_WEIGHT, _BIAS = ".weight", ".bias"
#: Layers that read one tensor, of which all combinations are tried.
_READERS = 4


class StepElements:
    """The elements of the tensors of one step, read when they are asked for."""

    def __init__(self, snapshot: Snapshot, block: Block) -> None:
        """Read from the steps of `snapshot` that `block` shows."""
        self._steps, self.block = snapshot.of_step(block.step), block
        self._read: dict[tuple[int, int], Array | None] = {}

    def holders(self, tensor: int) -> tuple[int, ...]:
        """Return the ranks that have a tensor."""
        if tensor >= self.block.row.shape[1]:
            return ()
        return tuple(self.block.ranks[place] for place in np.flatnonzero(self.block.row[:, tensor] >= 0))

    def content(self, rank: int, tensor: int) -> bytes:
        """Return the digest of a tensor."""
        return bytes(self.block.digest[self.block.ranks.index(rank), tensor])

    def any_of(self, rank: int, tensor: int) -> Array | None:
        """Return the elements of a tensor, whole numbers, too; None if the store lacks them."""
        if (rank, tensor) not in self._read:
            row = int(self.block.row[self.block.ranks.index(rank), tensor])
            opened = Tensor(self._steps[rank], row)
            values = None
            if row >= 0 and opened.is_dumped and not opened.removed:
                try:
                    values = opened.read(verify=False)
                except DamagedStore:
                    values = None  # `verify` names the damage
            self._read[rank, tensor] = None if values is not None and values.dtype.kind == "c" else values
        return self._read[rank, tensor]

    def of_layer(
        self, layer: Layer, ranks: Sequence[int]
    ) -> tuple[dict[int, Array], dict[int, Array], dict[int, Array]]:
        """Return inputs, weights and outputs of a layer by rank; nothing if a rank does not have them all."""
        places = (layer.input, layer.weight, layer.output)
        inputs, weights, outputs = (self.by_rank(ranks, place) or {} for place in places)
        return (inputs, weights, outputs) if inputs and weights and outputs else ({}, {}, {})

    def by_rank(self, ranks: Sequence[int], tensor: int) -> dict[int, Array] | None:
        """Return the elements of a tensor by rank; None if a rank lacks them, or they are not real."""
        if tensor < 0 or not {*ranks} <= {*self.holders(tensor)}:
            return None
        read = {rank: self.any_of(rank, tensor) for rank in ranks}
        known = {rank: values for rank, values in read.items() if values is not None}
        is_real = len(known) == len(read) and all(unit_roundoff(own.dtype) for own in known.values())
        return known if is_real else None


@dataclass(slots=True)
class Layer:
    """A module with parameters, by the places of its tensors on the axis; -1 for what was not dumped."""

    path: str
    weight: int = -1
    bias: int = -1
    input: int = -1
    output: int = -1
    output_gradient: int = -1
    weight_gradient: int = -1
    bias_gradient: int = -1
    calls: int = 1

    def take(self, key: TensorKey, place: int) -> None:
        """Note the place of one of its tensors."""
        last = key.op_name.rpartition(".")[2]
        if key.op_type.startswith("Module"):
            self.calls = max(self.calls, key.occurrence + 1)
            if (key.slot, key.occurrence) == (0, 0) and key.io in ("input", "output"):
                setattr(self, key.io, place)
        elif key.op_type == "Parameter" and last == "bias":
            self.bias = place
        elif key.op_type == "Gradient" and last in ("output", "weight", "bias"):
            setattr(self, f"{last}_gradient", place)


def layers_of(keys: Sequence[TensorKey]) -> list[Layer]:
    """Return the modules that have a weight, an input and an output in a dump of PyTorch."""
    layers: dict[str, Layer] = {}
    for place, key in enumerate(keys):
        if key.op_type == "Parameter" and key.op_name.endswith(_WEIGHT):
            path = key.op_name.removesuffix(_WEIGHT)
            layers[path] = Layer(path, weight=place)
    for place, key in enumerate(keys):
        is_module = key.op_type.startswith("Module")
        layer = layers.get(key.op_name if is_module else key.op_name.rpartition(".")[0])
        if layer is not None:
            layer.take(key, place)
    return [layer for layer in layers.values() if min(layer.input, layer.output) >= 0]


def learned_beside(layer: Layer) -> Iterator[tuple[int, int]]:
    """Yield the gradients of the parameters of a layer, each with that of its output."""
    for gradient in (layer.weight_gradient, layer.bias_gradient):
        if min(gradient, layer.output_gradient) >= 0:
            yield gradient, layer.output_gradient


class Account(NamedTuple):
    """Of what a tensor is the sum."""

    groups: Groups
    """Over which ranks was summed."""
    factor: float = 1.0
    """How often the sum is in it."""
    biases: int = 0
    """How often the bias is in it."""

    has_bias: bool = False

    @property
    def is_biased_once(self) -> bool:
        """Whether the bias is in it once, if there is one."""
        return self.biases == self.has_bias

    @property
    def size(self) -> int:
        """How many ranks a sum is over."""
        return len(self.groups[0])


class Summand(NamedTuple):
    """What ranks compute alone, and the sum of the magnitudes of its terms, element by element."""

    values: ByRank
    magnitudes: ByRank
    terms: int
    unit: float = 0.0
    """The unit roundoff of the type in which they are summed, if that may be coarser than the result's."""

    def is_like(self, results: ByRank) -> bool:
        """Return whether it has the shape of the results, on all of their ranks."""
        return all(self.values[rank].shape == result.shape for rank, result in results.items())

    @property
    def may_be_unwritten(self) -> bool:
        """Whether what it was computed of looks like memory that was written later."""
        return not all(np.all(each < UNWRITTEN) for each in self.magnitudes.values())


def _summed(by_rank: ByRank, groups: Groups) -> dict[int, Array]:
    sums: dict[int, Array] = {}
    for group in groups:
        total = np.sum([by_rank[rank] for rank in group], axis=0)
        sums |= dict.fromkeys(group, total)
    return sums


def _bias_of(biases: ByRank | None, rank: int) -> Array | float:
    return biases[rank].astype(np.float64) if biases else 0.0


def _sums(
    summand: Summand, partitions: Sequence[Groups]
) -> Iterator[tuple[Account, dict[int, Array], dict[int, Array]]]:
    """Yield what ranks may hold if they add up over groups, once, as often as there are ranks, or their mean.

    With the sums of magnitudes.
    """
    for groups in partitions:
        if any(len({summand.values[rank].shape for rank in group}) > 1 for group in groups):
            continue
        sums, bounds = _summed(summand.values, groups), _summed(summand.magnitudes, groups)
        size = len(groups[0])
        for factor in dict.fromkeys((1.0, float(size), 1.0 / size)):
            yield Account(groups, factor), {rank: factor * total for rank, total in sums.items()}, bounds


def accounts(
    results: ByRank, summands: Sequence[Summand], bias: ByRank | None, partitions: Sequence[Groups]
) -> list[tuple[Account, ...]]:
    """Return the ways in which results are sums of summands: of each, over which ranks and how often.

    Args:
        results: what was stored.
        summands: what ranks compute alone, each like the results: one product, or those of all layers that
            read a tensor.
        bias: what is added once; None if there is none.
        partitions: the groups that are tried, those of single ranks first.
    """
    choices = [[*_sums(summand, partitions)] for summand in summands]
    found = []
    longest = max(summand.terms for summand in summands)
    for chosen in product(*choices):
        largest = max(account.size for account, _, _ in chosen)
        times = (0,) if bias is None else tuple(dict.fromkeys((1, 0, largest)))
        for count in times:
            if all(
                _is_sum(
                    result,
                    [(account.factor, sums[rank], bounds[rank]) for account, sums, bounds in chosen],
                    count * _bias_of(bias, rank),
                    longest * largest,
                )
                for rank, result in results.items()
            ):
                way = (account._replace(biases=count, has_bias=bool(bias)) for account, _, _ in chosen)
                found.append(tuple(way))
    return found


def _is_sum(
    result: Array, terms_of: Iterable[tuple[float, Array, Array]], bias: Array | float, terms: int
) -> bool:
    """Return whether a result is the sum of terms, each with its factor and magnitude, and a bias."""
    total, limit = _expected(result, terms_of, bias, terms)
    return np.shape(total) == result.shape and bool(
        (np.abs(result.astype(np.float64) - total) <= limit).all()
    )


def _expected(
    result: Array,
    terms_of: Iterable[tuple[float, Array, Array]],
    bias: Array | float,
    terms: int,
    unit: float = 0.0,
) -> tuple[Any, Any]:
    """Return a sum, and how far rounding may take a result from it."""
    total: Any = bias
    bound: Any = np.abs(bias)
    for factor, term, magnitude in terms_of:
        total, bound = total + term, bound + max(factor, 1.0) * magnitude
    unit = max(unit, unit_roundoff(result.dtype))
    return total, _ROUNDINGS * (unit + 2.0**-24 * math.sqrt(terms)) * bound


def deviation(
    results: ByRank, summand: Summand, bias: ByRank | None, partitions: Sequence[Groups]
) -> tuple[tuple[int, ...], DifferenceShape | None]:
    """Return the ranks whose results are not a sum, but for an element, row or block; none if there are none.

    With the difference of the sum from the result of the first of them.
    """
    found: list[tuple[tuple[int, ...], DifferenceShape]] = []
    for account, sums, bounds in _sums(summand, partitions):
        off = {}
        for rank, result in results.items() if account.factor <= 1 else ():
            total, limit = _expected(
                result,
                [(account.factor, sums[rank], bounds[rank])],
                _bias_of(bias, rank),
                summand.terms * account.size,
                unit=summand.unit,
            )
            if np.shape(total) != result.shape:
                return (), None
            if difference := shape_of_difference(total, result.astype(np.float64), limit):
                off[rank] = difference
        if not off and account.factor <= 1:
            return (), None  # it is this sum, whatever others it is nearly
        if off and all(map(named_difference, off.values())):
            found.append((tuple(off), next(iter(off.values()))))
    return min(found, key=lambda one: one[1].elements, default=((), None))


def groups_along(axis: str, ranks: Sequence[int], coordinates: Mapping[int, Mapping[str, Any]]) -> Groups:
    """Return the groups of ranks that differ in no other axis of the mesh."""
    by_place: dict[object, list[int]] = {}
    for rank in ranks:
        places = coordinates.get(rank, {})
        others = tuple((name, place.rank) for name, place in places.items() if name != axis)
        by_place.setdefault(others, []).append(rank)
    return tuple(map(tuple, by_place.values()))


def partitions_of(ranks: Sequence[int], coordinates: Mapping[int, Mapping[str, Any]]) -> list[Groups]:
    """Return the groups over which ranks may sum: each alone, those along each axis of the mesh, and all."""
    partitions: dict[Groups, None] = {tuple((rank,) for rank in ranks): None}
    axes = sorted({axis for rank in ranks for axis in coordinates.get(rank, {})})
    for axis in axes:
        groups = groups_along(axis, ranks, coordinates)
        if len({len(group) for group in groups}) == 1 and len(groups[0]) > 1:
            partitions[groups] = None
    if len(ranks) > 1:
        partitions[(tuple(ranks),)] = None
    return list(partitions)


def forward(values: StepElements, layer: Layer, ranks: Sequence[int]) -> Summand | None:
    """Return the products of inputs and weights of a linear layer; None if it is none, or cut otherwise."""
    inputs, weights, outputs = values.of_layer(layer, ranks)
    for rank, x in inputs.items():
        weight = weights[rank]
        is_linear = weight.ndim == 2 and x.ndim > 0 and x.shape[-1] == weight.shape[1]
        if not is_linear or (*x.shape[:-1], weight.shape[0]) != outputs[rank].shape:
            return None
    if not inputs:
        return None
    return _products(inputs, {rank: weight.T for rank, weight in weights.items()})


def gathered_from(
    values: StepElements, layer: Layer, ranks: Sequence[int]
) -> dict[int, tuple[int, ...]] | None:
    """Return by rank whose inputs the parts of its output are products of, with its own weight.

    None unless the output has several times the rows of the input along one axis, each from one known rank.
    """
    inputs, weights, outputs = values.of_layer(layer, ranks)
    biases = values.by_rank(ranks, layer.bias)
    found = {
        rank: _sources(inputs, rank, weights[rank], _bias_of(biases, rank), outputs[rank]) for rank in outputs
    }
    return found if found and all(found.values()) else None


def _sources(inputs: ByRank, rank: int, weight: Array, bias: Array | float, output: Array) -> tuple[int, ...]:
    """Return whose inputs the parts of an output are products of; empty if that is not known of all."""
    length = inputs[rank].shape
    axis = _cut_axis(inputs[rank], weight, output)
    if axis is None or output.shape[axis] < length[axis]:
        return ()
    products = _products(inputs, dict.fromkeys(inputs, weight.T))
    made = [(other, [(1.0, own, products.magnitudes[other])]) for other, own in products.values.items()]
    parts = np.split(output, output.shape[axis] // length[axis], axis)
    found = [[other for other, own in made if _is_sum(part, own, bias, products.terms)] for part in parts]
    return tuple(of_part[0] for of_part in found) if all(len(each) == 1 for each in found) else ()


def scattered_sums(
    values: StepElements, layer: Layer, ranks: Sequence[int], partitions: Sequence[Groups]
) -> list[Groups]:
    """Return over which ranks an output is the own part of a sum, along an axis that its input has whole."""
    inputs, weights, outputs = values.of_layer(layer, ranks)
    axes = {_cut_axis(inputs[rank], weights[rank], outputs[rank]) for rank in ranks if outputs}
    axis = axes.pop() if len(axes) == 1 else None
    if axis is None:
        return []
    products = _products(inputs, {rank: weight.T for rank, weight in weights.items()})
    count = inputs[ranks[0]].shape[axis] // outputs[ranks[0]].shape[axis]
    of_size = (group for groups in partitions for group in groups if len(group) == count > 1)
    place = {rank: group.index(rank) for group in of_size for rank in group}
    biases = values.by_rank(ranks, layer.bias) or {}

    def is_own_part(rank: int, groups: Groups) -> bool:
        sums = (_summed(each, groups)[rank] for each in (products.values, products.magnitudes))
        total, size = (np.split(each, count, axis)[place[rank]] for each in sums)
        terms = products.terms * len(groups[0])
        return _is_sum(outputs[rank], [(1.0, total, size)], _bias_of(biases, rank), terms)

    tried = partitions if len(place) == len(ranks) else ()
    return [groups for groups in tried if all(is_own_part(rank, groups) for rank in ranks)]


def _cut_axis(x: Array, weight: Array, output: Array) -> int | None:
    """Return the axis along which one of input and output is a part, and the only one; None without one."""
    if weight.ndim != 2 or x.ndim != output.ndim or x.ndim < 2:
        return None
    if (x.shape[-1], output.shape[-1]) != (weight.shape[1], weight.shape[0]):
        return None
    axes = [axis for axis in range(x.ndim - 1) if x.shape[axis] != output.shape[axis]]
    shorter, longer = sorted((x.shape[axes[0]], output.shape[axes[0]])) if len(axes) == 1 else (0, 0)
    return axes[0] if shorter and not longer % shorter else None


def is_unmasked_lookup(values: StepElements, layer: Layer, ranks: Sequence[int]) -> bool:
    """Return whether an output is the sum of a row of each rank's part of a table, and not of one row alone.

    A rank that does not hold a word looks up its first or last one instead, unless that is masked.
    """
    tables, outputs = (values.by_rank(ranks, place) for place in (layer.weight, layer.output))
    ids = values.any_of(ranks[0], layer.input)
    if not tables or not outputs or ids is None or ids.dtype.kind not in "iu":
        return False
    shapes, inputs = ({*map(len, tables.values())}, {values.content(rank, layer.input) for rank in ranks})
    if max(len(shapes), len(inputs)) > 1:
        return False
    length = len(tables[ranks[0]])
    rows = [
        tables[rank][np.clip(ids - place * length, 0, length - 1)].astype(np.float64)
        for place, rank in enumerate(ranks)
    ]
    own = np.sum([row * (ids // length == place)[..., None] for place, row in enumerate(rows)], axis=0)
    terms = [(1.0, np.sum(rows, axis=0), np.sum(np.abs(rows), axis=0))]
    is_other = not any(np.array_equal(result, own) for result in outputs.values())
    return is_other and all(_is_sum(result, terms, 0.0, len(ranks)) for result in outputs.values())


def backward(values: StepElements, layer: Layer, ranks: Sequence[int]) -> Summand | None:
    """Return what a linear layer passes back to its input; None if it is none, or not dumped."""
    gradients = values.by_rank(ranks, layer.output_gradient)
    weights = values.by_rank(ranks, layer.weight)
    if not gradients or not weights:
        return None
    for rank in ranks:
        gradient, weight = gradients[rank], weights[rank]
        if weight.ndim != 2 or not gradient.ndim or gradient.shape[-1] != weight.shape[0]:
            return None
    return _products(gradients, weights)


def _products(left: ByRank, right: ByRank) -> Summand:
    wide = {rank: (left[rank].astype(np.float64), right[rank].astype(np.float64)) for rank in left}
    return Summand(
        {rank: x @ y for rank, (x, y) in wide.items()},
        {rank: np.abs(x) @ np.abs(y) for rank, (x, y) in wide.items()},
        max(x.shape[-1] for x, _ in wide.values()),
    )


def summand_of(parts: ByRank, results: ByRank) -> Summand | None:
    """Return pieces of ranks as what is summed; None if they are not all like the results."""
    shapes = {values.shape for values in (*parts.values(), *results.values())}
    if len(shapes) != 1 or not next(iter(shapes)):
        return None
    wide = {rank: values.astype(np.float64) for rank, values in parts.items()}
    return Summand(wide, {rank: np.abs(values) for rank, values in wide.items()}, 1)


def of_parameter(values: StepElements, layer: Layer, ranks: Sequence[int], *, bias: bool) -> Summand | None:
    """Return the gradients of a parameter that ranks compute alone; None if that does not follow."""
    gradients = values.by_rank(ranks, layer.output_gradient)
    # Of images, channels come first, and not last.
    if layer.calls > 1 or not gradients or any(each.ndim not in (1, 2, 3) for each in gradients.values()):
        return None
    flat = {rank: _flat(gradient) for rank, gradient in gradients.items()}
    # Under autocast, a narrow sum is stored as wide as the parameter.
    unit = max(unit_roundoff(gradient.dtype) for gradient in gradients.values())
    if bias:
        terms = {rank: gradient.sum(axis=0) for rank, gradient in flat.items()}
        sizes = {rank: np.abs(gradient).sum(axis=0) for rank, gradient in flat.items()}
        return Summand(terms, sizes, max(map(len, flat.values())), unit)
    weights = values.by_rank(ranks, layer.weight)
    if not weights:
        return None
    if all(weight.ndim == 2 for weight in weights.values()):
        inputs = values.by_rank(ranks, layer.input)
        if not inputs or any(len(_flat(inputs[rank])) != len(flat[rank]) for rank in ranks):
            return None
        rows = {rank: _flat(x) for rank, x in inputs.items()}
        return _products({rank: each.T for rank, each in flat.items()}, rows)._replace(unit=unit)
    return _of_norm(values, layer, ranks, flat, weights)


def _of_norm(
    values: StepElements, layer: Layer, ranks: Sequence[int], gradients: ByRank, weights: ByRank
) -> Summand | None:
    """Return the gradients of the weight of a norm: its normalised input is (output - bias) / weight."""
    outputs = values.by_rank(ranks, layer.output)
    biases = values.by_rank(ranks, layer.bias) if layer.bias >= 0 else {}
    if not outputs or biases is None:
        return None
    terms, sizes = {}, {}
    for rank in ranks:
        output, weight = _flat(outputs[rank]), weights[rank].astype(np.float64)
        if weight.shape != output.shape[1:] or output.shape != gradients[rank].shape or not np.all(weight):
            return None
        normal = (output - _bias_of(biases, rank)) / weight
        terms[rank] = (gradients[rank] * normal).sum(axis=0)
        sizes[rank] = (np.abs(gradients[rank]) * (1 + np.abs(normal))).sum(axis=0)
    return Summand(terms, sizes, max(map(len, gradients.values())))


def _flat(values: Array) -> Array:
    wide: Array = values.astype(np.float64)
    return wide.reshape(-1, wide.shape[-1]) if wide.ndim else wide.reshape(1, 1)
