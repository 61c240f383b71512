"""Parameters that ranks hold in shards and compute with as a whole, as FSDP does: a DTensor tells the cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from ingest.identities.backward import CONVOLUTIONS
from ingest.identities.definition import Array
from ingest.identities.limits import unit_roundoff
from ingest.reader.unsharded import shard_of
from workers.arrays.sharded.placement import Held


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

    def _is_within(self, number: int) -> bool:
        shard = self.shards[number]
        return shard is not None and shard[0] is Held.STRIDED

    def elsewhere(self, along: Sequence[int]) -> tuple[int, ...]:
        """Return the place on all dimensions but some."""
        return tuple(place for number, place in enumerate(self.place) if number not in along)

    def kept(self, along: Sequence[int] = ()) -> tuple[int, ...]:
        """Return the place on the dimensions that cut the parameter after it was gathered along some."""
        return tuple(self.place[number] for number in self.cuts if number not in along)

    def ways(self) -> Iterator[tuple[int, ...]]:
        """Yield which dimensions may be gathered before a module computes, in their order; at last none."""
        ordered = sorted(self.cuts, key=lambda number: (not self._is_within(number), -number))
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
