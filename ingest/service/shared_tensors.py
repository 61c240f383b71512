"""What the ranks of a run share, as its consolidated view shows it: for what goes into the pool of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xxhash

from ingest.planning.inspection import Inspected
from ingest.planning.pooling import Shared, shared_in_step, shared_tensors
from ingest.planning.rows import plan_rows
from ingest.reader.cube_conditions import ConsolidatedCubes, open_cubes
from workers.arrays.digest import DIGEST_BYTES
from workers.dump.source import OpenFile
from workers.errors import AccessDenied, DamagedStore, SourceChanged, StoreError
from workers.model import MIB, StepKey
from workers.store.consolidated.blocks import TensorKey
from workers.store.model import Grid
from workers.store.objects import ObjectStore
from workers.tasks.model import Entry

#: The digests of one step that are read at once: 1500 ranks of 5000 tensors. Larger runs share nothing.
_MOST_NBYTES = 128 * MIB
#: With more earlier steps than this, only every sixteenth of them is looked into.
_INTERVAL = 16


@dataclass(eq=False)
class SharedTensors:
    """Tells what a rank is expected to share in a step. Not safe to share between threads.

    Takes a request for each step that the view has gained, one or two for each earlier step that is looked
    into, and one more for each rank there. Memory: the names of the tensors; while digests are read, twice
    theirs, up to 256 MiB.
    """

    objects: ObjectStore
    _cubes: ConsolidatedCubes | None = None
    _keys: list[TensorKey] = field(default_factory=list)
    _asked_for: int | None = None
    """The step that the view was opened for."""
    _known: dict[tuple[str, int, int], Shared] = field(default_factory=dict)
    """By epoch of the view, place of the earlier step, and rank."""

    def of(self, key: StepKey) -> Shared:
        """Return the tensors expected to be shared; none if the view has no earlier step, or cannot be read.

        The expectation decides where bytes are stored, never which: without it, the rank stores its own.
        """
        if key.step is None:
            return {}
        try:
            if key.step != self._asked_for:
                self._open(key.step)
            return self._expected(key.rank, key.step)
        except (DamagedStore, StoreError):
            self._asked_for = None  # the next step asks again
            return {}

    def _open(self, step: int) -> None:
        """Take over what the view has by now."""
        before, self._cubes = self._cubes, open_cubes(self.objects)
        self._asked_for = step
        if before is None or self._cubes is None:
            return
        was, now = before.state, self._cubes.state
        if now.epoch != was.epoch:
            self._keys = []
        elif now.revision == was.revision:
            self._cubes = before  # with what was read of it

    def _expected(self, rank: int, step: int) -> Shared:
        cubes = self._cubes
        if cubes is None or cubes.state.ranks * cubes.state.tensors * DIGEST_BYTES > _MOST_NBYTES:
            return {}
        ranks = cubes.ranks.tolist()
        if rank not in ranks or len(ranks) == 1:  # nobody to share with: no digests are read
            return {}
        for place in _places_to_ask(cubes, step):
            known = (cubes.state.epoch, place, rank)
            if known not in self._known:
                shared = shared_tensors(self._tensors(cubes), cubes.cube("digest", place), ranks.index(rank))
                # Of each rank, only what was asked for last.
                self._known = {name: was for name, was in self._known.items() if name[2] != rank}
                self._known[known] = shared
            if self._known[known]:
                return self._known[known]
        return {}

    def _tensors(self, cubes: ConsolidatedCubes) -> list[TensorKey]:
        """Return the axis of tensors, which only grows; it takes nine requests."""
        if len(self._keys) < cubes.state.tensors:
            self._keys = cubes.axis.keys
        return self._keys[: cubes.state.tensors]


def _places_to_ask(cubes: ConsolidatedCubes, step: int) -> list[int]:
    """Return the places of the earlier steps to look into, in this order.

    Watchers that open the view at different times should look into the same step, because units are named by
    what was equal there. So it is not the latest one, but one that stays for a while: the 1st, 2nd, 4th, 8th
    of the earlier steps, and then each 16th. If the rank shares nothing there, it is the latest one.
    """
    rewriting = set(cubes.state.rewriting)
    steps = cubes.steps
    places = [place for place in np.argsort(steps).tolist() if steps[place] < step and place not in rewriting]
    if not places:
        return []
    last = len(places) - 1
    chosen = last - last % _INTERVAL if last >= _INTERVAL else 1 << last.bit_length() - 1 if last else 0
    return list(dict.fromkeys([places[chosen], places[-1]]))


#: Bytes of a payload that are read in its middle, and as many at its end.
_PROBE_NBYTES = 1024


@dataclass(eq=False)
class SharedInDump:
    """Tells what ranks of one dump are expected to share in a step that all of them have.

    By a few bytes of each tensor, so nothing needs to be stored before. Memory: the names of the tensors of
    the ranks that are compared, of one step.
    """

    root: Path
    """The dump."""
    grid: Grid
    complete: Callable[[StepKey], Sequence[Inspected]]
    """Returns the step of a rank, and the same of the other ranks that are complete and not taken yet."""
    _step: int | None = None
    _known: dict[int, Shared] = field(default_factory=dict)
    """By rank."""

    def of(self, key: StepKey) -> Shared:
        """Return the tensors that are expected to be shared; none for files that belong to no step."""
        if key.step is None:
            return {}
        if self._step != key.step:
            self._step, self._known = key.step, {}
        if key.rank not in self._known:
            ranks = self.complete(key)
            rows = [plan_rows(inspected) for inspected in ranks] if len(ranks) > 1 else []
            entries = [([row.entry for row in of_rank], [row.sample for row in of_rank]) for of_rank in rows]
            keys = [inspected.listing.key for inspected in ranks]
            shared = shared_in_step(entries, self.grid, lambda place, entry: self._probe(keys[place], entry))
            self._known |= {key.rank: {}} | {key.rank: own for key, own in zip(keys, shared, strict=False)}
        return self._known[key.rank]

    def _probe(self, key: StepKey, entry: Entry) -> int | None:
        """Return what equal payloads have in common in the middle and at the end."""
        middle, last = entry.nbytes // 2, entry.nbytes - _PROBE_NBYTES
        try:
            with OpenFile(self.root, entry.source, str(key)) as file:
                read = [file.read_at(entry.offset + at, _PROBE_NBYTES) for at in (middle, last)]
        except (AccessDenied, SourceChanged, OSError):  # whoever converts it says so
            return None
        return xxhash.xxh3_64_intdigest(b"".join(read))
