"""What `gc` removes and keeps, and its plan: what goes, and what stays and why; as values and as a file.

A plan file is not trusted: it can name what a plan names, and nothing else in the store.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, cast

from msgspec import DecodeError, Meta, Struct, structs
from msgspec.json import Decoder

from ingest.reader.ranges import format_ranges
from ingest.store_gc.inventory import is_temporary
from workers.errors import UsageError
from workers.model import StepKey
from workers.store.announcements import has_begun
from workers.store.packed import pool

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
DAY_S = 86400.0
#: The smallest value that makes sense, by field.
_LOWEST = {
    "older_than_s": 0,
    "keep_last": 1,
    "max_bytes": 0,
    "tensors_around_anomalies": 0,
    "grace_s": 0,
}


@dataclass(frozen=True, slots=True)
class GcPolicy:
    """Which steps and tensors go. The default removes only previous generations and remains of crashes."""

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
    ranks: tuple[int, ...] | None = None
    """With `steps`: remove exactly the steps of these ranks, and nothing else; of all ranks if None."""
    steps: tuple[int, ...] | None = None
    """The same for the numbers of the steps. Excludes all other reasons and all protections."""

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            UsageError: a number is out of range.
        """
        for name, lowest in _LOWEST.items():
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= lowest):
                raise UsageError(
                    f"{name} is {value!r}, which is out of range", hint=f"Give a number of at least {lowest}."
                )
        others = (self.older_than_s, self.keep_last, self.max_bytes, self.tensors_around_anomalies)
        if self.is_choice and (others != (None,) * len(others) or self.keep_anomalous):
            raise UsageError(
                "chosen ranks and steps exclude other reasons to remove or to keep something",
                hint="Give --rank and --step without --older-than, --keep-last, --max-size, --keep-anomalous "
                "and --tensors-around-anomalies.",
            )

    @property
    def is_choice(self) -> bool:
        """Whether steps go because they were chosen by rank and number."""
        return self.ranks is not None or self.steps is not None

    def chooses(self, rank: int, step: int) -> bool:
        """Return whether a step is among the chosen ones."""
        of_rank = self.ranks is None or rank in self.ranks
        return self.is_choice and of_rank and (self.steps is None or step in self.steps)

    @property
    def removes_steps(self) -> bool:
        """Whether there is a reason for which steps or their tensors go."""
        reasons = (self.older_than_s, self.keep_last, self.max_bytes, self.tensors_around_anomalies)
        return self.is_choice or reasons != (None,) * len(reasons)

    @property
    def keeps_only_newest(self) -> bool:
        """Whether a step goes just because it is not among the newest of its rank."""
        others = (self.older_than_s, self.max_bytes, self.tensors_around_anomalies)
        return self.keep_last is not None and others == (None, None, None)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        return asdict(self)


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
    for unit in ("d", "h", "m"):
        if seconds and seconds % _UNITS_S[unit] == 0:
            return f"{seconds / _UNITS_S[unit]:.0f}{unit}"
    return f"{seconds:g}s"


What: TypeAlias = Literal["step", "tensors", "remains", "pool", "temporary", "upload", "announcement"]
Format: TypeAlias = Literal["dump-ingest gc plan 1"]
FORMAT: Format = "dump-ingest gc plan 1"
Natural: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
GenerationName: TypeAlias = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}(?:-[0-9a-f]{16})?\Z")]
OptionalGenerationName: TypeAlias = Annotated[str, Meta(pattern=r"\A(?:[0-9a-f]{32}(?:-[0-9a-f]{16})?)?\Z")]
_HINT = "Make the plan again: dump-ingest gc STORE ... --plan FILE"


class PolicyRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """The policy that a plan was made with."""

    older_than_s: float | None
    keep_last: int | None
    max_bytes: int | None
    tensors_around_anomalies: int | None
    keep_anomalous: bool
    grace_s: float
    ranks: tuple[Natural, ...] | None = None
    steps: tuple[Natural, ...] | None = None

    def __post_init__(self) -> None:
        """Check the ranges of the numbers."""
        try:
            self.policy()
        except UsageError as exc:
            raise ValueError(exc.message) from exc

    def policy(self) -> GcPolicy:
        """Return it as the value that gc works with."""
        return GcPolicy(**structs.asdict(self))


class ActionRecord(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="what"):
    """What every action in a plan file has; `what` says which of the seven kinds it is."""

    objects: Natural
    nbytes: Natural
    why: str
    upload: str = ""

    @property
    def what(self) -> What:
        """The kind of action."""
        return cast("What", self.__struct_config__.tag)


class RemoveStep(ActionRecord, frozen=True, kw_only=True, tag="step"):
    """A step goes with everything below it. Run files never do: `step` is not null."""

    rank: Natural
    step: Natural
    generation: GenerationName
    path: str


class RemoveTensors(RemoveStep, frozen=True, kw_only=True, tag="tensors"):
    """A step loses the payloads of its tensors."""


class RemoveRemains(ActionRecord, frozen=True, kw_only=True, tag="remains"):
    """A generation goes that no commit points to; "" stands for empty directories alone."""

    rank: Natural
    step: Natural | None
    generation: OptionalGenerationName
    path: str


class PathRecord(ActionRecord, frozen=True, kw_only=True):
    """What every action has that names one path in the store, and no step."""

    rank: None
    step: None
    generation: OptionalGenerationName
    path: str

    names: ClassVar[str]
    """What the path is that of."""

    def __post_init__(self) -> None:
        """Check the path."""
        if not self.is_valid:
            message = f"path {self.path!r} is not that of {self.names}"
            raise ValueError(message)

    @property
    def is_valid(self) -> bool:
        """Whether the path may stand in an action of this kind."""
        raise NotImplementedError


class RemovePooled(PathRecord, frozen=True, kw_only=True, tag="pool"):
    """An array in the pool of a step goes, to which no commit refers."""

    names: ClassVar = "an array in the pool of a step"

    @property
    def is_valid(self) -> bool:
        """Whether the path is that of an array in a pool."""
        return pool.step_of(self.path) is not None


class RemoveTemporary(PathRecord, frozen=True, kw_only=True, tag="temporary"):
    """A temporary object of a killed writer goes."""

    names: ClassVar = "a temporary object in the store"

    @property
    def is_valid(self) -> bool:
        """Whether the path is that of a temporary object, and inside of the store."""
        return is_temporary(self.path) and ".." not in self.path.split("/")


class AbortUpload(PathRecord, frozen=True, kw_only=True, tag="upload"):
    """An upload in parts ends that was never completed."""

    names: ClassVar = "an upload into the store"

    @property
    def is_valid(self) -> bool:
        """Whether the path is inside of the store."""
        return self.upload != "" and not {"..", ""} & set(self.path.split("/"))


class EndChange(PathRecord, frozen=True, kw_only=True, tag="announcement"):
    """A change of a commit ends that a killed writer has begun."""

    names: ClassVar = "an announcement in the store"

    @property
    def is_valid(self) -> bool:
        """Whether the path is that of the announcement of a beginning."""
        return has_begun(self.path)


class PlanRecord(Struct, frozen=True):
    """A plan file. It also holds totals, which are for people and are not read."""

    format: Format
    store: str
    made_at: str
    policy: PolicyRecord
    actions: tuple[
        RemoveStep | RemoveTensors | RemoveRemains | RemovePooled | RemoveTemporary | AbortUpload | EndChange,
        ...,
    ]
    notes: tuple[str, ...]
    store_bytes: Natural


_DECODER = Decoder(PlanRecord)


def decode_plan(text: str, where: str) -> PlanRecord:
    """Decode the content of a plan file.

    Raises:
        UsageError: it is not a plan; the message names `where` and the place in it, as `actions[3].step`.
    """
    try:
        return _DECODER.decode(text)
    except (DecodeError, RecursionError, UnicodeEncodeError) as exc:
        raise UsageError(f"{where} is not a gc plan: {_explain(exc)}", hint=_HINT) from exc


def _explain(error: Exception) -> str:
    """Put the place before the problem: msgspec ends its messages in " - at `$.actions[3].step`"."""
    problem, _, place = str(error).partition(" - at `$")
    name = place.strip("`.")
    return f"{name}: {problem}" if name else problem


#: The longest list of numbers that a note spells out, in characters.
_MAX_RANGES = 48


@dataclass(frozen=True, slots=True)
class GcAction:
    """One thing that goes."""

    what: What
    """`step`: a step with everything below it. `tensors`: only the payloads of a step. `remains`: a
    generation that no commit points to. `pool`: an array in the pool of a step that no commit refers to.
    `temporary`: what a killed writer left behind. `upload`: parts of an object that was never completed.
    `announcement`: that a killed writer has begun to change a commit; it goes with the next consolidation."""
    rank: int | None
    """Set for `step`, `tensors` and `remains`."""
    step: int | None
    """Set for the same; None for run files."""
    generation: str
    """The generation that goes, or that loses its tensors; "" if only empty directories go."""
    objects: int
    nbytes: int
    why: str
    path: str = ""
    """The path of an array in a pool; the key of a temporary object, of an announcement, or of what an upload
    was to become; "" for everything else."""
    upload: str = ""
    """What the store calls an upload; "" for everything else."""

    @classmethod
    def at_path(
        cls, what: What, path: str, why: str, *, objects: int = 0, nbytes: int = 0, upload: str = ""
    ) -> Self:
        """Return the removal of something that belongs to no generation of a step."""
        return cls(what, None, None, "", objects, nbytes, why, path, upload)

    @property
    def key(self) -> StepKey | None:
        """The step or the run files that it belongs to; None if it has no rank."""
        return None if self.rank is None else StepKey(self.rank, self.step)


@dataclass(frozen=True, slots=True)
class GcPlan:
    """What `gc` would remove, and what it would leave and why. Making a plan changes nothing."""

    store: str
    made_at: str
    """In ISO 8601."""
    policy: GcPolicy
    actions: tuple[GcAction, ...]
    notes: tuple[str, ...]
    """What stays although the policy does not ask for it, and why; for people."""
    store_bytes: int
    """The size of the whole store when the plan was made."""

    @property
    def objects(self) -> int:
        """How many objects go."""
        return sum(action.objects for action in self.actions)

    @property
    def nbytes(self) -> int:
        """How many bytes go."""
        return sum(action.nbytes for action in self.actions)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain values, with totals."""
        return {
            "format": FORMAT,
            "store": self.store,
            "made_at": self.made_at,
            "policy": self.policy.to_dict(),
            "store_bytes": self.store_bytes,
            "objects": self.objects,
            "nbytes": self.nbytes,
            "notes": list(self.notes),
            "actions": [asdict(action) for action in self.actions],
        }

    def to_json(self) -> str:
        """Return the plan as the text of a file, with one line per action."""
        content = self.to_dict()
        actions = ",\n  ".join(json.dumps(action) for action in content.pop("actions"))
        head = json.dumps(content, indent=1)[:-2]
        return f'{head},\n "actions": [{actions}]\n}}\n'

    @classmethod
    def from_json(cls, text: str, where: str = "plan") -> GcPlan:
        """Return the plan that `to_json` wrote. The text is not trusted; see `plan_record`.

        Args:
            text: the content of the file.
            where: the name of the file, for messages.

        Raises:
            UsageError: the text is not a plan; the message names the place, such as `actions[3].step`.
        """
        record = decode_plan(text, where)
        return cls(
            record.store,
            record.made_at,
            record.policy.policy(),
            tuple(GcAction(what=action.what, **structs.asdict(action)) for action in record.actions),
            record.notes,
            record.store_bytes,
        )


def shortly(numbers: Collection[int]) -> str:
    """Write numbers as ranges; if that is long, as the lowest and the highest."""
    text = format_ranges(numbers)
    return text if len(text) <= _MAX_RANGES else f"{min(numbers)} to {max(numbers)}"
