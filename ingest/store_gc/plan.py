"""What `gc` removes and keeps, and its plan: what goes, and what stays and why; as values and as a file.

From an inventory and a policy to a plan, it is arithmetic: no I/O and no clock.

A plan file is not trusted: it can name what a plan names, and nothing else in the store.

The inventory is one listing of all of the store, and what its commits say. It reads, and never writes.
"""

from __future__ import annotations

import json
import math
import re
import sys
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Annotated, Any, Literal, TypeAlias, get_args

from msgspec import DecodeError, Meta, Struct, to_builtins
from msgspec.json import Decoder

from ingest.findings.stored import SERIES, read_series
from ingest.reader.choice import format_ranges
from ingest.reader.text import counted
from ingest.steps.events import newest_steps
from ingest.units import human_bytes
from workers.errors import StoreDenied, StoreError, UsageError
from workers.model import StepKey, grouped
from workers.store import commit, metadata
from workers.store.commit import has_begun, unfinished
from workers.store.model import WORSE_THAN_INFO, rank_named, step_named
from workers.store.objects import ObjectStore, StoredObject, UnfinishedUpload
from workers.store.packed import pool
from workers.store.record import LEAF

Natural: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
What: TypeAlias = Literal["step", "tensors", "remains", "pool", "temporary", "upload", "announcement"]
Format: TypeAlias = Literal["dump-ingest gc plan 1"]
FORMAT: Format = "dump-ingest gc plan 1"
GenerationName: TypeAlias = Annotated[str, Meta(pattern=r"\A(?:[0-9a-f]{32}(?:-[0-9a-f]{16})?)?\Z")]
_HINT = "Make the plan again: dump-ingest gc STORE ... --plan FILE"
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
DAY_S = 86400.0
#: What gives a reason to remove steps or tensors, and the smallest value that makes sense.
_REASONS = {"older_than_s": 0, "keep_last": 1, "max_bytes": 0, "tensors_around_anomalies": 0}


class GcPolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """Which steps and tensors go. The default removes only previous generations and remains of crashes.

    Raises:
        UsageError: a number is out of range, or options exclude each other.
    """

    older_than_s: float | None = None
    """Remove steps that were committed longer ago than this."""
    keep_last: int | None = None
    """Never touch this many of the newest steps of each rank, by step number. If no other field gives a
    reason to remove something (age, size, distance from anomalies), all other steps are removed."""
    max_bytes: int | None = None
    """Remove steps, lowest number first and on all ranks at once, until the store is not larger than this."""
    tensors_around_anomalies: int | None = None
    """Remove the tensors of steps that are farther than this many dumped steps from any anomaly."""
    keep_anomalous: bool = False
    """Never remove a step that has an anomaly on any rank."""
    grace_s: float = DAY_S
    """How long objects that no commit points to stay after the last write next to them."""
    ranks: tuple[Natural, ...] | None = None
    """With `steps`: remove exactly the steps of these ranks, and nothing else; of all ranks if None."""
    steps: tuple[Natural, ...] | None = None
    """The same for the numbers of the steps. Excludes all other reasons and all protections."""

    def __post_init__(self) -> None:
        for name, lowest in {**_REASONS, "grace_s": 0}.items():
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= lowest):
                raise UsageError(
                    f"{name} is {value!r}, which is out of range", hint=f"Give a number of at least {lowest}."
                )
        if self.is_choice and (self.reasons or self.keep_anomalous):
            raise UsageError(
                "chosen ranks and steps exclude other reasons to remove or to keep something",
                hint="Give --rank and --step without --older-than, --keep-last, --max-size, --keep-anomalous "
                "and --tensors-around-anomalies.",
            )

    @property
    def is_choice(self) -> bool:
        """Whether steps go because they were chosen by rank and number."""
        return self.ranks is not None or self.steps is not None

    @property
    def reasons(self) -> list[str]:
        """The fields that give a reason to remove steps or tensors, other than a choice."""
        return [name for name in _REASONS if getattr(self, name) is not None]


def parse_duration(text: str) -> float:
    """Return the seconds in a duration such as `90s`, `45m`, `12h`, `30d` or `2w`.

    Raises:
        UsageError: the text is not a number with one of these units.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise UsageError(
            f"{text!r} is not a valid duration", hint="Write a number and a unit: 90s, 45m, 12h, 30d, 2w."
        )
    return float(match[1]) * _UNITS_S[match[2]]


def duration(seconds: float) -> str:
    """Write a duration in the largest unit that gives a whole number."""
    whole = (unit for unit in ("d", "h", "m") if seconds and seconds % _UNITS_S[unit] == 0)
    unit = next(whole, "s")
    return f"{seconds / _UNITS_S[unit]:g}{unit}"


class GcAction(Struct, frozen=True, forbid_unknown_fields=True):
    """One thing that goes. Run files and whatever belongs to no step of a store never do.

    Raises:
        ValueError: gc has not got such an action: a plan file is not trusted.
    """

    what: What
    """`step`: a step with everything below it. `tensors`: only the payloads of a step. `remains`: a
    generation that no commit points to. `pool`: an array in the pool of a step that no commit refers to.
    `temporary`: what a killed writer left behind. `upload`: parts of an object that was never completed.
    `announcement`: that a killed writer has begun to change a commit; it goes with the next consolidation."""
    rank: Natural | None
    """Set for `step`, `tensors` and `remains`."""
    step: Natural | None
    """Set for the same; None for run files."""
    generation: GenerationName
    """The generation that goes, or that loses its tensors; "" if only empty directories go."""
    objects: Natural
    nbytes: Natural
    why: str
    path: str = ""
    """The path of an array in a pool; the key of a temporary object, of an announcement, or of what an upload
    was to become; "" for everything else."""
    upload: str = ""
    """What the store calls an upload; "" for everything else."""

    def __post_init__(self) -> None:
        names = self.path.split("/")
        is_committed = None not in (self.rank, self.step) and self.generation != ""
        is_beside = self.rank is self.step is None
        is_valid = {
            "step": is_committed,
            "tensors": is_committed,
            "remains": self.rank is not None,
            "pool": is_beside and pool.step_of(self.path) is not None,
            "temporary": is_beside and is_temporary(self.path) and ".." not in names,
            "upload": is_beside and self.upload != "" and not {"..", ""} & set(names),
            "announcement": is_beside and has_begun(self.path),
        }
        if not is_valid[self.what]:
            message = f"{self.what!r} is not what may go from here: {self.rank=}, {self.step=}, {self.path=}"
            raise ValueError(message.replace("self.", ""))

    @property
    def key(self) -> StepKey | None:
        """The step or the run files that it belongs to; None if it has no rank."""
        return None if self.rank is None else StepKey(self.rank, self.step)


class GcPlan(Struct, frozen=True):
    """What `gc` would remove, and what it would leave and why. Making a plan changes nothing."""

    format: Format
    store: str
    made_at: str
    """In ISO 8601."""
    policy: GcPolicy
    actions: tuple[GcAction, ...]
    notes: tuple[str, ...]
    """What stays although the policy does not ask for it, and why; for people."""
    store_bytes: Natural

    @property
    def objects(self) -> int:
        """How many objects go."""
        return sum(action.objects for action in self.actions)

    @property
    def nbytes(self) -> int:
        """How many bytes go."""
        return sum(action.nbytes for action in self.actions)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain values, with totals, which are for people and are not read."""
        return {**to_builtins(self), "objects": self.objects, "nbytes": self.nbytes}

    def to_json(self) -> str:
        """Return the plan as the text of a file, with one line per action."""
        content = self.to_dict()
        actions = ",\n  ".join(map(json.dumps, content.pop("actions")))
        return f'{json.dumps(content, indent=1)[:-2]},\n "actions": [{actions}]\n}}\n'

    @classmethod
    def from_json(cls, text: str, where: str = "plan") -> GcPlan:
        """Return the plan that `to_json` wrote. The text is not trusted.

        Args:
            text: the content of the file.
            where: the name of the file, for messages.

        Raises:
            UsageError: the text is not a plan; the message names the place, such as `actions[3].step`.
        """
        try:
            return _DECODER.decode(text)
        except UsageError as exc:
            raise UsageError(f"{where} is not a gc plan: policy: {exc.message}", hint=_HINT) from exc
        except (DecodeError, RecursionError, UnicodeEncodeError) as exc:
            # msgspec ends its messages in " - at `$.actions[3].step`".
            problem, _, place = str(exc).partition(" - at `$")
            problem = f"{name}: {problem}" if (name := place.strip("`.")) else problem
            raise UsageError(f"{where} is not a gc plan: {problem}", hint=_HINT) from exc


_DECODER = Decoder(GcPlan)
#: The longest list of numbers that a note spells out, in characters.
_MAX_RANGES = 48


def shortly(numbers: Collection[int]) -> str:
    """Write numbers as ranges; if that is long, as the lowest and the highest."""
    text = format_ranges(numbers)
    return text if len(text) <= _MAX_RANGES else f"{min(numbers)} to {max(numbers)}"


#: Ranks that are listed at once.
_RANKS_AT_ONCE = 4
#: Commits that are held at once.
_COMMITS_AT_ONCE = 256
#: What a writer into a directory leaves behind when it is killed.
_TEMPORARY = re.compile(r"(?:.*/)?\.[^/]+\.[0-9a-f]{32}\.tmp")


@dataclass(frozen=True, slots=True)
class Extent:
    """A number of objects, their size, and when the newest of them was written."""

    objects: int = 0
    nbytes: int = 0
    newest_at: float = 0.0
    """Seconds since the epoch, by the clock of the store."""

    def __add__(self, other: Extent) -> Extent:
        return Extent(
            self.objects + other.objects, self.nbytes + other.nbytes, max(self.newest_at, other.newest_at)
        )

    @classmethod
    def of(cls, objects: Iterable[StoredObject]) -> Extent:
        """Return the extent of some objects."""
        return sum((cls(1, stored.nbytes, stored.modified_at) for stored in objects), cls())


@dataclass(slots=True)
class Generation:
    """What lies below one generation of a step."""

    tensors: Extent = field(default_factory=Extent)
    whole: Extent = field(default_factory=Extent)
    """Payloads of tensors, and all other objects."""


@dataclass(slots=True)
class StepInventory:
    """What the store holds of one step of a rank, or of its run files; and what its commit says."""

    key: StepKey
    generations: dict[str, Generation] = field(default_factory=dict)
    record: Extent = field(default_factory=Extent)
    """The object that holds the commit."""
    fingerprint: str = ""
    """The generation that the commit points to; "" if the step is not committed, or its commit is damaged."""
    committed_at: float = 0.0
    """Seconds since the epoch, by the clock of the worker."""
    is_anomalous: bool = False
    """Whether it counts NaN, Inf, an overflow, or a finding of severity warning or worse."""
    has_tensors: bool = False
    pool: frozenset[str] = frozenset()
    damage: str = ""

    @property
    def number(self) -> int:
        """The number of the step; one below zero for run files."""
        return self.key.order[0]

    @property
    def uncommitted(self) -> dict[str, Generation]:
        """The generations that no commit points to."""
        return {name: held for name, held in self.generations.items() if name != self.fingerprint}


@dataclass(slots=True)
class Inventory:
    """What a whole store holds."""

    url: str
    total: Extent = field(default_factory=Extent)
    steps: tuple[StepInventory, ...] = ()
    temporaries: dict[str, Extent] = field(default_factory=dict)
    anomalous_steps: frozenset[int] = frozenset()
    """Steps in which rules over several steps or ranks found something of severity warning or worse."""
    evaluated_steps: frozenset[int] = frozenset()
    """Steps for which such rules were evaluated."""
    uploads: tuple[UnfinishedUpload, ...] = ()
    uploads_unknown: str = ""
    """Why nothing is known of such uploads; "" if it is."""
    pools: dict[int, dict[str, Extent]] = field(default_factory=dict)
    """By step: the arrays in its pool, by path."""
    unfinished_changes: dict[str, Extent] = field(default_factory=dict)


def take_inventory(objects: ObjectStore, *, anomalies: bool = False) -> Inventory:
    """List a store and read its commits.

    Memory: about 500 bytes for each object of a rank, for `_RANKS_AT_ONCE` ranks at once; a few hundred bytes
    for each step.

    Args:
        objects: the store.
        anomalies: also read what rules over several steps or ranks found.

    Raises:
        StoreError: the store refused.
    """
    inventory = Inventory(objects.address.url)
    steps: dict[StepKey, StepInventory] = {}
    names = objects.children()
    pools = objects.children(pool.POOL) if pool.POOL in names else []
    others = sorted((name for name in names if name != pool.POOL), key=lambda name: rank_named(name) is None)
    names = [*others, *(f"{pool.POOL}/{name}" for name in pools)]
    with ThreadPoolExecutor(_RANKS_AT_ONCE, thread_name_prefix="dump-ingest-list") as threads:
        inventory.total = sum(threads.map(partial(_list, objects, inventory, steps), names), Extent())
    inventory.steps = tuple(sorted(steps.values(), key=lambda step: step.key.order))
    _read_commits(objects, [step for step in inventory.steps if step.record.objects])
    if anomalies:
        inventory.anomalous_steps, inventory.evaluated_steps = _findings_of_series(objects)
    try:
        inventory.uploads = tuple(objects.unfinished_uploads())
    except StoreDenied as exc:
        permissions = "s3:ListBucketMultipartUploads and s3:ListMultipartUploadParts"
        inventory.uploads_unknown = f"{exc.message}; it takes {permissions}"
    except StoreError as exc:  # what speaks the protocol of S3 does not always have this request
        inventory.uploads_unknown = exc.message
    return inventory


def generations_in(listed: Mapping[str, StoredObject]) -> dict[str, list[str]]:
    """Return the keys of each generation in a listing of a step."""
    keys = ((*key.partition("/")[:2], key) for key in listed)
    # Any other name is not ours: it is never touched.
    return grouped((name, key) for name, slash, key in keys if slash and pool.GENERATION.fullmatch(name))


def is_temporary(key: str) -> bool:
    """Return whether a writer into a directory uses this key before it renames the object."""
    return _TEMPORARY.fullmatch(key) is not None


def is_of_tensors(key: str) -> bool:
    """Return whether an object, given by its key in a step, belongs to payloads of tensors."""
    return metadata.is_of_tensors(key.partition("/")[2])


def _list(
    objects: ObjectStore, inventory: Inventory, steps: dict[StepKey, StepInventory], name: str
) -> Extent:
    listed = objects.listed(name)
    total = Extent.of(listed.values())
    temporaries = _enter_temporaries(inventory, name, listed)
    if rank_named(name) is not None:
        steps |= {step.key: step for step in _steps_in(objects, name, listed)}
    elif name.startswith(f"{pool.POOL}/"):
        _enter_pooled(inventory, name, {path: listed[path] for path in listed.keys() - temporaries.keys()})
    else:
        for path in unfinished([f"{name}/{path}" for path in listed]):
            inventory.unfinished_changes[path] = Extent.of([listed[path.removeprefix(f"{name}/")]])
    return total


def _enter_temporaries(
    inventory: Inventory, name: str, listed: Mapping[str, StoredObject]
) -> dict[str, StoredObject]:
    temporaries = {path: stored for path, stored in listed.items() if is_temporary(path or name)}
    for path, stored in temporaries.items():
        inventory.temporaries[f"{name}/{path}" if path else name] = Extent.of([stored])
    return temporaries


def _enter_pooled(inventory: Inventory, name: str, listed: Mapping[str, StoredObject]) -> None:
    for path, stored in listed.items():
        array = "/".join([name, *path.split("/")[:2]])
        if (number := pool.step_of(array)) is not None:
            arrays = inventory.pools.setdefault(number, {})
            array = sys.intern(array)
            arrays[array] = arrays.get(array, Extent()) + Extent.of([stored])


def _steps_in(objects: ObjectStore, name: str, listed: Mapping[str, StoredObject]) -> Iterator[StepInventory]:
    rank = rank_named(name) or 0
    below = _directories(objects, rank, listed)
    for path, stored in listed.items():
        step, _, path_in_step = path.partition("/")
        if path_in_step and (step == "run" or step_named(step) is not None):
            below.setdefault(step, {})[path_in_step] = stored
    for step, own in below.items():
        record = Extent.of(filter(None, [own.get(LEAF)]))
        yield StepInventory(StepKey(rank, step_named(step)), _measure(own), record)


def _directories(
    objects: ObjectStore, rank: int, listed: Mapping[str, StoredObject]
) -> dict[str, dict[str, StoredObject]]:
    """Return the directories of steps, in a local store, each without objects.

    One that a killed writer, or a killed gc, left empty is in no listing of objects.
    """
    keys = commit.list_keys(objects, [rank]) if objects.is_local and listed else []
    return {step: {} for key in keys if (step := key.path.rpartition("/")[2]) not in listed}


def _measure(listed: Mapping[str, StoredObject]) -> dict[str, Generation]:
    measured: dict[str, Generation] = {}
    for name, keys in generations_in(listed).items():
        own = [key for key in keys if not is_temporary(key)]
        # Temporary objects are counted elsewhere, but show that somebody was at work.
        newest_at = max((listed[key].modified_at for key in keys if is_temporary(key)), default=0.0)
        tensors = Extent.of(listed[key] for key in own if is_of_tensors(key))
        measured[name] = Generation(
            tensors, Extent.of(map(listed.__getitem__, own)) + Extent(newest_at=newest_at)
        )
    return measured


def _read_commits(objects: ObjectStore, steps: list[StepInventory]) -> None:
    for start in range(0, len(steps), _COMMITS_AT_ONCE):
        some = steps[start : start + _COMMITS_AT_ONCE]
        commits, damaged = commit.read_many(objects, [step.key for step in some])
        for step in some:
            step.damage = damaged.get(step.key, "")
            if committed := commits.get(step.key):
                step.fingerprint = committed.fingerprint
                step.committed_at = committed.record.committed_at_s
                step.is_anomalous = committed.summary.is_anomalous
                step.has_tensors = committed.without_tensors is None
                step.pool = frozenset(map(sys.intern, committed.record.pool))


def _findings_of_series(objects: ObjectStore) -> tuple[frozenset[int], frozenset[int]]:
    """Return the steps in which rules over several steps or ranks found something bad, and all they saw.

    What they found in a step may be damaged. Then it may have been bad, and counts as bad.
    """
    damages: list[str] = []
    series = read_series(objects, None, damages)
    unknown = {int(damage.removeprefix(f"{SERIES}/").partition(".")[0]) for damage in damages}
    anomalous = {
        step
        for step, stored in series.items()
        if any(finding.severity in WORSE_THAN_INFO for finding in stored.findings)
    }
    return frozenset(anomalous | unknown), frozenset(series.keys() | unknown)


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
        self.newest = newest_steps((step.key for step in self.steps), policy.keep_last or 0)
        self.removed: dict[StepKey, GcAction] = {}
        """The steps that go."""
        self.thinned: dict[StepKey, GcAction] = {}
        """The steps that lose their tensors."""

    @cached_property
    def anomalous(self) -> set[int]:
        """The steps with an anomaly on any rank, or over several."""
        of_ranks = {step.number for step in self.steps if step.is_anomalous}
        return of_ranks | (self.inventory.anomalous_steps & set(self.numbers))

    @cached_property
    def busy(self) -> set[StepKey]:
        """The steps that somebody may be writing."""
        return {
            step.key
            for step in self.steps
            if not all(self._is_old(held.whole) for held in step.uncommitted.values())
        }

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
        if not extent.objects or step.key in self.busy:
            return ""
        if not step.has_tensors:
            # Left by a gc that was killed, or written by somebody who is about to commit them after all.
            return "no commit points to them" if self._is_old(extent) else ""
        if step.number in near or step.key in self.newest:
            return ""
        return f"no anomaly within {self.policy.tensors_around_anomalies} dumped steps"

    def _shrink_to_size(self, others: Sequence[GcAction]) -> None:
        limit = self.policy.max_bytes
        if limit is None:
            return
        going = Counter[StepKey | None]()
        rest = (action for action in others if action.key not in self.removed)
        for action in (*self.removed.values(), *self.thinned.values(), *rest):
            going[action.key] += action.nbytes  # None stands for temporary objects
        left = self.inventory.total.nbytes - going.total()
        left -= sum(map(self._unused_nbytes, self.inventory.pools))
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
