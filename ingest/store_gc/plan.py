"""A plan of `gc`: what it would delete in a store, and what stays and why. As a value, and as a file."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any, Self

from msgspec import structs

from ingest.reader.ranges import format_ranges
from ingest.store_gc.plan_record import FORMAT, What, decode_plan
from ingest.store_gc.policy import GcPolicy
from workers.model import StepKey

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
