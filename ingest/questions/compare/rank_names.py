"""Names that ranks of a side give otherwise than the other side: of tied weights, and numbers from 0 on each.

Ranks that number their layers or experts from 0 each, as stages of a pipeline may, get the numbers of the
other side: if a side never has numbers that the other has, and each rank counts from 0, the values of some
tensors show by how much a rank is off. Where they do not show it, names stay as they are.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ingest.questions.compare.held_tensors import HeldTensors
from ingest.questions.compare.sources import StepTensors
from ingest.questions.placement.decide import fit_limit
from ingest.reader.mesh import Coordinates
from ingest.reader.operator_kinds import is_parameter
from workers.arrays.sharded.assembly import part_error
from workers.errors import DamagedStore
from workers.store.consolidated.blocks import TensorKey
from workers.tasks.operands import elements_of

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
    for key, content, shape in zip(side.keys, side.contents, side.shapes, strict=True):
        if is_parameter(key.op_type) and len(shape) > 1 and any(content):
            yield key.op_name, content
