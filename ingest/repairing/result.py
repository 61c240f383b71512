"""What was damaged in a store, what became of it, and where the bytes came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from workers.model import StepKey


@dataclass(frozen=True, slots=True)
class Mended:
    """One object that was made again, or would be."""

    path: str
    """The object, or the group, relative to the store."""
    origin: str
    """Where its content comes from, for people: `the dump /data/dump`, `rank 1 step 3`, `the commit`."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Something that nothing could be found for."""

    what: str
    """A dump file, or an object relative to the store."""
    reason: str


@dataclass(slots=True)
class StepRepair:
    """What became of one damaged step, or of what lies beside the steps."""

    key: StepKey | None
    """None for the root, the groups of ranks and the consolidated view."""
    damages: tuple[str, ...]
    """What was found to be damaged."""
    mended: list[Mended] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    generation: str = ""
    """The new generation that the commit points to now, or would; "" if the committed one was repaired."""
    remains: tuple[str, ...] = ()
    """What is still damaged after everything was written; empty in a dry run."""

    @property
    def is_whole(self) -> bool:
        """Whether everything is, or would be, as it was written."""
        return not self.lost and not self.remains

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "rank": None if self.key is None else self.key.rank,
            "step": None if self.key is None else self.key.step,
            "damages": list(self.damages),
            "mended": [{"path": mended.path, "from": mended.origin} for mended in self.mended],
            "lost": [{"what": lost.what, "reason": lost.reason} for lost in self.lost],
            "generation": self.generation or None,
            "remains": list(self.remains),
        }


@dataclass(slots=True)
class RepairReport:
    """The outcome of a repair, or of its dry run."""

    store: str
    applied: bool
    """Whether anything was written; a dry run only says what would be."""
    checked: int = 0
    """How many steps were read."""
    repairs: list[StepRepair] = field(default_factory=list)
    """One for each damaged step, and one for what lies beside the steps if that is damaged."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing is damaged now: nothing was, or all of it was repaired and nothing is lost."""
        return not self.repairs or (self.applied and all(repair.is_whole for repair in self.repairs))

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "store": self.store,
            "applied": self.applied,
            "checked": self.checked,
            "repairs": [repair.to_dict() for repair in self.repairs],
        }
