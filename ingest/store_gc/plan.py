"""From a policy and an inventory to a plan: arithmetic, no I/O and no clock. And the plan as a file."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias, get_args

from ingest.reader.ranges import format_ranges
from ingest.store_gc.inventory import Extent, Inventory, Leaf, is_temporary
from ingest.store_gc.policy import GcPolicy, duration
from ingest.units import human_bytes
from workers.errors import UsageError
from workers.model import StepKey

What: TypeAlias = Literal["step", "tensors", "remains", "temporary"]
_FORMAT = "dump-ingest gc plan 1"
_GENERATION = re.compile(r"[0-9a-f]{32}|")
#: Characters of a list of numbers, and steps that a note names.
_MAX_SPANS = 48
_FEW = 5
_HINT = "Make it again: dump-ingest gc STORE ... --plan FILE"


@dataclass(frozen=True, slots=True)
class GcAction:
    """One thing that goes."""

    what: What
    """`step`: with all that is below it. `tensors`: the payloads only. `remains`: a generation that no commit
    points to. `temporary`: what a killed writer left."""
    rank: int | None
    step: int | None
    """None for run files, and for what is of no rank."""
    generation: str
    """That is committed, or of the remains; "" for nothing but empty directories."""
    objects: int
    nbytes: int
    why: str
    path: str = ""
    """Of a temporary."""

    @property
    def key(self) -> StepKey | None:
        """Whose it is; None for a temporary."""
        return None if self.rank is None else StepKey(self.rank, self.step)


@dataclass(frozen=True, slots=True)
class GcPlan:
    """What `gc` would remove, and what it would leave and why. Nothing changes before it is carried out."""

    store: str
    made_at: str
    """In ISO 8601."""
    policy: GcPolicy
    actions: tuple[GcAction, ...]
    notes: tuple[str, ...]
    """What stays for another reason than the policy, for people."""
    store_bytes: int
    """Of everything in the store, when the plan was made."""

    @property
    def objects(self) -> int:
        """How many objects go."""
        return sum(one.objects for one in self.actions)

    @property
    def nbytes(self) -> int:
        """How many bytes go."""
        return sum(one.nbytes for one in self.actions)

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values, with totals."""
        return {
            "format": _FORMAT,
            "store": self.store,
            "made_at": self.made_at,
            "policy": self.policy.to_dict(),
            "store_bytes": self.store_bytes,
            "objects": self.objects,
            "nbytes": self.nbytes,
            "notes": list(self.notes),
            "actions": [asdict(one) for one in self.actions],
        }

    def to_json(self) -> str:
        """Return it as text of a file: an action a line."""
        whole = self.to_dict()
        actions = ",\n  ".join(json.dumps(one) for one in whole.pop("actions"))
        head = json.dumps(whole, indent=1)[:-2]
        return f'{head},\n "actions": [{actions}]\n}}\n'

    @classmethod
    def from_json(cls, text: str, where: str = "plan") -> GcPlan:
        """Return the plan that `to_json` wrote. It is not trusted: it can name steps, but no other objects.

        Raises:
            UsageError: it is no plan; `where` names it.
        """
        try:
            row = _of_this_format(json.loads(text))
            return cls(
                _text(row["store"]),
                _text(row["made_at"]),
                GcPolicy.from_dict(row["policy"]),
                tuple(_action(one) for one in row["actions"]),
                tuple(map(_text, row["notes"])),
                _count(row["store_bytes"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
            raise UsageError(f"{where} is no plan of gc ({exc!r:.100})", hint=_HINT) from exc


def make_plan(inventory: Inventory, policy: GcPolicy, now: float) -> GcPlan:
    """Decide what goes.

    Args:
        inventory: what there is.
        policy: what is to be kept.
        now: seconds since the epoch.
    """
    return _Planner(inventory, policy, now).plan()


class _Planner:
    def __init__(self, inventory: Inventory, policy: GcPolicy, now: float) -> None:
        self.inventory, self.policy, self.now = inventory, policy, now
        self.notes: list[str] = []
        self.steps = [leaf for leaf in inventory.leaves if leaf.key.step is not None and leaf.facts]
        self.numbers = sorted({_number(leaf) for leaf in self.steps})
        self.anomalous = {_number(leaf) for leaf in self.steps if leaf.facts and leaf.facts.anomalous}
        self.anomalous |= inventory.anomalous_steps & set(self.numbers)
        self.newest = _newest(self.steps, policy.keep_last or 0)
        busy = [leaf for leaf in self.steps if self._is_written(leaf)]
        self.busy = {leaf.key for leaf in busy}

    def plan(self) -> GcPlan:
        steps = self._steps_by_age_and_number()
        tensors = self._tensors(steps)
        remains, temporaries = list(self._remains()), list(self._temporaries())
        self._fit(steps, tensors, remains + temporaries)
        gone = {one.key for one in steps.values()}
        actions = [*steps.values(), *tensors.values()]
        actions += [one for one in remains if one.key not in gone]
        actions += [one for one in temporaries if not _is_below(one.path, gone)]
        order: dict[str, int] = {what: number for number, what in enumerate(get_args(What))}
        actions.sort(key=lambda one: (order[one.what], one.key.order if one.key else (), one.path))
        self._note_what_stays()
        return GcPlan(
            self.inventory.url,
            datetime.fromtimestamp(self.now, UTC).isoformat(timespec="seconds"),
            self.policy,
            tuple(actions),
            tuple(self.notes),
            self.inventory.total.nbytes,
        )

    def _steps_by_age_and_number(self) -> dict[StepKey, GcAction]:
        policy = self.policy
        found: dict[StepKey, GcAction] = {}
        for leaf in self.steps:
            if not self._may_go(leaf) or leaf.facts is None:
                continue
            if policy.older_than_s is not None:
                if self.now - leaf.facts.committed_at > policy.older_than_s:
                    why = f"committed more than {duration(policy.older_than_s)} ago"
                    found[leaf.key] = _step(leaf, why)
            elif policy.keeps_only_newest:
                found[leaf.key] = _step(leaf, f"not among the newest {policy.keep_last} of its rank")
        return found

    def _tensors(self, gone: Collection[StepKey]) -> dict[StepKey, GcAction]:
        """Return the steps that lose their tensors."""
        around = self.policy.tensors_around_anomalies
        found: dict[StepKey, GcAction] = {}
        near = set(self.numbers) if around is None else _near(self.numbers, self.anomalous, around)
        for leaf in self.steps:
            facts = leaf.facts
            extent = leaf.generations[facts.fingerprint].tensors if facts and _has_objects(leaf) else Extent()
            if facts is None or leaf.key in gone or leaf.key in self.busy or not extent.objects:
                continue
            if not facts.has_tensors:
                # Of a gc that was killed, or of somebody who is about to store them after all.
                if self._is_old(extent):
                    found[leaf.key] = _of_tensors(leaf, extent, "no commit points to them")
            elif _number(leaf) not in near and leaf.key not in self.newest:
                found[leaf.key] = _of_tensors(leaf, extent, f"no anomaly within {around} dumped steps")
        unseen = set(self.numbers) - self.inventory.evaluated_steps
        if around is not None and unseen:
            self.notes.append(
                f"rules over several ranks have not looked at steps {shortly(unseen)}: what they "
                "would find there is not counted as an anomaly (`dump-ingest consolidate` has them look)"
            )
        return found

    def _fit(
        self, steps: dict[StepKey, GcAction], tensors: dict[StepKey, GcAction], others: Sequence[GcAction]
    ) -> None:
        """Have steps go, oldest number first, until the rest is no larger than it may be."""
        most = self.policy.max_bytes
        if most is None:
            return
        going = [*steps.values(), *tensors.values(), *(one for one in others if one.key not in steps)]
        left = self.inventory.total.nbytes - sum(one.nbytes for one in going)
        by_number: dict[int, list[Leaf]] = {}
        for leaf in self.steps:
            by_number.setdefault(_number(leaf), []).append(leaf)
        for number in self.numbers:
            if left <= most:
                return
            for leaf in by_number[number]:
                if leaf.key in steps or not self._may_go(leaf):
                    continue
                one = _step(leaf, "the oldest, to fit the size")
                known = tensors.pop(leaf.key, None)
                remains = sum(other.nbytes for other in others if other.key == leaf.key)
                left -= one.nbytes - (known.nbytes if known else 0) - remains
                steps[leaf.key] = one
        if left > most:
            self.notes.append(
                f"the store will still have {human_bytes(left)}, more than {human_bytes(most)}: "
                "the rest is protected, or no step"
            )

    def _remains(self) -> Iterator[GcAction]:
        waiting = Extent()
        for leaf in self.inventory.leaves:
            if leaf.damaged:
                continue
            committed = leaf.facts.fingerprint if leaf.facts else ""
            for name, one in leaf.generations.items():
                if name == committed:
                    continue
                # Readers may have opened a previous generation until another one took its place.
                if not self._is_old(one.whole + Extent(newest=leaf.record.newest)):
                    waiting += one.whole
                    continue
                why = "a previous generation" if committed else "never committed, or removed"
                yield _remains_of(leaf, name, one.whole, why)
            if not leaf.generations and not leaf.record.objects:
                yield _remains_of(leaf, "", Extent(), "an empty directory")
        if waiting.objects:
            self.notes.append(
                f"{waiting.objects} objects ({human_bytes(waiting.nbytes)}) that no commit points to "
                f"stay until nothing was written there for {duration(self.policy.grace_s)}"
            )

    def _temporaries(self) -> Iterator[GcAction]:
        for path, one in sorted(self.inventory.temporaries.items()):
            if self._is_old(one):
                why = "left by a writer that was killed"
                yield GcAction("temporary", None, None, "", one.objects, one.nbytes, why, path)

    def _may_go(self, leaf: Leaf) -> bool:
        protected = self.policy.keep_anomalous and _number(leaf) in self.anomalous
        return not protected and leaf.key not in self.newest and leaf.key not in self.busy

    def _is_written(self, leaf: Leaf) -> bool:
        """Whether somebody is writing another generation of a step."""
        committed = leaf.facts.fingerprint if leaf.facts else ""
        others = (one.whole for name, one in leaf.generations.items() if name != committed)
        return any(not self._is_old(one) for one in others)

    def _is_old(self, extent: Extent) -> bool:
        return self.now - extent.newest > self.policy.grace_s

    def _note_what_stays(self) -> None:
        policy = self.policy
        if policy.keep_anomalous and self.anomalous:
            self.notes.append(f"steps with anomalies are kept: {shortly(self.anomalous)}")
        elif policy.tensors_around_anomalies is not None:
            known = f"steps {shortly(self.anomalous)}" if self.anomalous else "no step"
            self.notes.append(f"anomalies are known of {known}")
        if self.busy:
            within = duration(policy.grace_s)
            self.notes.append(f"{_few(self.busy)}: left alone, another generation is younger than {within}")
        if damaged := {leaf.key for leaf in self.inventory.leaves if leaf.damaged}:
            self.notes.append(f"{_few(damaged)}: left alone, the commit is damaged")


def shortly(numbers: Collection[int]) -> str:
    """Write numbers as spans; where that is long, the first and the last."""
    text = format_ranges(numbers)
    return text if len(text) <= _MAX_SPANS else f"{min(numbers)} to {max(numbers)}"


def _few(keys: Collection[StepKey]) -> str:
    """Name some steps of ranks."""
    ordered = sorted(keys, key=lambda key: key.order)
    more = f" and {len(ordered) - _FEW} more" if len(ordered) > _FEW else ""
    return ", ".join(map(str, ordered[:_FEW])) + more


def _number(leaf: Leaf) -> int:
    return -1 if leaf.key.step is None else leaf.key.step


def _newest(steps: Sequence[Leaf], count: int) -> set[StepKey]:
    """Return the newest steps of each rank, by number."""
    of_rank: dict[int, list[StepKey]] = {}
    for leaf in steps:
        of_rank.setdefault(leaf.key.rank, []).append(leaf.key)
    if not count:
        return set()
    return {key for keys in of_rank.values() for key in sorted(keys, key=lambda key: key.order)[-count:]}


def _near(numbers: Sequence[int], anomalous: Collection[int], around: int) -> set[int]:
    """Return the steps that are at most so many dumped steps from one of the anomalous, and the newest.

    After the newest an anomaly may come; and not all rules may have looked at the last one yet.
    """
    near = set(numbers[-max(around, 1) :])
    for step in anomalous:
        place = bisect_left(numbers, step)
        near.update(numbers[max(place - around, 0) : place + around + 1])
    return near


def _has_objects(leaf: Leaf) -> bool:
    return leaf.facts is not None and leaf.facts.fingerprint in leaf.generations


def _step(leaf: Leaf, why: str) -> GcAction:
    extent = sum((one.whole for one in leaf.generations.values()), leaf.record)
    return _action_of("step", leaf, leaf.facts.fingerprint if leaf.facts else "", extent, why)


def _of_tensors(leaf: Leaf, extent: Extent, why: str) -> GcAction:
    return _action_of("tensors", leaf, leaf.facts.fingerprint if leaf.facts else "", extent, why)


def _remains_of(leaf: Leaf, name: str, extent: Extent, why: str) -> GcAction:
    return _action_of("remains", leaf, name, extent, why)


def _action_of(what: What, leaf: Leaf, generation: str, extent: Extent, why: str) -> GcAction:
    key = leaf.key
    return GcAction(what, key.rank, key.step, generation, extent.objects, extent.nbytes, why)


def _is_below(path: str, keys: Collection[StepKey | None]) -> bool:
    return any(key is not None and path.startswith(f"{key.path}/") for key in keys)


def _of_this_format(row: Mapping[str, Any]) -> Mapping[str, Any]:
    if row["format"] != _FORMAT:
        raise ValueError("another format")
    return row


def _action(row: Mapping[str, Any]) -> GcAction:
    if row.keys() != {one.name for one in fields(GcAction)} or row["what"] not in get_args(What):
        raise ValueError("action")
    numbers = [row[name] for name in ("rank", "step") if row[name] is not None]
    for number in (*numbers, row["objects"], row["nbytes"]):
        _count(number)
    for name in ("generation", "why", "path"):
        _text(row[name])
    temporary = row["what"] == "temporary"
    if not _GENERATION.fullmatch(row["generation"]) or temporary != (row["rank"] is None):
        raise ValueError("action")
    if temporary and (not is_temporary(row["path"]) or ".." in row["path"].split("/")):
        raise ValueError("path")
    if row["what"] in ("step", "tensors") and (row["step"] is None or not row["generation"]):
        raise ValueError("run files are never removed")
    return GcAction(**row)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError("number")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("text")
    return value
