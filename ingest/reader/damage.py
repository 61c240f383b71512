"""What is damaged in a store, and answers that go on without it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workers.errors import DamagedStore
from workers.model import StepKey
from workers.store.prefetch import prefetch

if TYPE_CHECKING:
    from ingest.reader.step import Step

#: Steps whose index is read ahead of need.
_TABLES_AHEAD = 4


@dataclass(frozen=True, slots=True)
class Damage:
    """A part of the store that is not what was written."""

    key: StepKey
    source: str
    """The dump file it came from; "" if more than one file is concerned."""
    reason: str
    path: str = ""
    """The object that is missing or wrong, relative to the store; "" if no single object is known."""
    row: int = -1
    """The row of the index whose payload is damaged; -1 if no single row is concerned."""

    def __str__(self) -> str:
        reason = self.reason.removeprefix(f"{self.key}: ")
        return f"{self.key}: {self.source + ': ' if self.source else ''}{reason}"


class DamagedStepWarning(UserWarning):
    """An answer is not about some steps, because they are damaged."""


def warn_of(damages: Sequence[Damage], *, has_others: bool) -> None:
    """Warn of damaged steps that an answer is not about.

    Raises:
        DamagedStore: it is about no other steps.
    """
    if not damages:
        return
    if not has_others:
        raise DamagedStore(damages[0].reason)
    more = f", and {len(damages) - 1} more damaged steps" if len(damages) > 1 else ""
    # The caller of the method that calls this.
    warnings.warn(f"left out: {damages[0]}{more}", DamagedStepWarning, stacklevel=3)


def with_tables(steps: Sequence[Step], damages: list[Damage]) -> Iterator[Step]:
    """Yield these steps, each after its index was read; the next ones are read meanwhile.

    Steps whose index is damaged are added to `damages` instead.
    """

    def load(step: Step) -> Step | Damage:
        try:
            _ = step.tables
        except DamagedStore as exc:
            return Damage(step.key, "", exc.message)
        return step

    if len(steps) <= 1:
        loaded: Iterable[Step | Damage] = map(load, steps)  # without a thread
    else:
        loaded = prefetch(steps, load, ahead=_TABLES_AHEAD, threads=_TABLES_AHEAD, name="dump-ingest-read")
    for step in loaded:
        if isinstance(step, Damage):
            damages.append(step)
        else:
            yield step
