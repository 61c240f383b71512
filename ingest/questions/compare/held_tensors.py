"""One step of all ranks of a side as one: every tensor once, with the ranks that have a piece of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ingest.questions.compare.calls import counted_calls
from ingest.questions.compare.sources import StepTensors
from ingest.reader.context.ge_graph import ModelOutput
from ingest.reader.mesh import REPLICATED, Coordinates
from ingest.reader.operator_kinds import is_parameter, parts_of
from ingest.reader.unsharded import Told, grid_of, told_placement
from workers.arrays.digest import DIGEST_BYTES, digest
from workers.arrays.marginals import Marginal
from workers.arrays.sharded.placement import (
    Held,
)
from workers.arrays.sharded.placement_search import Pieces
from workers.arrays.statistics import FIELDS
from workers.model import StepKey
from workers.store.consolidated.blocks import TensorKey
from workers.tasks.operands import Operand

#: How many parameters are looked at to see along which axes they are cut.
_TOLD = 16


class Holder(NamedTuple):
    """A piece of a tensor."""

    rank: int
    number: int
    """Of the tensor, in the step of this rank."""


@dataclass(frozen=True, slots=True, eq=False)
class HeldTensors:
    """The tensors of one step over the ranks of a side, in order of execution."""

    ranks: Mapping[int, StepTensors]
    coordinates: Mapping[int, Coordinates]
    """By rank, where it is in the mesh; empty if that is not known."""
    keys: list[TensorKey]
    holders: list[tuple[Holder, ...]]
    """By tensor, the ranks that have a piece, in order."""
    _pieces: dict[int, Pieces] = field(default_factory=dict)
    """By tensor: what has been asked for."""

    @property
    def step(self) -> int | None:
        """The number of the step."""
        return next(iter(self.ranks.values())).key.step

    def operands(self, tensor: int) -> tuple[Operand, ...]:
        """Return where the pieces of a tensor are."""
        return tuple(self.ranks[holder.rank].operand(holder.number) for holder in self.holders[tensor])

    def digests(self, tensor: int) -> list[tuple[bytes, object]]:
        """Return the digest of each piece and what it means; a digest of zeros is not known."""
        pairs: list[tuple[bytes, object]] = []
        for rank, number in self.holders[tensor]:
            side = self.ranks[rank]
            pairs.append((side.digests[number].tobytes(), side.meanings[number]))
        return pairs

    def shapes(self, tensor: int) -> tuple[tuple[int, ...], ...]:
        """Return the shape of each piece."""
        return tuple(self.ranks[rank].shapes[number] for rank, number in self.holders[tensor])

    def dtype(self, tensor: int) -> str:
        """Return the type of the elements of the first piece."""
        rank, number = self.holders[tensor][0]
        return self.ranks[rank].dtypes[number]

    def is_dumped(self, tensor: int) -> bool:
        """Return whether the elements of all pieces were dumped, and not only statistics."""
        return all(bool(self.ranks[rank].dumped[number]) for rank, number in self.holders[tensor])

    def is_removed(self, tensor: int) -> bool:
        """Return whether the elements of a piece were dumped, and were removed from the store."""
        return any(number in self.ranks[rank].removed for rank, number in self.holders[tensor])

    def marginals(self, tensor: int, place: int) -> Mapping[int, Marginal]:
        """Return the marginals of one piece by axis; none if they are not known.

        Raises:
            DamagedStore: they are damaged.
        """
        rank, number = self.holders[tensor][place]
        return self.ranks[rank].operands.marginals.get(number, {})

    def told(self, tensor: int) -> Told:
        """Return the placement of a tensor that the dump itself gives.

        Axes on which the places of its ranks follow from others are left out.
        """
        told, grid = self._told(tensor), self.pieces(tensor).grid
        return told if grid is None else {name: told[name] for name in grid.names if name in told}

    def _told(self, tensor: int) -> Told:
        rank, number = self.holders[tensor][0]
        return told_placement(self.ranks[rank].operands.attributes(number))

    def is_awaited(self, tensor: int) -> bool:
        """Return whether a piece was dumped before anybody waited for its reduction, as its file says.

        `AsyncCollectiveTensor` of PyTorch has `completed` for that.
        """
        attributes = (self.ranks[rank].operands.attributes(number) for rank, number in self.holders[tensor])
        kinds = (told.get("tensor") for told in attributes)
        return any(isinstance(kind, Mapping) and kind.get("completed") is False for kind in kinds)

    def pieces(self, tensor: int) -> Pieces:
        """Describe the pieces of a tensor before they are read."""
        if tensor not in self._pieces:
            first: dict[object, int] = {}
            twins = tuple(
                first.setdefault(digest if any(digest[0]) else number, number)
                for number, digest in enumerate(self.digests(tensor))
            )
            # Where the holders lie on the mesh, if that is known and they fill a part of it.
            places = [self.coordinates.get(holder.rank, {}) for holder in self.holders[tensor]]
            grid = grid_of(places, self._told(tensor))
            self._pieces[tensor] = Pieces(self.shapes(tensor), twins, grid)
        return self._pieces[tensor]

    def as_step(self) -> StepTensors:
        """Return the tensors as those of one step: with the form of the first piece, and the bytes of all."""
        firsts = [(self.ranks[held[0].rank], held[0].number) for held in self.holders]
        tensors = range(len(self.keys))
        contents = b"".join(map(self._content, tensors))
        return StepTensors(
            key=StepKey(min(self.ranks), self.step),
            keys=self.keys,
            dtypes=[side.dtypes[number] for side, number in firsts],
            shapes=[side.shapes[number] for side, number in firsts],
            meanings=[()] * len(firsts),
            digests=np.frombuffer(contents, np.uint8).reshape(-1, DIGEST_BYTES),
            statistics=np.array([side.statistics[number] for side, number in firsts]).reshape(
                -1, len(FIELDS)
            ),
            dumped=np.array(list(map(self.is_dumped, tensors)), bool),
            nbytes=np.array([side.nbytes[number] for side, number in firsts], np.int64),
            places=np.arange(len(firsts)),
            operands=_FirstPieces(firsts),
            removed=frozenset(filter(self.is_removed, tensors)),
        )

    def _content(self, tensor: int) -> bytes:
        digests = [known for known, _ in self.digests(tensor)]
        if not all(map(any, digests)):
            return bytes(DIGEST_BYTES)
        return digests[0] if len(digests) == 1 else digest(b"".join(digests))


@dataclass(frozen=True, slots=True)
class _FirstPieces:
    """Answers what is asked of a tensor by its first piece."""

    pieces: Sequence[tuple[StepTensors, int]]

    @property
    def marginals(self) -> Mapping[int, Mapping[int, Marginal]]:
        """Nothing: those of each piece are asked for by `HeldTensors.marginals`."""
        return {}

    def operand(self, number: int, _: StepTensors) -> Operand:
        side, own = self.pieces[number]
        return side.operand(own)

    def full_name(self, number: int) -> str:
        side, own = self.pieces[number]
        return side.operands.full_name(own)

    def model_output(self, number: int) -> ModelOutput | None:
        side, own = self.pieces[number]
        return side.operands.model_output(own)

    def attributes(self, number: int) -> dict[str, Any]:
        side, own = self.pieces[number]
        return side.operands.attributes(own)


def hold_together(
    ranks: Mapping[int, StepTensors],
    coordinates: Mapping[int, Coordinates],
    calls: Mapping[TensorKey, int] = MappingProxyType({}),
    *,
    without_activations: bool = False,
) -> HeldTensors:
    """Return the tensors of one step over all ranks.

    They have the order of the first rank; what only others have comes behind what they executed before it.
    `calls` are those of the other side: what only this one repeats is left out. With
    `without_activations`, only parameters and their gradients are kept.
    """
    holders: dict[TensorKey, list[Holder]] = {}
    order: dict[TensorKey, tuple[int, int]] = {}
    for rank in sorted(ranks):
        last = -1
        parts = parts_of(ranks[rank].keys)
        for number, key in counted_calls(ranks[rank], calls):
            if without_activations and not parts[number].is_of_parameter:
                continue
            holders.setdefault(key, []).append(Holder(rank, number))
            if key not in order:
                order[key] = (number, 0) if rank == min(ranks) else (last, len(order))
            last = order[key][0]
    keys = sorted(order, key=order.__getitem__)
    return HeldTensors(ranks, coordinates, keys, [tuple(holders[key]) for key in keys])


def parameters_of(side: StepTensors) -> StepTensors:
    """Return the parameters of a step of one rank."""
    ranks = {side.key.rank: side}
    return hold_together(ranks, {side.key.rank: {}}, without_activations=True).as_step()


def by_batch(
    ranks: tuple[Mapping[int, StepTensors], Mapping[int, StepTensors]],
    places: tuple[Mapping[int, Coordinates], Mapping[int, Coordinates]],
) -> list[tuple[object, Mapping[int, StepTensors], Mapping[int, StepTensors]]]:
    """Return the ranks of A and of B that read the same batch, for each batch; all if that is not known.

    They have the same places on the axes of data parallelism that both sides have, with as many places.
    """
    axes = [axis for axis in sorted(REPLICATED) if _is_cut_alike(axis, ranks, places)]
    batches: dict[object, tuple[dict[int, StepTensors], dict[int, StepTensors]]] = {}
    for number, (side, of_side) in enumerate(zip(ranks, places, strict=True)):
        for rank, tensors in side.items():
            batch = tuple(of_side[rank][axis].rank for axis in axes)
            batches.setdefault(batch, ({}, {}))[number][rank] = tensors
    return [(batch, *sides) for batch, sides in batches.items()]


def _is_cut_alike(
    axis: str,
    ranks: tuple[Mapping[int, StepTensors], Mapping[int, StepTensors]],
    places: tuple[Mapping[int, Coordinates], Mapping[int, Coordinates]],
) -> bool:
    """Return whether both sides are known to have the same places, and several, on an axis.

    One along which parameters are cut, as by FSDP, is not: what is cut along another, too, has other shards.
    """
    found: list[set[int | None]] = []
    for side, of_side in zip(ranks, places, strict=True):
        on_axis = (of_side.get(rank, {}).get(axis) for rank in side)
        found.append({None if place is None else place.rank for place in on_axis})
    is_alike = found[0] == found[1] and len(found[0]) > 1 and None not in found[0]
    return is_alike and not any(_cuts_parameters(axis, side) for side in ranks)


def _cuts_parameters(axis: str, ranks: Mapping[int, StepTensors]) -> bool:
    side = next(iter(ranks.values()))
    parameters = [number for number, key in enumerate(side.keys) if is_parameter(key.op_type)][:_TOLD]
    told = (told_placement(side.operands.attributes(number)).get(axis) for number in parameters)
    return any(held not in (None, Held.REPLICATED.value) for held in told)
