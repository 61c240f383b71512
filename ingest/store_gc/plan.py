"""What `gc` removes and keeps, and its plan: what goes, and what stays and why; as values and as a file.

A plan file is not trusted: it can name what a plan names, and nothing else in the store.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import DecodeError, Meta, Struct, to_builtins
from msgspec.json import Decoder

from ingest.reader.choice import format_ranges
from ingest.store_gc.inventory import is_temporary
from workers.errors import UsageError
from workers.model import StepKey
from workers.store.commit import has_begun
from workers.store.packed import pool

Natural: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
What: TypeAlias = Literal["step", "tensors", "remains", "pool", "temporary", "upload", "announcement"]
Format: TypeAlias = Literal["dump-ingest gc plan 1"]
FORMAT: Format = "dump-ingest gc plan 1"
Generation: TypeAlias = Annotated[str, Meta(pattern=r"\A(?:[0-9a-f]{32}(?:-[0-9a-f]{16})?)?\Z")]
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
        """Check the numbers."""
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
    generation: Generation
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
        """Check that it names what this kind of action may."""
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
