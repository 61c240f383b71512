"""Ranks that number their layers or experts from 0 each: which numbers those are in the reference.

Stages of a pipeline and ranks of experts may call their first layer `layers.0`, all of them. If A never has
numbers that B has, and each rank counts from 0, the values of some tensors show by how much a rank is off.
Where they do not show it, names stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ingest.questions.compare.held_tensors import HeldTensors
from ingest.questions.compare.step_tensors import StepTensors
from ingest.questions.placement.decide import fit_limit
from workers.arrays.sharded.agreement import part_error
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
    """By rank and family, by how much its numbers are less than those of the reference."""

    shifts: dict[int, dict[Family, int]] = field(default_factory=dict)
    is_known: bool = False
    """Whether they have been looked for: they are the same in all steps."""

    def learn(self, ranks: Mapping[int, StepTensors], b: HeldTensors) -> None:
        """Find the shifts by the values of one step, once.

        Raises:
            StoreError: a store cannot be reached.
            DumpError: a file of a dump changed, or cannot be read.
        """
        if self.is_known or len(ranks) < 2:
            return
        self.is_known = True
        numbers_b = _numbers(b.keys)
        of_ranks = {rank: _numbers(side.keys) for rank, side in ranks.items()}
        for family in _counted_locally(of_ranks, numbers_b):
            for rank, side in ranks.items():
                own = of_ranks[rank].get(family, set())
                shift = _shift(side, b, family, max(numbers_b[family]) - len(own) + 1) if own else 0
                if shift:
                    self.shifts.setdefault(rank, {})[family] = shift

    def apply(self, ranks: Mapping[int, StepTensors]) -> dict[int, StepTensors]:
        """Return the steps of all ranks with the numbers of the reference in their names."""
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
            f"ranks of A number {family}* from 0 each: "
            + ", ".join(
                f"rank {rank} has {family}{shifts[family]} and following"
                for rank, shifts in self.shifts.items()
                if family in shifts
            )
            for family in families
        ]


def renumbered(key: TensorKey, shifts: Mapping[Family, int]) -> TensorKey:
    """Return a key with the numbers of the reference."""
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


def _shift(side: StepTensors, b: HeldTensors, family: Family, highest: int) -> int:
    """Return the only shift with which tensors of a rank are parts of those of B; 0 if there is none."""
    places = {key: number for number, key in enumerate(b.keys)}
    fitting: list[set[int]] = []
    for number in _telling(side, family):
        key = side.keys[number]
        others = {shift: places.get(renumbered(key, {family: shift})) for shift in range(highest + 1)}
        shifts = {
            shift for shift, other in others.items() if other is not None and _is_part(side, number, b, other)
        }
        fitting += [shifts] if shifts else []  # a partial sum, or blocks, fit nowhere and tell nothing
        if len(fitting) == _FITTING:
            break
    common = set.intersection(*fitting) if fitting else set()
    return common.pop() if len(common) == 1 else 0


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


def _is_part(side: StepTensors, number: int, b: HeldTensors, other: int) -> bool:
    if not b.is_dumped(other):
        return False
    try:
        own, whole = elements_of([side.operand(number), b.operands(other)[0]])
        error = part_error(own, side.shapes[number], whole, b.shapes(other)[0])
    except (DamagedStore, ValueError):
        return False  # whoever compares them names what is wrong
    return error <= fit_limit([side.dtypes[number], b.dtype(other)])
