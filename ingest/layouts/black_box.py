"""What black boxes of the recorder write beside the steps of a dump; see `ingest.recording.black_box`.

    black-box/trigger                          anybody may write it: its text says why all ranks are to save
    black-box/step_{step}.rank_{rank}.json     a trigger that all ranks obey
    black-box/{directory of a rank}/owner.json    locked as long as its process lives
    black-box/{directory of a rank}/state.json    what its ring holds now

Nothing there is part of a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from workers.errors import UsageError
from workers.events import Event

DIRECTORY = "black-box"
OWNER_FILE = "owner.json"
STATE_FILE = "state.json"
#: Names of files by which anybody may trigger begin with it: `trigger`, `trigger-now`.
OUTSIDE = "trigger"
MAX_WHY = 200

Content = TypeVar("Content")


@dataclass(frozen=True, slots=True, order=True)
class Trigger:
    """Why steps are to be saved, and which; one file."""

    step: int
    rank: int
    why: str
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.why} (rank {self.rank}, step {self.step})"

    @property
    def file_name(self) -> str:
        """The name of its file."""
        return f"step_{self.step:09d}.rank_{self.rank}.json"


@dataclass(frozen=True, slots=True)
class RingState:
    """The black box of one rank at one moment."""

    rank: int
    host: str
    at: float
    """When, in Unix time by the clock of the host: the file is written at most once a second."""
    steps: tuple[int, ...]
    """What a trigger would save now."""
    nbytes: int
    keep_nbytes: int
    saved_nbytes: int
    """What incidents have taken so far."""
    budget_nbytes: int
    left_out: int
    """How many tensors lack elements, or were not recorded, because ring or queue were full."""
    overhead: float
    """What the recorder has cost since the second step, as a share of the processor time without it."""
    lost: int
    """How many steps could not be written, or only in part."""


@dataclass(frozen=True, slots=True)
class RingFound(Event):
    """The ring of a process that died was taken in, or could not be."""

    told: str
    """Which, and what became of its steps."""


@dataclass(frozen=True, slots=True)
class BlackBoxes(Event):
    """The black boxes of a dump at one moment."""

    rings: tuple[RingState, ...] = ()
    """By rank; of processes that live."""
    incidents: tuple[Trigger, ...] = ()
    """What was to be saved so far in this run, and why."""


def first_of_each(triggers: Iterable[Trigger]) -> list[Trigger]:
    """Return of triggers that concern the same steps the earliest."""
    firsts: list[Trigger] = []
    for trigger in sorted(triggers):
        if not firsts or trigger.step > firsts[-1].last:
            firsts.append(trigger)
    return firsts


def read_boxes(root: Path) -> BlackBoxes:
    """Return what the black boxes of a dump say of themselves; what cannot be read is left out."""
    rings = _read(root / DIRECTORY, f"rank_*/{STATE_FILE}", RingState)
    triggers = _read(root / DIRECTORY, "step_*.json", Trigger)
    return BlackBoxes(tuple(sorted(rings, key=lambda ring: ring.rank)), tuple(first_of_each(triggers)))


def _read(directory: Path, pattern: str, content: type[Content]) -> Iterator[Content]:
    for path in directory.glob(pattern):
        with suppress(OSError, msgspec.MsgspecError):
            yield msgspec.json.decode(path.read_bytes(), type=content)


def trigger_from_outside(root: Path, why: str) -> None:
    """Have all ranks that record into a dump save what their rings hold.

    Raises:
        UsageError: nothing records into it with a black box, or this process may not write there.
    """
    if not any((root / DIRECTORY).glob(f"rank_*/{OWNER_FILE}")):
        raise UsageError(f"no black box records into {root}", hint="`ingest.record(..., black_box=8)`")
    try:
        write_whole(root / DIRECTORY / OUTSIDE, why.encode())
    except OSError as exc:
        raise UsageError(f"cannot trigger: {exc}", hint="It takes permission to write there.") from exc


def write_whole(path: Path, content: bytes) -> None:
    """Write a small file so that nobody sees half of it.

    Raises:
        OSError: it cannot be written.
    """
    written = path.with_name(f".{path.name}")
    written.write_bytes(content)
    written.replace(path)
