"""From an inventory and a policy to a plan: arithmetic, no I/O and no clock."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from typing import get_args

from ingest.reader.text import counted
from ingest.steps.events import newest_steps
from ingest.store_gc.plan import (
    FORMAT,
    Extent,
    GcAction,
    GcPlan,
    GcPolicy,
    Generation,
    Inventory,
    StepInventory,
    What,
    duration,
    shortly,
)
from ingest.units import human_bytes
from workers.errors import UsageError
from workers.model import StepKey
from workers.store.packed import pool

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


class _Planner:
    def __init__(self, inventory: Inventory, policy: GcPolicy, now: float) -> None:
        self.inventory, self.policy, self.now = inventory, policy, now
        self.notes: list[str] = []
        #: The steps that readers can see. Run files are not steps.
        self.steps = [step for step in inventory.steps if step.fingerprint and step.key.step is not None]
        self.numbers = sorted({step.number for step in self.steps})
        self.by_number: defaultdict[int, list[StepInventory]] = defaultdict(list)
        for step in inventory.steps:
            self.by_number[step.number].append(step)
        self.anomalous = {step.number for step in self.steps if step.is_anomalous}
        self.anomalous |= inventory.anomalous_steps & set(self.numbers)
        self.newest = newest_steps((step.key for step in self.steps), policy.keep_last or 0)
        self.busy = {
            step.key
            for step in self.steps
            if not all(self._is_old(held.whole) for held in step.uncommitted.values())
        }
        self.removed: dict[StepKey, GcAction] = {}
        """The steps that go."""
        self.thinned: dict[StepKey, GcAction] = {}
        """The steps that lose their tensors."""

    def plan(self) -> GcPlan:
        beside = [] if self.policy.is_choice else self._by_policy()
        if self.policy.is_choice:
            self._choose()
        actions = [*self.removed.values(), *self.thinned.values(), *beside]
        self._note_what_stays()
        return GcPlan(
            FORMAT,
            self.inventory.url,
            datetime.fromtimestamp(self.now, UTC).isoformat(timespec="seconds"),
            self.policy,
            tuple(sorted(actions, key=_place)),
            tuple(self.notes),
            self.inventory.total.nbytes,
        )

    def _by_policy(self) -> list[GcAction]:
        """Enter the steps that the policy gives a reason for; return what goes besides: no reader sees it."""
        age, by_number = self.policy.older_than_s, self.policy.reasons == ["keep_last"]
        for step in self.steps:
            if age is not None and self.now - step.committed_at > age:
                self._remove(step, f"committed more than {duration(age)} ago")
            elif by_number:
                self._remove(step, f"not among the newest {self.policy.keep_last} of its rank")
        self._drop_tensors()
        remains, temporaries = list(self._remains()), list(self._temporaries())
        self._shrink_to_size([*remains, *temporaries])
        below = tuple(f"{key.path}/" for key in self.removed)
        return [
            *self._unused_in_pools(),
            *(action for action in remains if action.key not in self.removed),
            *(action for action in temporaries if not action.path.startswith(below)),
            *self._uploads(),
            *self._unfinished_changes(),
        ]

    def _choose(self) -> None:
        """Enter the steps that were chosen by rank and number, and nothing else.

        Raises:
            UsageError: a chosen rank or step is not in the store, or none of the chosen steps is of it.
        """
        named = self._named()
        if bare := [step.key for step in named if step.fingerprint == step.damage == ""]:
            self.notes.append(
                f"{_name_some(bare)}: not committed; `gc` without --rank and --step removes what is there"
            )
        for step in named:
            self._remove(step, "chosen by rank and step")

    def _named(self) -> list[StepInventory]:
        ranks, steps = self.policy.ranks, self.policy.steps
        stored = [step for step in self.inventory.steps if step.key.step is not None]
        self._refuse_absent("no rank {}", ranks, {step.key.rank for step in stored})
        self._refuse_absent("no step {}", steps, {step.number for step in stored})
        named = [step for step in stored if _is_among(step.key.rank, ranks) and _is_among(step.number, steps)]
        self._refuse_absent("rank {} has none of these steps", ranks, {step.key.rank for step in named})
        self._refuse_absent("none of these ranks has step {}", steps, {step.number for step in named})
        return named

    def _refuse_absent(self, problem: str, wanted: Collection[int] | None, known: set[int]) -> None:
        if absent := set(wanted or ()) - known:
            raise UsageError(
                f"{self.inventory.url}: {problem.format(min(absent))}",
                hint="`dump-ingest ls` lists the steps of each rank.",
            )

    def _remove(self, step: StepInventory, why: str) -> None:
        is_kept = not step.fingerprint or (self.policy.keep_anomalous and step.number in self.anomalous)
        if not is_kept and step.key not in self.newest and step.key not in self.busy:
            extent = sum((held.whole for held in step.generations.values()), step.record)
            self.removed[step.key] = _of_step("step", step, step.fingerprint, extent, why)
            self.thinned.pop(step.key, None)

    def _drop_tensors(self) -> None:
        around = self.policy.tensors_around_anomalies
        near = set(self.numbers) if around is None else _near(self.numbers, self.anomalous, around)
        for step in self.steps:
            extent = step.generations.get(step.fingerprint, Generation()).tensors
            if step.key not in self.removed and (why := self._why_tensors_go(step, extent, near)):
                self.thinned[step.key] = _of_step("tensors", step, step.fingerprint, extent, why)
        if around is not None and (unseen := set(self.numbers) - self.inventory.evaluated_steps):
            self.notes.append(
                f"rules over several ranks have not been evaluated for steps {shortly(unseen)}: what they "
                "would find there does not count as an anomaly (`dump-ingest consolidate` evaluates them)"
            )

    def _why_tensors_go(self, step: StepInventory, extent: Extent, near: Collection[int]) -> str:
        """Return why the tensors of a step go; "" if they stay. The steps `near` anomalies keep theirs."""
        if not extent.objects or step.key in self.busy:
            return ""
        if not step.has_tensors:
            # Left by a gc that was killed, or written by somebody who is about to commit them after all.
            return "no commit points to them" if self._is_old(extent) else ""
        if step.number in near or step.key in self.newest:
            return ""
        return f"no anomaly within {self.policy.tensors_around_anomalies} dumped steps"

    def _shrink_to_size(self, others: Sequence[GcAction]) -> None:
        """Enter steps, lowest number first, until the store is not larger than it may be."""
        limit = self.policy.max_bytes
        if limit is None:
            return
        going = Counter[StepKey | None]()
        rest = (action for action in others if action.key not in self.removed)
        for action in (*self.removed.values(), *self.thinned.values(), *rest):
            going[action.key] += action.nbytes  # None stands for temporary objects
        left = self.inventory.total.nbytes - going.total()
        left -= sum(
            held.nbytes for step in self.inventory.pools for held in self._without_users(step).values()
        )
        for number in self.numbers:
            if left <= limit:
                return
            left += self._unused_nbytes(number)
            for step in self.by_number[number]:
                if step.key not in self.removed:
                    self._remove(step, "the oldest, to fit the size")
                    if removal := self.removed.get(step.key):
                        # Its tensors, or previous generations, may be on their way out already.
                        left -= removal.nbytes - going[step.key]
            left -= self._unused_nbytes(number)
        if left > limit:
            self.notes.append(
                f"the store will still have {human_bytes(left)}, more than {human_bytes(limit)}: "
                "the rest is protected, or does not belong to a step"
            )

    def _unused_nbytes(self, number: int) -> int:
        return sum(held.nbytes for held in self._without_users(number).values())

    def _without_users(self, number: int) -> dict[str, Extent]:
        """Return the arrays in the pool of a step that no commit refers to, except those that go."""
        members = self.by_number[number]
        if any(member.damage for member in members):
            return {}  # what a damaged commit refers to is not known
        going = self.removed.keys() | self.thinned.keys()
        used = {path for member in members if member.key not in going for path in member.pool}
        return {path: held for path, held in self.inventory.pools.get(number, {}).items() if path not in used}

    def _unused_in_pools(self) -> Iterator[GcAction]:
        """Yield the removal of each array that nobody refers to, or may be about to."""
        waiting, grace_s = 0, max(self.policy.grace_s, pool.GRACE_S)
        for number in sorted(self.inventory.pools):
            members = self.by_number[number]
            signs = [member.record.newest_at for member in members]
            signs += [held.whole.newest_at for member in members for held in member.uncommitted.values()]
            for path, extent in self._without_users(number).items():
                if self.now - max([extent.newest_at, *signs]) <= grace_s:
                    waiting += extent.objects
                else:
                    yield _at_path("pool", path, extent, "no commit refers to it")
        if waiting:
            self.notes.append(
                f"{counted(waiting, 'object')} in pools that no commit refers to "
                f"stay{'s' * (waiting == 1)} until nothing was written in their step for {duration(grace_s)}"
            )

    def _remains(self) -> Iterator[GcAction]:
        """Yield the objects that no commit refers to, if nobody can still be writing or reading them."""
        waiting = Extent()
        for step in self.inventory.steps:
            for name, generation in ({} if step.damage else step.uncommitted).items():
                # Readers may have opened a previous generation until the commit that replaced it.
                if self._is_old(generation.whole + Extent(newest_at=step.record.newest_at)):
                    why = "a previous generation" if step.fingerprint else "never committed, or removed"
                    yield _of_step("remains", step, name, generation.whole, why)
                else:
                    waiting += generation.whole
            if not step.generations and not step.record.objects and not step.damage:
                yield _of_step("remains", step, "", Extent(), "an empty directory")
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
                yield _at_path("temporary", path, extent, "left by a writer that was killed")

    def _unfinished_changes(self) -> Iterator[GcAction]:
        for path, extent in sorted(self.inventory.unfinished_changes.items()):
            if self._is_old(extent):
                yield _at_path(
                    "announcement", path, Extent(), "a writer was killed while it changed a commit"
                )

    def _uploads(self) -> Iterator[GcAction]:
        """Yield the uploads that were never completed, if nothing was written into them for the grace period.

        They do not count in the size of the store: no listing of objects has them.
        """
        uploads = self.inventory.uploads
        old = [upload for upload in uploads if self._is_old(Extent(newest_at=upload.written_at))]
        if young := [upload for upload in uploads if upload not in old]:
            self.notes.append(
                f"{len(young)} uploads in parts ({human_bytes(sum(upload.nbytes for upload in young))}) are "
                f"under way, or were left within {duration(self.policy.grace_s)}: they stay"
            )
        if self.inventory.uploads_unknown:
            self.notes.append(f"uploads that were never completed: {self.inventory.uploads_unknown}")
        oldest = datetime.fromtimestamp(min((upload.written_at for upload in old), default=0.0), UTC)
        why = f"never completed; nothing written since {oldest:%Y-%m-%d %H:%M} UTC or later"
        for upload in old:
            yield _at_path("upload", upload.key, Extent(0, upload.nbytes), why, upload.upload_id)

    def _is_old(self, extent: Extent) -> bool:
        return self.now - extent.newest_at > self.policy.grace_s

    def _note_what_stays(self) -> None:
        if self.policy.keep_anomalous and self.anomalous:
            self.notes.append(f"steps with anomalies are kept: {shortly(self.anomalous)}")
        elif self.policy.tensors_around_anomalies is not None:
            known = f"anomalies are known in steps {shortly(self.anomalous)}"
            self.notes.append(known if self.anomalous else "no step with an anomaly is known")
        for keys, reason in (
            (self.busy, f"another generation is younger than {duration(self.policy.grace_s)}"),
            (
                {step.key for step in self.inventory.steps if step.damage},
                "the commit is damaged (see `dump-ingest verify`)",
            ),
        ):
            if keys:
                self.notes.append(f"{_name_some(keys)}: left alone, because {reason}")


def _is_among(number: int, chosen: Collection[int] | None) -> bool:
    return chosen is None or number in chosen


def _name_some(keys: Collection[StepKey]) -> str:
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


def _of_step(what: What, step: StepInventory, generation: str, extent: Extent, why: str) -> GcAction:
    return GcAction(what, step.key.rank, step.key.step, generation, extent.objects, extent.nbytes, why)


def _at_path(what: What, path: str, extent: Extent, why: str, upload: str = "") -> GcAction:
    return GcAction(what, None, None, "", extent.objects, extent.nbytes, why, path, upload)


def _place(action: GcAction) -> tuple[object, ...]:
    return _ORDER[action.what], action.key.order if action.key else (), action.path, action.upload
