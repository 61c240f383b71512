"""Which sequences, and which columns of which modules, belong together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product, takewhile
from typing import TypeAlias

from ingest.identities.definition import Array
from ingest.questions.rollout.sequences import WHOLE, Lane, TokenSequence
from ingest.questions.rollout.stretches import Arrived, FibreStretch

Lanes: TypeAlias = Mapping[int, Lane]


@dataclass(frozen=True, slots=True, eq=False)
class SequencePair:
    """One sequence as both sides computed it."""

    ranks: tuple[int, int]
    """Of the trainer and of the rollout."""
    sequences: tuple[TokenSequence, TokenSequence]
    length: int
    """How many tokens they have in common from the beginning."""

    def common(self, side: int) -> TokenSequence:
        """Return the common tokens as a side computed them."""
        own = self.sequences[side]
        return TokenSequence(own.number, own.prefixes[: self.length], own.places[: self.length])


@dataclass(frozen=True, slots=True)
class ModuleLink:
    """Columns of what a module of the trainer and one of the rollout write."""

    modules: tuple[str, str]
    ranks: tuple[int, int]
    firsts: tuple[int, int] = (0, 0)
    length: int = 0
    """How many columns; 0: all."""

    def columns(self, values: Array, side: int) -> Array:
        """Return its columns of the rows of a side."""
        return values[:, self.firsts[side] :][:, : self.length] if self.length else values


def sequence_pairs(a: Lanes, b: Lanes) -> Iterator[SequencePair]:
    """Yield for each sequence of the rollout, and each rank of both, the trainer's that has most of it."""
    for b_rank, lane in b.items():
        for sequence in lane.sequences:
            for a_rank, other in a.items():
                best = max(other.sequences, key=lambda each: _common(each, sequence), default=None)
                if best is not None and (length := _common(best, sequence)):
                    yield SequencePair((a_rank, b_rank), (best, sequence), length)


def _common(one: TokenSequence, other: TokenSequence) -> int:
    pairs = zip(one.prefixes, other.prefixes, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def module_links(a: Lanes, b: Lanes, arrived: tuple[Arrived, ...]) -> list[ModuleLink]:
    """Return which modules belong together: by their weights, and else by their names."""
    links: dict[ModuleLink, None] = {}
    for each in arrived:
        module, _, kind = each.name.rpartition(".")
        has_output = each.rank in b and module in b[each.rank].outputs
        if has_output and (kind == "weight" or len(each.shape) == 3):
            for stretch in each.stretches:
                links |= dict.fromkeys(_of_stretch(a, b[each.rank], each, stretch))
    known = [*links]
    for one, other in product(a.values(), b.values()):
        links |= dict.fromkeys(_of_names(one, other, known))
        links |= dict.fromkeys(_of_results(one, other, [*links]))
    return [*links]


def _of_results(a: Lane, b: Lane, links: Sequence[ModuleLink]) -> Iterator[ModuleLink]:
    """Yield the results besides the first of modules that belong together."""
    for link in links:
        for name, stream in a.outputs.items():
            other = link.modules[1] + name.removeprefix(link.modules[0])
            is_other = stream.slot and stream.module == link.modules[0] and other in b.outputs
            if is_other and link.firsts == (0, 0) and link.ranks == (a.rank, b.rank):
                yield ModuleLink((name, other), link.ranks)


def _of_names(a: Lane, b: Lane, links: Sequence[ModuleLink]) -> Iterator[ModuleLink]:
    """Yield modules that are left and have the same name or the same parts, and write as much."""
    known = {link.modules[1] for link in links if link.ranks[1] == b.rank}
    names = [name for name in b.outputs if name not in known and f"{name}.weight" in b.parameters]
    for name, module in [*zip(names, names, strict=True), *_of_contents(a, b, links)]:
        same = a.outputs.get(name)
        if same is not None and a.width(same) == b.width(b.outputs[module]):
            yield ModuleLink((name, module), (a.rank, b.rank))


def _of_contents(a: Lane, b: Lane, links: Sequence[ModuleLink]) -> Iterator[tuple[str, str]]:
    """Yield modules without weights of their own that return one thing, and whose parts belong together."""
    by_side: list[dict[frozenset[str], list[str]]] = [{}, {}]
    for side, lane in enumerate((a, b)):
        for name in (each for each in lane.outputs if len(lane.results(each)) == 1):
            inside = frozenset(
                link.modules[0]
                for link in links
                if name == WHOLE or link.modules[side].startswith(f"{name}.")
            )
            if inside:
                by_side[side].setdefault(inside, []).append(name)
    for inside, names in by_side[0].items():
        others = sorted(by_side[1].get(inside, []), key=_outermost)
        yield from zip(sorted(names, key=_outermost), others, strict=False)


def _outermost(name: str) -> tuple[bool, int]:
    return name != WHOLE, len(name)


def _of_stretch(a: Lanes, lane: Lane, arrived: Arrived, stretch: FibreStretch) -> Iterator[ModuleLink]:
    """Yield what a stretch of a weight tells about outputs."""
    module = arrived.name.rpartition(".")[0]
    name, _, kind = stretch.of.rpartition(".")
    name = name.rpartition(".")[0] if stretch.plus else name
    for rank, other in a.items():
        held = other.parameters.get(stretch.of)
        if held is None or not (kind == "weight" or len(held.shape) == 3) or name not in other.outputs:
            continue
        modules, ranks = (name, module), (rank, lane.rank)
        axes = _output_axis(other, name, held.shape), _output_axis(lane, module, arrived.shape)
        is_here = rank == stretch.of_rank or stretch.of_rank not in a
        if stretch.plus:
            yield ModuleLink(modules, ranks)
        elif len(arrived.shape) == 2 and (stretch.of_axis, stretch.axis) == axes:
            # A shard of another rank is that of other columns.
            if is_here:
                yield ModuleLink(modules, ranks, (stretch.first, stretch.begin), stretch.length)
        elif other.width(other.outputs[name]) == lane.width(lane.outputs[module]):
            yield ModuleLink(modules, ranks)


def _output_axis(lane: Lane, module: str, shape: tuple[int, ...]) -> int:
    """Return along which axis of its weight the outputs of a module lie."""
    return 0 if shape and shape[0] == lane.width(lane.outputs[module]) else 1
