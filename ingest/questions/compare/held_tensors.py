"""One step of all ranks of a side as one: every tensor once, with the ranks that have a piece of it.

Ranks that number their layers or experts from 0 each, as stages of a pipeline may, get the numbers of the
other side: if a side never has numbers that the other has, and each rank counts from 0, the values of some
tensors show by how much a rank is off. Where they do not show it, names stay as they are.

How ranks hold a tensor may be known before any element is read: by equal digests, or as marginals propose.
Marginals refute all plain ways but one with some thousand numbers, of which a step of a rank has all in one
request. The elements then have to confirm that way, in the same pass that measures the difference. Without
them, because the tensors were removed, the marginals are the answer.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ingest.questions.compare.dataflow import Dataflow
from ingest.questions.compare.step_tensors import StepTensors
from ingest.questions.compare.thresholds import relative_difference
from ingest.questions.placement.decide import Certainty, Decision, fit_limit
from ingest.reader.context.ge_graph import ModelOutput
from ingest.reader.mesh import REPLICATED, Coordinates
from ingest.reader.operator_kinds import StepPart, is_parameter, parts_of
from ingest.reader.unsharded import Told, grid_of, told_placement
from workers.arrays.comparison import Metrics
from workers.arrays.digest import DIGEST_BYTES, digest
from workers.arrays.marginals import Marginal
from workers.arrays.sharded.assembly import Assembly, Piece, Same, part_error
from workers.arrays.sharded.placement import (
    Dimension,
    Held,
    MarginalWay,
    MeshGrid,
    Placement,
    held_as,
    placements,
    ways_held,
)
from workers.arrays.sharded.placement_search import Pieces, ScoredWay, Search
from workers.arrays.statistics import FIELDS
from workers.errors import DamagedStore
from workers.model import StepKey
from workers.store.consolidated.blocks import TensorKey
from workers.tasks.operands import Operand, elements_of

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
            self._pieces[tensor] = self._described(tensor)
        return self._pieces[tensor]

    def _described(self, tensor: int) -> Pieces:
        first: dict[object, int] = {}
        twins = tuple(
            first.setdefault(digest if any(digest[0]) else number, number)
            for number, digest in enumerate(self.digests(tensor))
        )
        # Where the holders lie on the mesh, if that is known and they fill a part of it.
        places = [self.coordinates.get(holder.rank, {}) for holder in self.holders[tensor]]
        return Pieces(self.shapes(tensor), twins, grid_of(places, self._told(tensor)))

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
        """Return a digest of the digests of all pieces; zeros if one is not known."""
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


def call_of(key: TensorKey, number: int = 0) -> TensorKey:
    """Return what the tensors of a call of an operator have in common: by default, of its first call."""
    return key._replace(io="", slot=0, copy=0, occurrence=number)


def calls_of(ranks: Iterable[StepTensors]) -> dict[TensorKey, int]:
    """Return how often each operator was called, by its first call; of several ranks, the most."""
    calls: Counter[TensorKey] = Counter()
    for tensors in ranks:
        for key in tensors.keys:
            call = call_of(key)
            calls[call] = max(calls[call], key.occurrence + 1)
    return calls


def _counted(tensors: StepTensors, calls: Mapping[TensorKey, int]) -> Iterator[tuple[int, TensorKey]]:
    """Yield the tensors that others have, too, with calls counted from the first of these."""
    extra = _extra_calls(tensors, calls)
    if not extra:
        yield from enumerate(tensors.keys)
        return
    for number, key in enumerate(tensors.keys):
        if call_of(key, key.occurrence) not in extra:
            before = sum(call_of(key, earlier) in extra for earlier in range(key.occurrence))
            yield number, key._replace(occurrence=key.occurrence - before)


def _extra_calls(tensors: StepTensors, calls: Mapping[TensorKey, int]) -> set[TensorKey]:
    """Return the calls of passes that train nothing; and those that repeat the one before bit by bit.

    These are made to see shapes, or instead of keeping activations, if the other side called less often.
    """
    keys, own = tensors.keys, calls_of([tensors])
    extra = {call_of(keys[number], keys[number].occurrence) for number in Dataflow(keys).idle}
    contents: defaultdict[TensorKey, list[bytes]] = defaultdict(list)
    for number, key in enumerate(keys):
        contents[call_of(key, key.occurrence)].append(tensors.digests[number].tobytes())
    for call, digests in contents.items():
        is_repeated = digests == contents.get(call_of(call, call.occurrence - 1)) and all(map(any, digests))
        if is_repeated and 0 < calls.get(call_of(call), 0) < own[call_of(call)]:
            extra.add(call)
    return extra


def with_tied_weights(
    ranks: Mapping[int, StepTensors], other: Mapping[int, StepTensors]
) -> dict[int, StepTensors]:
    """Return the steps of all ranks with one name for the copies of a tied weight: that which `other` has.

    The first and the last stage of a pipeline hold the weight of the embedding and of the head, and its
    gradient in two parts. They are one weight if their digests are known and equal, no other parameter has
    these, and `other` does not know one of the two names.
    """
    known = {name for side in other.values() for name, _ in _weights(side)}
    holders: defaultdict[bytes, defaultdict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for rank, side in ranks.items():
        for name, content in _weights(side):
            holders[content][name].add(rank)
    names: dict[str, str] = {}
    for of_name in holders.values():
        first, *further = sorted(of_name, key=known.__contains__, reverse=True)
        if len(further) == 1 and first in known and further[0] not in known:
            names |= {further[0]: first} if of_name[first].isdisjoint(of_name[further[0]]) else {}
    if not names:
        return dict(ranks)
    return {
        rank: replace(
            side, keys=[key._replace(op_name=names.get(key.op_name, key.op_name)) for key in side.keys]
        )
        for rank, side in ranks.items()
    }


def _weights(side: StepTensors) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the digest of each parameter of several axes, if that is known."""
    for key, content, shape in zip(side.keys, side.contents, side.shapes, strict=True):
        if is_parameter(key.op_type) and len(shape) > 1 and any(content):
            yield key.op_name, content


def are_cut_into_other_calls(a: Mapping[int, StepTensors], b: Mapping[int, StepTensors]) -> bool:
    """Return whether both sides read the same samples in as many calls, but other samples in each of them.

    Micro-batches of replicas are cut from the share of each, those of one rank from all. Whole numbers show
    it, such as tokens: the first of which there are several calls.

    Raises:
        StoreError: a store cannot be reached.
        DumpError: a file of a dump changed, or cannot be read.
    """
    several = [{rank: side for rank, side in ranks.items() if _has_several_calls(side)} for ranks in (a, b)]
    if not all(several):
        return False
    samples = _same_samples(*several, calls=(a, b))
    return samples is not None and samples[0].keys() == samples[1].keys() and samples[0] != samples[1]


def are_cut_into_more_calls(a: Mapping[int, StepTensors], b: Mapping[int, StepTensors]) -> bool:
    """Return whether all ranks read the same samples on both sides, in calls of other sizes.

    That is, without gradients of parameters, which would tell whether both computed the same: the next
    parameters do.

    Raises:
        StoreError: a store cannot be reached.
        DumpError: a file of a dump changed, or cannot be read.
    """
    if any(StepPart.PARAMETER_GRADIENT in side.parts for ranks in (a, b) for side in ranks.values()):
        return False
    samples = _same_samples(a, b, calls=(a, b))
    return samples is not None and samples[0].keys() != samples[1].keys()


_Ranks: TypeAlias = Mapping[int, StepTensors]


def _same_samples(
    a: _Ranks, b: _Ranks, *, calls: tuple[_Ranks, _Ranks]
) -> tuple[dict[int, set[bytes]], dict[int, set[bytes]]] | None:
    """Return the samples by the number of the call; None if both sides do not read the same ones.

    Those of the first tensor that is read in several calls on either side. `calls` are of which ranks.
    """
    of_a = _calls_with_samples(a, calls_of(calls[1].values()))
    of_b = _calls_with_samples(b, calls_of(calls[0].values()))
    both = (key for key in of_b if key in of_a)
    first = next((key for key in both if any(n for n, *_ in (*of_a[key], *of_b[key]))), None)
    if first is None:
        return None
    try:
        samples = _samples_by_call(of_a[first]), _samples_by_call(of_b[first])
    except (DamagedStore, ValueError):
        return None  # whoever compares them names what is wrong
    read_a, read_b = (set().union(*side.values()) for side in samples)
    return samples if read_a == read_b else None


#: The number of a call, and a tensor of it: the step of a rank and the number there.
_Call: TypeAlias = tuple[int, StepTensors, int]


def _has_samples(side: StepTensors, number: int) -> bool:
    """Return whether a tensor has whole numbers along several axes, as tokens of samples have."""
    return "int" in side.dtypes[number] and len(side.shapes[number]) > 1


def _has_several_calls(side: StepTensors) -> bool:
    return any(key.occurrence and _has_samples(side, number) for number, key in enumerate(side.keys))


def _calls_with_samples(
    ranks: Mapping[int, StepTensors], calls: Mapping[TensorKey, int]
) -> dict[TensorKey, list[_Call]]:
    """Return the tensors that have samples, by the key in the first call."""
    found: defaultdict[TensorKey, list[_Call]] = defaultdict(list)
    for side in ranks.values():
        for number, key in _counted(side, calls):
            if _has_samples(side, number) and side.dumped[number]:
                found[key._replace(occurrence=0)].append((key.occurrence, side, number))
    return found


def _samples_by_call(tensors: Iterable[_Call]) -> dict[int, set[bytes]]:
    samples: defaultdict[int, set[bytes]] = defaultdict(set)
    for call, side, number in tensors:
        (elements,) = elements_of([side.operand(number)])
        shape = side.shapes[number]
        rows = elements.read(0, math.prod(shape)).reshape(-1, shape[-1])
        samples[call] |= {row.tobytes() for row in rows}
    return samples


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
        for number, key in _counted(ranks[rank], calls):
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
    """Return whether the dump tells of one of the first parameters that an axis cuts it."""
    side = next(iter(ranks.values()))
    parameters = [number for number, key in enumerate(side.keys) if is_parameter(key.op_type)][:_TOLD]
    told = (told_placement(side.operands.attributes(number)).get(axis) for number in parameters)
    return any(held not in (None, Held.REPLICATED.value) for held in told)


def same_content(a: HeldTensors, tensor_a: int, b: HeldTensors, tensor_b: int) -> Decision | None:
    """Return that a tensor is replicated on both sides, if all pieces have equal digests; else None."""
    digests = {*a.digests(tensor_a), *b.digests(tensor_b)}
    if len(digests) != 1 or not any(next(iter(digests))[0]):
        return None
    way = ScoredWay(replicated_on(a, tensor_a), replicated_on(b, tensor_b), 0.0, 1.0, 0.0)
    return Decision(way, Certainty.CERTAIN, "all pieces have the same digest", search=Search((way,)))


def replicated_on(side: HeldTensors, tensor: int) -> Placement:
    """Return the placement of a tensor of which all ranks of a side hold the same."""
    shapes = side.shapes(tensor)
    if len(shapes) == 1:
        return Placement((), Piece(0, shapes[0]))
    parts: tuple[Assembly, ...] = tuple(Piece(number, shape) for number, shape in enumerate(shapes))
    grid = side.pieces(tensor).grid
    names = grid.names if grid is not None and len(grid.names) == 1 else ("",)
    return Placement((Dimension(Held.REPLICATED, len(shapes), None, names[0]),), Same(parts))


@dataclass(frozen=True, slots=True)
class MarginalProposal:
    """The only plain way that marginals leave."""

    decision: Decision
    others: float
    """By how much the marginals of the next best way are off; infinite if there is none."""
    is_shown: bool
    """Whether the marginals also tell the order of what is cut."""


def propose(a: HeldTensors, tensor_a: int, b: HeldTensors, tensor_b: int) -> MarginalProposal | None:
    """Return the way that marginals leave; None if they are not known, leave several or none.

    Of replicas that differ, the worst has to be found by elements; and a mesh of several dimensions has more
    ways than marginals are compared for.
    """
    pieces, whole = a.pieces(tensor_a), b.pieces(tensor_b)
    name = _dimension(pieces.grid, len(pieces.shapes))
    if name is None or (len(whole.shapes) > 1 and not whole.identical):
        return None
    of_whole = b.marginals(tensor_b, 0)
    of_pieces = [a.marginals(tensor_a, place) for place in range(len(pieces.shapes))]
    if not of_whole or not all(of_pieces):
        return None
    ways = ways_held(of_pieces, pieces.shapes, of_whole, whole.shapes[0])
    best = held_as(ways)
    if best is None or (best.held is Held.REPLICATED and not pieces.identical):
        return None
    placement = _placement(best, name, pieces.shapes, whole.shapes[0])
    if placement is None:
        return None
    others = min((way.error for way in ways[1:]), default=math.inf)
    scored = ScoredWay(placement, replicated_on(b, tensor_b), best.error)
    text = f"the marginals agree within {best.error:.1e}; {_beyond(others)}"
    decision = Decision(scored, Certainty.BY_MARGINALS, text, search=Search((scored,)))
    return MarginalProposal(decision, others, is_shown=best.axis is None or best.axis in of_whole)


def confirmed(proposal: MarginalProposal, metrics: Metrics, dtypes: Sequence[str]) -> Decision | None:
    """Return the decision that elements confirm; None if they do not agree in the proposed way."""
    error = relative_difference(metrics)
    way = proposal.decision.way
    if way is None or error > fit_limit(dtypes):
        return None
    factor = metrics.cosine * metrics.norm_ratio
    rest = math.sqrt(max(1.0 - metrics.cosine**2, 0.0))
    scored = replace(way, error=error, factor=factor, error_besides_factor=rest)
    text = f"relative error {error:.1e}; by marginals, {_beyond(proposal.others)}"
    return Decision(scored, Certainty.CERTAIN, text, search=Search((scored,)))


def _beyond(others: float) -> str:
    if math.isinf(others):
        return "the shapes allow no other plain way"
    return f"every other plain way is off by {others:.1e} or more"


def _dimension(grid: MeshGrid | None, count: int) -> str | None:
    """Return the name of the only dimension along which pieces lie in order; None if there are several."""
    if grid is None:
        return ""
    is_plain = len(grid.names) == 1 and np.array_equal(grid.numbers, np.arange(count))
    return grid.names[0] if is_plain else None


def _placement(
    way: MarginalWay, name: str, shapes: Sequence[tuple[int, ...]], whole: tuple[int, ...]
) -> Placement | None:
    if len(shapes) == 1:
        return None
    grid = MeshGrid((name,), np.arange(len(shapes)))
    fitting = (
        placement
        for placement in placements(grid, shapes, whole)
        if (placement.dimensions[0].held, placement.dimensions[0].axis) == (way.held, way.axis)
    )
    return next(fitting, None)


#: The word before a number in a name, such as `layers.` or `layer_id=`.
Family: TypeAlias = str

_NUMBER = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")
_WORD = re.compile(r"\w*\W*$")
#: How many tensors of a rank must be found under one number, and how many are tried.
_FITTING, _TRIED = 3, 12


@dataclass(slots=True)
class LocalNumbers:
    """By rank of a side and family, by how much its numbers are less than those of the other side."""

    side: str
    """What the side is called."""
    shifts: dict[int, dict[Family, int]] = field(default_factory=dict)
    is_known: bool = False
    """Whether they have been looked for: they are the same in all steps."""

    def learn(
        self, ranks: Mapping[int, StepTensors], others: HeldTensors, places: Mapping[int, Coordinates]
    ) -> bool:
        """Find the shifts by the values of one step, once; return whether there are any.

        Args:
            ranks: the step on the ranks of this side.
            others: the same step of the other side.
            places: of the ranks in the mesh: those of one stage have the same numbers.

        Raises:
            StoreError: a store cannot be reached.
            DumpError: a file of a dump changed, or cannot be read.
        """
        if self.is_known or len(ranks) < 2:
            return False
        self.is_known = True
        numbers = _numbers(others.keys)
        of_ranks = {rank: _numbers(side.keys) for rank, side in ranks.items()}
        for family in _counted_locally(of_ranks, numbers):
            holding = {rank: side for rank, side in ranks.items() if family in of_ranks[rank]}
            stages = {rank: places.get(rank, {}).get("pp", rank) for rank in holding}
            highest = {rank: max(numbers[family]) - len(of_ranks[rank][family]) + 1 for rank in holding}
            by_stage = _shift_by_stage(holding, stages, others, family, highest)
            if by_stage.keys() >= {*stages.values()}:  # names of some ranks alone would be two layers in one
                for rank in filter(lambda rank: by_stage[stages[rank]], holding):
                    self.shifts.setdefault(rank, {})[family] = by_stage[stages[rank]]
        return bool(self.shifts)

    def apply(self, ranks: Mapping[int, StepTensors]) -> dict[int, StepTensors]:
        """Return the steps of all ranks with the numbers of the other side in their names."""
        return {
            rank: replace(side, keys=[renumbered(key, self.shifts[rank]) for key in side.keys])
            if rank in self.shifts
            else side
            for rank, side in ranks.items()
        }

    @property
    def notes(self) -> list[str]:
        """A sentence for each family that was renumbered."""
        families = sorted({family for shifts in self.shifts.values() for family in shifts})
        return [
            f"ranks of {self.side} number {family}* from 0 each: "
            + ", ".join(
                f"rank {rank} has {family}{shifts[family]} and following"
                for rank, shifts in self.shifts.items()
                if family in shifts
            )
            for family in families
        ]


def renumbered(key: TensorKey, shifts: Mapping[Family, int]) -> TensorKey:
    """Return a key with the numbers of the other side."""
    parts, end = [], 0
    for match, family in _families(key.op_name):
        parts += [key.op_name[end : match.start()], str(int(match[0]) + shifts.get(family, 0))]
        end = match.end()
    return key._replace(op_name="".join([*parts, key.op_name[end:]]))


def _families(name: str) -> Iterator[tuple[re.Match[str], Family]]:
    for match in _NUMBER.finditer(name):
        word = _WORD.search(name, 0, match.start())
        yield match, word[0] if word else ""


def _numbers(keys: list[TensorKey]) -> dict[Family, set[int]]:
    """Return by family the numbers that names have."""
    numbers: dict[Family, set[int]] = {}
    for key in keys:
        for match, family in _families(key.op_name):
            numbers.setdefault(family, set()).add(int(match[0]))
    return numbers


def _counted_locally(
    of_ranks: Mapping[int, Mapping[Family, set[int]]], numbers_b: Mapping[Family, set[int]]
) -> list[Family]:
    """Return the families of which B has numbers that A lacks, and whose ranks count from 0 each."""
    families = []
    for family, all_numbers in numbers_b.items():
        own = [numbers[family] for numbers in of_ranks.values() if family in numbers]
        from_zero = all(numbers == set(range(len(numbers))) for numbers in own)
        if len(own) > 1 and from_zero and set().union(*own) < all_numbers:
            families.append(family)
    return families


def _shift_by_stage(
    ranks: Mapping[int, StepTensors],
    stages: Mapping[int, object],
    others: HeldTensors,
    family: Family,
    highest: Mapping[int, int],
) -> dict[object, int]:
    """Return the shifts of stages that any of their ranks shows; `highest` is the largest of each rank."""
    by_stage: dict[object, int] = {}
    for rank, side in ranks.items():
        if stages[rank] not in by_stage:
            shift = _shift(side, others, family, highest[rank])
            by_stage |= {} if shift is None else {stages[rank]: shift}
    return by_stage


def _shift(side: StepTensors, others: HeldTensors, family: Family, highest: int) -> int | None:
    """Return the only shift with which tensors of a rank are parts of the others; None if none is shown."""
    places = {key: number for number, key in enumerate(others.keys)}
    fitting: list[set[int]] = []
    for number in _telling(side, family):
        key = side.keys[number]
        named = {shift: places.get(renumbered(key, {family: shift})) for shift in range(highest + 1)}
        possible = {shift: other for shift, other in named.items() if other is not None}
        shifts = {shift for shift, other in possible.items() if _is_part(side, number, others, other)}
        # A partial sum, or blocks, fit nowhere and tell nothing; nor do ones that fit everywhere.
        fitting += [shifts] if 0 < len(shifts) < len(possible) else []
        if len(fitting) == _FITTING:
            break
    common = set.intersection(*fitting) if fitting else set()
    return common.pop() if len(common) == 1 else None


def _telling(side: StepTensors, family: Family) -> list[int]:
    """Return some tensors of a family, parameters first: activations may be sums that B does not have."""
    members = [
        number
        for number, key in enumerate(side.keys)
        if side.dumped[number] and any(own == family for _, own in _families(key.op_name))
    ]
    return sorted(members, key=lambda number: (not _is_parameter(side.keys[number]), number))[:_TRIED]


def _is_parameter(key: TensorKey) -> bool:
    name = f"{key.op_type}.{key.op_name}".lower()
    return "grad" not in name and ("param" in name or "weight" in name)


def _is_part(side: StepTensors, number: int, others: HeldTensors, other: int) -> bool:
    """Return whether a tensor of a rank is a part of a piece of another, or that of it."""
    if not others.is_dumped(other):
        return False
    limit = fit_limit([side.dtypes[number], others.dtype(other)])
    try:
        elements = elements_of([side.operand(number), *others.operands(other)])
        own, *pieces = zip(elements, (side.shapes[number], *others.shapes(other)), strict=True)
        pairs = (sorted((own, piece), key=lambda one: math.prod(one[1])) for piece in pieces)
        errors = [part_error(*part, *whole) for part, whole in pairs]
    except (DamagedStore, ValueError):
        return False  # whoever compares them names what is wrong
    return min(errors) <= limit
