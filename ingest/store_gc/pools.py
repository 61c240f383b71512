"""What goes from the pools of steps: arrays that no commit of any rank refers to. No I/O and no clock."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from ingest.reader.text import counted
from ingest.store_gc.inventory import Extent, Inventory, StepInventory
from ingest.store_gc.plan import GcAction
from ingest.store_gc.policy import duration
from workers.model import StepKey


@dataclass(eq=False)
class Pools:
    """The pools of a store, and who refers to what is in them."""

    inventory: Inventory
    grace_s: float
    """How long an array stays after the last sign of anybody who may refer to it."""
    now: float
    """Seconds since the epoch."""

    def unused(self, going: Collection[StepKey], step: int | None = None) -> Extent:
        """Return the extent of the objects that nobody refers to after some steps have gone, of any age.

        Args:
            going: the steps that go, or lose their tensors.
            step: only what is in the pool of this step; None for all.
        """
        steps = self.inventory.pools if step is None else {step} & self.inventory.pools.keys()
        return sum((extent for number in steps for _, extent in self._without_users(number, going)), Extent())

    def actions(self, going: Collection[StepKey], notes: list[str]) -> Iterator[GcAction]:
        """Yield the removal of each array that nobody refers to; say in `notes` what stays."""
        waiting = Extent()
        for step in sorted(self.inventory.pools):
            seen_at = self._newest_sign(step)
            for path, extent in self._without_users(step, going):
                if self.now - max(extent.newest_at, seen_at) <= self.grace_s:
                    waiting += extent
                    continue
                why = "no commit refers to it"
                yield GcAction.at_path("pool", path, why, objects=extent.objects, nbytes=extent.nbytes)
        if waiting.objects:
            notes.append(
                f"{counted(waiting.objects, 'object')} in pools that no commit refers to "
                f"stay{'s' * (waiting.objects == 1)} until nothing was written "
                f"in their step for {duration(self.grace_s)}"
            )

    @cached_property
    def _members(self) -> Mapping[int, list[StepInventory]]:
        """By step, what the store holds of it: one for each rank."""
        members: dict[int, list[StepInventory]] = {}
        for step in self.inventory.steps:
            number = step.key.step
            if number is not None and number in self.inventory.pools:
                members.setdefault(number, []).append(step)
        return members

    def _without_users(self, step: int, going: Collection[StepKey]) -> Iterator[tuple[str, Extent]]:
        """Yield the arrays of a step that no commit refers to, except those of the steps that go."""
        members = self._members.get(step, [])
        if any(member.damage for member in members):
            return  # what a damaged commit refers to is not known
        used = {
            path
            for member in members
            if member.commit is not None and member.key not in going
            for path in member.commit.pool
        }
        yield from ((path, held) for path, held in self.inventory.pools[step].items() if path not in used)

    def _newest_sign(self, step: int) -> float:
        """Return when somebody committed a step last, or wrote into a generation that is not committed."""
        members = self._members.get(step, [])
        signs = [member.record.newest_at for member in members]
        signs += [held.whole.newest_at for member in members for held in member.uncommitted.values()]
        return max(signs, default=0.0)
