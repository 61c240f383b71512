"""The words for where a step is: its phase, what it waits for, until when it is left alone."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ingest.layouts.base import Problem


class Phase(StrEnum):
    """Where a step is on its way from the dump into the store. A closed set: it is part of JSON output."""

    UNLISTED = "unlisted"
    """The store has something of the step and was not asked what; until then its files are not listed."""
    WAITING = "waiting"
    """The step is not complete; see `WaitFor`."""
    DENIED = "denied"
    """Somebody has to grant a permission or to name a rank first."""
    PAUSED = "paused"
    """The step failed, or its run files keep changing; it is left alone for a while."""
    READY = "ready"
    """As far as is known, the step is complete; it waits for its turn."""
    OFFERED = "offered"
    """The step is planned; its tasks wait for room among the bytes in flight."""
    CONVERTING = "converting"
    """Workers convert its files."""
    RETRYING = "retrying"
    """A task of the step failed and waits to be submitted again."""
    PUBLISHING = "publishing"
    """All files are converted; a worker writes index and commit."""
    COMMITTED = "committed"
    """The store has the step as the dump has it."""
    LEFT_OUT = "left_out"
    """The same without the payloads of its tensors, which are left out while the disk is nearly full."""
    KEPT = "kept"
    """The store has more of the step than the dump has by now; the commit stays."""
    REMOVED = "removed"
    """The step was removed from the store on purpose."""
    REFUSED = "refused"
    """The step cannot be taken as it is."""


class WaitFor(StrEnum):
    """What a step waits for before it is offered to the workers."""

    FILES = "files"
    """The first file."""
    TIME = "time"
    """Silence: nothing may have changed for a while."""
    CONTENT = "content"
    """The rest of a file."""
    PERMISSION = "permission"
    """What its `problems` name."""
    LOOK = "look"
    """The next scan of the dump, because something has changed since the last one."""
    STORE = "store"
    """The answer of the store to the question what it has of the step."""
    PAUSE = "pause"
    """The end of a pause."""
    TASKS = "tasks"
    """The end of its own tasks."""
    DELETION = "deletion"
    """The end of the deletion of its files, which the store has."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a step is not offered to the workers now."""

    wait_for: WaitFor
    reason: str
    """For people."""
    problems: tuple[Problem, ...] = ()
    """What has to be done first, for `WaitFor.PERMISSION`."""

    @property
    def phase(self) -> Phase:
        """The phase of a step that waits for this."""
        return _PHASES.get(self.wait_for, Phase.WAITING)


_PHASES = {
    WaitFor.PERMISSION: Phase.DENIED,
    WaitFor.STORE: Phase.UNLISTED,
    WaitFor.PAUSE: Phase.PAUSED,
}


@dataclass(frozen=True, slots=True)
class Pause:
    """How long a step, or a task of one, is left alone."""

    until: float
    """By the monotonic clock of the service."""
    reason: str
    for_store: bool = False
    """Whether the store did not answer; the pause ends when it answers again."""
    for_person: bool = False
    """Whether somebody has to decide something; the pause ends early if the files of the step change."""


@dataclass(frozen=True, slots=True)
class Cover:
    """A listing for which the commit of the step stands, although it was made from another one."""

    fingerprint: str
    """Of that listing."""
    phase: Phase
    reason: str
