"""From an inventory and a policy to a plan: arithmetic, no I/O and no clock."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import get_args

from ingest.reader.text import counted
from ingest.steps.keeping import newest_steps
from ingest.store_gc.inventory import CommitFacts, Extent, Generation, Inventory, StepInventory
from ingest.store_gc.plan import GcAction, GcPlan, GcPolicy, What, duration, shortly
from ingest.units import human_bytes
from workers.errors import UsageError
from workers.model import StepKey
from workers.store.objects import UnfinishedUpload
from workers.store.packed import pool


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
            members = self._members.get(step, [])
            signs = [member.record.newest_at for member in members]
            signs += [held.whole.newest_at for member in members for held in member.uncommitted.values()]
            seen_at = max(signs, default=0.0)
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


#: The most steps that a note names.
_MAX_NAMED = 5
_ORDER: dict[str, int] = {what: number for number, what in enumerate(get_args(What))}


def make_plan(inventory: Inventory, policy: GcPolicy, now: float) -> GcPlan:
    """Decide what goes.

    Args:
        inventory: what the store holds.
        policy: what to remove and what to keep.
        now: seconds since the epoch.
    """
    return _Planner(inventory, policy, now).plan()


@dataclass(frozen=True, slots=True)
class _CommittedStep:
    """A step of a rank that readers can see. Run files are not steps."""

    inventory: StepInventory
    commit: CommitFacts
    number: int

    @property
    def key(self) -> StepKey:
        return self.inventory.key

    @property
    def tensors(self) -> Extent:
        """The payloads of the committed generation."""
        return self.inventory.generations.get(self.commit.fingerprint, Generation()).tensors

    def removal(self, why: str) -> GcAction:
        """Return the action that removes the step."""
        extent = sum((held.whole for held in self.inventory.generations.values()), self.inventory.record)
        return _action("step", self.key, self.commit.fingerprint, extent, why)


class _Planner:
    def __init__(self, inventory: Inventory, policy: GcPolicy, now: float) -> None:
        self.inventory, self.policy, self.now = inventory, policy, now
        self.notes: list[str] = []
        self.steps = [
            _CommittedStep(step, step.commit, step.key.step)
            for step in inventory.steps
            if step.commit is not None and step.key.step is not None
        ]
        self.numbers = sorted({step.number for step in self.steps})
        self.anomalous = {step.number for step in self.steps if step.commit.is_anomalous}
        self.anomalous |= inventory.anomalous_steps & set(self.numbers)
        self.newest = newest_steps((step.key for step in self.steps), policy.keep_last or 0)
        self.pools = Pools(inventory, max(policy.grace_s, pool.GRACE_S), now)
        self.busy = {
            step.key
            for step in self.steps
            if (not all(self._is_old(generation.whole) for generation in step.inventory.uncommitted.values()))
        }

    def plan(self) -> GcPlan:
        actions = self._chosen() if self.policy.is_choice else self._by_policy()
        actions.sort(
            key=lambda action: (
                _ORDER[action.what],
                action.key.order if action.key else (),
                action.path,
                action.upload,
            )
        )
        self._note_what_stays()
        return GcPlan(
            self.inventory.url,
            datetime.fromtimestamp(self.now, UTC).isoformat(timespec="seconds"),
            self.policy,
            tuple(actions),
            tuple(self.notes),
            self.inventory.total.nbytes,
        )

    def _by_policy(self) -> list[GcAction]:
        """Return everything that the policy gives a reason for, and what no reader can see."""
        steps = self._steps_by_age_and_number()
        tensors = self._tensors(steps)
        remains, temporaries = list(self._remains()), list(self._temporaries())
        self._shrink_to_size(steps, tensors, [*remains, *temporaries])
        return [
            *steps.values(),
            *tensors.values(),
            *self.pools.actions({*steps, *tensors}, self.notes),
            *(action for action in remains if action.key not in steps),
            *(one for one in temporaries if not any(one.path.startswith(f"{key.path}/") for key in steps)),
            *self._uploads(),
            *self._unfinished_changes(),
        ]

    def _chosen(self) -> list[GcAction]:
        """Return the steps that were chosen by rank and number, and nothing else.

        Raises:
            UsageError: a chosen rank or step is not in the store, or none of the chosen steps is of it.
        """
        chosen = self._named_steps()
        if bare := [key for key, step in chosen.items() if step.commit is None and not step.damage]:
            self.notes.append(
                f"{_name_some(bare)}: not committed; `gc` without --rank and --step removes what is there"
            )
        return [
            step.removal("chosen by rank and step")
            for step in self.steps
            if step.key in chosen and step.key not in self.busy
        ]

    def _named_steps(self) -> dict[StepKey, StepInventory]:
        """Return what the store has of the chosen ranks and steps, committed or not."""
        policy = self.policy
        stored = [step for step in self.inventory.steps if step.key.step is not None]
        self._refuse_absent("no rank {}", policy.ranks, {step.key.rank for step in stored})
        self._refuse_absent("no step {}", policy.steps, {step.key.step for step in stored})
        named = {
            step.key: step
            for step in stored
            if (policy.ranks is None or step.key.rank in policy.ranks)
            and (policy.steps is None or step.key.step in policy.steps)
        }
        self._refuse_absent("rank {} has none of these steps", policy.ranks, {key.rank for key in named})
        self._refuse_absent("none of these ranks has step {}", policy.steps, {key.step for key in named})
        return named

    def _refuse_absent(
        self, problem: str, wanted: Collection[int] | None, known: Container[int | None]
    ) -> None:
        absent = [number for number in wanted or () if number not in known]
        if absent:
            raise UsageError(
                f"{self.inventory.url}: {problem.format(min(absent))}",
                hint="`dump-ingest ls` lists the steps of each rank.",
            )

    def _steps_by_age_and_number(self) -> dict[StepKey, GcAction]:
        """Return the steps that go because of their age, or because newer ones are kept."""
        policy = self.policy
        others = (policy.older_than_s, policy.max_bytes, policy.tensors_around_anomalies)
        is_newest_only = policy.keep_last is not None and others == (None, None, None)
        actions: dict[StepKey, GcAction] = {}
        for step in self.steps:
            if not self._may_go(step):
                continue
            if policy.older_than_s is not None:
                if self.now - step.commit.committed_at > policy.older_than_s:
                    actions[step.key] = step.removal(
                        f"committed more than {duration(policy.older_than_s)} ago"
                    )
            elif is_newest_only:
                actions[step.key] = step.removal(f"not among the newest {policy.keep_last} of its rank")
        return actions

    def _tensors(self, removed: Collection[StepKey]) -> dict[StepKey, GcAction]:
        """Return the steps that lose their tensors."""
        around = self.policy.tensors_around_anomalies
        near = set(self.numbers) if around is None else _near(self.numbers, self.anomalous, around)
        actions = {
            step.key: _action("tensors", step.key, step.commit.fingerprint, step.tensors, why)
            for step in self.steps
            if step.key not in removed and step.key not in self.busy
            if (why := self._why_tensors_go(step, near))
        }
        if around is not None and (unseen := set(self.numbers) - self.inventory.evaluated_steps):
            self.notes.append(
                f"rules over several ranks have not been evaluated for steps {shortly(unseen)}: what they "
                "would find there does not count as an anomaly (`dump-ingest consolidate` evaluates them)"
            )
        return actions

    def _why_tensors_go(self, step: _CommittedStep, near: Collection[int]) -> str:
        """Return why the tensors of a step go; "" if they stay. The steps `near` anomalies keep theirs."""
        if not step.tensors.objects:
            return ""
        if not step.commit.has_tensors:
            # Left by a gc that was killed, or written by somebody who is about to commit them after all.
            return "no commit points to them" if self._is_old(step.tensors) else ""
        if step.number in near or step.key in self.newest:
            return ""
        return f"no anomaly within {self.policy.tensors_around_anomalies} dumped steps"

    def _shrink_to_size(
        self, steps: dict[StepKey, GcAction], tensors: dict[StepKey, GcAction], others: Sequence[GcAction]
    ) -> None:
        """Move steps into `steps`, lowest number first, until the store is not larger than it may be."""
        limit = self.policy.max_bytes
        if limit is None:
            return
        going = Counter[StepKey | None]()
        rest = (action for action in others if action.key not in steps)
        for action in (*steps.values(), *tensors.values(), *rest):
            going[action.key] += action.nbytes  # None stands for temporary objects
        by_number: dict[int, list[_CommittedStep]] = {}
        for step in self.steps:
            by_number.setdefault(step.number, []).append(step)
        left = self.inventory.total.nbytes - going.total() - self.pools.unused({*steps, *tensors}).nbytes
        for number in self.numbers:
            if left <= limit:
                return
            left += self.pools.unused({*steps, *tensors}, number).nbytes
            for step in by_number[number]:
                if step.key not in steps and self._may_go(step):
                    removal = steps[step.key] = step.removal("the oldest, to fit the size")
                    tensors.pop(step.key, None)
                    # Its tensors, or previous generations, may be on their way out already.
                    left -= removal.nbytes - going[step.key]
            left -= self.pools.unused({*steps, *tensors}, number).nbytes
        if left > limit:
            self.notes.append(
                f"the store will still have {human_bytes(left)}, more than {human_bytes(limit)}: "
                "the rest is protected, or does not belong to a step"
            )

    def _remains(self) -> Iterator[GcAction]:
        """Yield the objects that no commit refers to, if nobody can still be writing or reading them."""
        waiting = Extent()
        for step in self.inventory.steps:
            if step.damage:
                continue
            for name, generation in step.uncommitted.items():
                # Readers may have opened a previous generation until the commit that replaced it.
                if not self._is_old(generation.whole + Extent(newest_at=step.record.newest_at)):
                    waiting += generation.whole
                    continue
                why = "a previous generation" if step.commit else "never committed, or removed"
                yield _action("remains", step.key, name, generation.whole, why)
            if not step.generations and not step.record.objects:
                yield _action("remains", step.key, "", Extent(), "an empty directory")
        if waiting.objects:
            self.notes.append(
                f"{counted(waiting.objects, 'object')} ({human_bytes(waiting.nbytes)}) "
                "that no commit points to "
                f"stay{'s' * (waiting.objects == 1)} until nothing was written next to them for "
                f"{duration(self.policy.grace_s)}"
            )

    def _temporaries(self) -> Iterator[GcAction]:
        for path, extent in sorted(self.inventory.temporaries.items()):
            if self._is_old(extent):
                why = "left by a writer that was killed"
                yield GcAction.at_path("temporary", path, why, objects=extent.objects, nbytes=extent.nbytes)

    def _unfinished_changes(self) -> Iterator[GcAction]:
        for path, extent in sorted(self.inventory.unfinished_changes.items()):
            if self._is_old(extent):
                why = "a writer was killed while it changed a commit"
                yield GcAction.at_path("announcement", path, why)

    def _uploads(self) -> Iterator[GcAction]:
        """Yield the uploads that were never completed, if nothing was written into them for the grace period.

        They do not count in the size of the store: no listing of objects has them.
        """
        old: list[UnfinishedUpload] = []
        young: list[UnfinishedUpload] = []
        for upload in self.inventory.uploads:
            (old if self.now - upload.written_at > self.policy.grace_s else young).append(upload)
        if young:
            self.notes.append(
                f"{len(young)} uploads in parts ({human_bytes(sum(upload.nbytes for upload in young))}) are "
                f"under way, or were left within {duration(self.policy.grace_s)}: they stay"
            )
        if self.inventory.uploads_unknown:
            self.notes.append(f"uploads that were never completed: {self.inventory.uploads_unknown}")
        if not old:
            return
        oldest = datetime.fromtimestamp(min(upload.written_at for upload in old), UTC)
        why = f"never completed; nothing written since {oldest:%Y-%m-%d %H:%M} UTC or later"
        for upload in old:
            yield GcAction.at_path("upload", upload.key, why, nbytes=upload.nbytes, upload=upload.upload_id)

    def _may_go(self, step: _CommittedStep) -> bool:
        """Return whether nothing protects a step."""
        is_kept = self.policy.keep_anomalous and step.number in self.anomalous
        return not is_kept and step.key not in self.newest and step.key not in self.busy

    def _is_old(self, extent: Extent) -> bool:
        return self.now - extent.newest_at > self.policy.grace_s

    def _note_what_stays(self) -> None:
        policy = self.policy
        if policy.keep_anomalous and self.anomalous:
            self.notes.append(f"steps with anomalies are kept: {shortly(self.anomalous)}")
        elif policy.tensors_around_anomalies is not None:
            known = f"anomalies are known in steps {shortly(self.anomalous)}"
            self.notes.append(known if self.anomalous else "no step with an anomaly is known")
        if self.busy:
            within = duration(policy.grace_s)
            self.notes.append(
                f"{_name_some(self.busy)}: left alone, because another generation is younger than {within}"
            )
        if damaged := {step.key for step in self.inventory.steps if step.damage}:
            self.notes.append(
                f"{_name_some(damaged)}: left alone, because the commit is damaged (see `dump-ingest verify`)"
            )


def _name_some(keys: Collection[StepKey]) -> str:
    """Name the first few of these steps, and say how many more there are."""
    ordered = sorted(keys, key=lambda key: key.order)
    more = f" and {len(ordered) - _MAX_NAMED} more" if len(ordered) > _MAX_NAMED else ""
    return ", ".join(map(str, ordered[:_MAX_NAMED])) + more


def _near(numbers: Sequence[int], anomalous: Collection[int], around: int) -> set[int]:
    """Return the steps that are at most `around` dumped steps from one with an anomaly, and the newest.

    An anomaly may still come after the newest steps; and not all rules may have looked at the last one yet.
    """
    near = set(numbers[-max(around, 1) :])
    for step in anomalous:
        place = bisect_left(numbers, step)
        near.update(numbers[max(place - around, 0) : place + around + 1])
    return near


def _action(what: What, key: StepKey, generation: str, extent: Extent, why: str) -> GcAction:
    return GcAction(what, key.rank, key.step, generation, extent.objects, extent.nbytes, why)
