"""A store at one moment, so that one view is about one state, and nothing is read twice."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

import xxhash

from ingest.reader.damage import Damage
from ingest.reader.dump_store import DumpStore
from ingest.reader.step import Step
from workers.errors import StoreUnavailable
from workers.model import StepKey
from workers.store import commit

#: Indexes that stay in memory; one of 5000 tensors takes 3 MB.
_TABLES_KEPT = 16


class PinnedStore(DumpStore):
    """A store whose answers are all about what was committed when it was opened."""

    def reopened(self) -> Self:
        """Return this very store: what it has read is not read again."""
        return self


@dataclass(eq=False)
class Moment:
    """What is committed at one moment."""

    store: PinnedStore
    token: str
    """Names what is committed: equal tokens, equal answers."""
    read_at: float
    """When the store was listed, in seconds since the epoch."""
    steps: tuple[Step, ...]
    """All committed steps and run files: by step, then rank."""
    damages: tuple[Damage, ...]
    _tables: OrderedDict[StepKey, Step] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, store: DumpStore) -> Moment:
        """Read all commits of a store.

        Raises:
            StoreError: it cannot be read.
        """
        pinned = PinnedStore(store.objects)
        damages: list[Damage] = []
        steps = tuple(pinned.select(damages=damages))
        return cls(pinned, _token(steps, damages), time.time(), steps, tuple(damages))

    def later(self) -> Moment:
        """Return the store as it is now; this moment, with a new time, if nothing was committed since.

        Raises:
            StoreError: it cannot be read, or it is gone: a directory that is not mounted looks empty.
        """
        if commit.read_root(self.store.objects) is None:
            raise StoreUnavailable(f"{self.store.url}: the store is not there any more")
        fresh = Moment.of(self.store)
        if fresh.token != self.token:
            return fresh
        self.read_at = fresh.read_at
        return self

    def opened(self, rank: int, step: int | None) -> Step:
        """Return one step, and let go of the index of the one that was not asked for the longest.

        Raises:
            UsageError: it is not in the store.
        """
        chosen = self.store.step(rank, step)
        with self._lock:
            self._tables[chosen.key] = chosen
            self._tables.move_to_end(chosen.key)
            forgotten = self._tables.popitem(last=False)[1] if len(self._tables) > _TABLES_KEPT else None
        if forgotten is not None:
            forgotten.forget_tables()
        return chosen

    @cached_property
    def ranks(self) -> list[int]:
        """The ranks with a committed step, in order."""
        return sorted({step.key.rank for step in self.steps if step.key.step is not None})

    @cached_property
    def numbers(self) -> list[int]:
        """The numbers of the committed steps, in order."""
        return sorted({step.key.step for step in self.steps if step.key.step is not None})


def _token(steps: tuple[Step, ...], damages: list[Damage]) -> str:
    names = [f"{step.key} {step.fingerprint}" for step in steps] + [str(damage) for damage in damages]
    return xxhash.xxh3_64_hexdigest("\n".join(names).encode())
