"""The invariants: asked before each change of the store and before each deletion in the dump."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from tests.simulation.dump import SimulatedDump, State
from tests.simulation.kernel import EPOCH, Kernel, Violation
from tests.simulation.objects import INDEX, SHARD, Bucket
from workers.model import StepKey
from workers.store import commit
from workers.store.commit import BEGUN, DONE, REMOVED, path_of
from workers.store.packed import pool
from workers.store.record import LEAF

LEASE, CUBES = "consolidated/lease", "consolidated/cubes"
#: Who changes commits within their generation.
CHANGER = "changer"
#: How long gc leaves alone what no commit points to; clocks may differ by a part of it.
GRACE_S, SKEW_S = 2000.0, 700.0
#: Within this time after the last fault and the last change of the job, all of the dump is in the store: the
#: longest pause after a failure is 60 s, commits are read again each minute, and a listing is trusted as long
#: as its files had been quiet, and for a minute at least. A step about which a person had to decide is left
#: alone for 600 s, also if gc removes its commit meanwhile, and idle watchers look every 400 s.
LATE_AFTER_S = 1200.0


_BELOW = re.compile(r"rank_(\d+)/step_(\d+)/")
_LEAF = re.compile(rf"rank_(\d+)/step_(\d+)/{re.escape(LEAF)}")


class Visible(NamedTuple):
    """A commit that readers see."""

    fingerprint: str
    state: State
    """Its files."""
    pool: frozenset[str] = frozenset()
    """The arrays in the pool that it refers to."""


@dataclass(slots=True)
class Judge:
    """What must always hold, and what must hold in the end."""

    kernel: Kernel
    dump: SimulatedDump
    bucket: Bucket
    quiet_s: float
    settle_s: float
    keep_last: int | None = None
    """What gc may remove: all but this many steps; None for nothing that is committed."""
    visible: dict[StepKey, Visible] = field(default_factory=dict)
    removed: dict[StepKey, float] = field(default_factory=dict)
    """When the newest commit of a step was made that gc has removed on purpose."""
    _committed_at: dict[StepKey, float] = field(default_factory=dict)
    newest_begun: int = -1
    """The highest step that the job ever began."""
    strikes: dict[str, int] = field(default_factory=dict)
    """By process: writes in a row under a lease that another one held."""
    refused: set[tuple[StepKey, State]] = field(default_factory=set)
    """Steps, as they were, that a watcher has left to a person, and said so."""
    deleted: set[StepKey] = field(default_factory=set)
    """Steps of which a watcher has deleted files: what comes late stays in the dump."""
    rounds: float = -1.0
    """When a round of a consolidator has ended last."""
    _leaves: dict[StepKey, list[bytes]] = field(default_factory=dict)
    """By step: its commits, one after the other; "" where it was removed."""
    _undone: set[StepKey] = field(default_factory=set)
    """Steps whose commit was undone, unannounced, by what had been given up as the first one of the step."""

    # -- the store

    def before_put(self, writer: str, key: str, data: bytes) -> None:
        """Check that a commit is whole, and that a write under a lease is that of its holder."""
        if key == CUBES:
            self._check_lease(data.decode())
        elif key.startswith(f"{pool.POOL}/"):
            if self.bucket.data(key) not in (None, data):
                raise Violation("no mixture is visible", f"{writer} writes other bytes into {key}")
        elif match := _LEAF.fullmatch(key):
            step = StepKey(int(match[1]), int(match[2]))
            if self.bucket.data(key) not in (None, data):
                self._check_announced(writer, step, commit.parse(data, step).fingerprint)
            self._check_commit(writer, step, data)
            self._leaves.setdefault(step, []).append(data)
            if self.bucket.is_late and writer != CHANGER:
                self._undone.add(step)
        elif match := _BELOW.match(key):
            visible = self.visible.get(StepKey(int(match[1]), int(match[2])))
            is_seen = visible is not None and key.split("/")[2] == visible.fingerprint
            if is_seen and self.bucket.data(key) != data:
                raise Violation("no mixture is visible", f"{writer} writes other bytes into {key}")

    def after_put(self, writer: str, key: str) -> None:
        """Do nothing: what was written was checked before."""

    def before_delete(self, writer: str, key: str) -> None:
        """Check that nothing goes that a commit points to, that is being written, or that is to stay."""
        if key.startswith(f"{pool.POOL}/"):
            self._check_unused(writer, key)
        match = _BELOW.match(key)
        if match is None:
            return
        parts, step = key.split("/"), StepKey(int(match[1]), int(match[2]))
        visible = self.visible.get(step)
        if parts[2] == LEAF:
            self._check_removal(writer, step)
            return
        if visible is not None and visible.fingerprint == parts[2]:
            raise Violation("nothing reachable is removed", f"{writer} removes {key}, which a commit needs")
        newest = max(
            at for name, (_, at) in self.bucket.objects.items() if name.startswith("/".join(parts[:3]))
        )
        if self.keep_last is None and EPOCH + self.kernel.now - newest < GRACE_S - SKEW_S:
            raise Violation("nothing in progress is removed", f"{writer} removes {key}, which is new")

    def _check_unused(self, writer: str, key: str) -> None:
        users = [step for step, visible in self.visible.items() if any(map(key.startswith, visible.pool))]
        if users:
            raise Violation("nothing reachable is removed", f"{writer} removes {key}, which {users[0]} needs")
        if EPOCH + self.kernel.now - self.bucket.objects[key][1] < GRACE_S - SKEW_S:
            raise Violation("nothing in progress is removed", f"{writer} removes {key}, which is new")

    def _check_removal(self, writer: str, key: StepKey) -> None:
        newest = sorted((other.step or 0 for other in self.visible), reverse=True)[: self.keep_last or 0]
        if self.keep_last is None or key.step in newest:
            raise Violation("nothing committed is lost", f"{writer} removes the commit of {key}")
        if not any(name.startswith(f"rank_{key.rank}/removed/{key.step}.") for name in self.bucket.objects):
            raise Violation("nothing committed is lost", f"{writer} removes {key} without a tombstone")
        self._check_announced(writer, key, REMOVED)
        self._leaves[key].append(b"")
        del self.visible[key]
        self.removed[key] = self._committed_at[key]

    def _check_announced(self, writer: str, key: StepKey, word: str) -> None:
        """Check that a change of a commit is announced by this word, or as one that has begun.

        What was given up as the first commit of a step may arrive after another one, and undo it unannounced.
        """
        if self.bucket.is_late:
            return
        prefix = path_of(key, "")
        words = {name.removeprefix(prefix) for name in self.bucket.objects if name.startswith(prefix)}
        done = {f"{BEGUN}{other.removeprefix(DONE)}" for other in words if other.startswith(DONE)}
        if word not in words and not any(other.startswith(BEGUN) for other in words - done):
            raise Violation("no change is silent", f"{writer} changes the commit of {key} unannounced")

    def _check_commit(self, writer: str, key: StepKey, data: bytes) -> None:
        committed = commit.parse(data, key)
        pooled = [f"{path}/{name}" for path in committed.record.pool for name in (pool.SHARD, pool.NODE)]
        if missing := [name for name in pooled if self.bucket.data(name) is None]:
            raise Violation("no half step is visible", f"{writer} commits {key} without {missing[0]}")
        names = [f"{committed.prefix}/{name}" for name in (INDEX, *committed.record.stored)]
        objects = [self.bucket.data(name) for name in names]
        present = [json.loads(stored) for stored in objects if stored is not None]
        if len(present) < len(names):
            missing = [name for name, stored in zip(names, objects, strict=True) if stored is None]
            raise Violation("no half step is visible", f"{writer} commits {key} without {missing[0]}")
        index: dict[str, tuple[int, int]] = present[0]
        contents = {path: content for shard in present[1:] for path, content in shard.items()}
        state = frozenset((path, size, mtime_ns) for path, (size, mtime_ns) in index.items())
        self._check_content(writer, key, state, contents)
        self._check_moment(writer, key, state)
        self.visible[key] = Visible(committed.fingerprint, state, frozenset(committed.record.pool))
        self._committed_at[key] = datetime.fromisoformat(committed.record.committed_at).timestamp()

    def _check_content(
        self, writer: str, key: StepKey, state: State, contents: Mapping[str, list[int]]
    ) -> None:
        """Check that each file has the bytes that it had at its size and time."""
        for path, size, mtime_ns in state:
            if tuple(contents.get(path, ())) != self.dump.contents[path, size, mtime_ns]:
                raise Violation("no mixture is visible", f"{writer} commits {key} with other bytes of {path}")

    def _check_moment(self, writer: str, key: StepKey, state: State) -> None:
        """Check that a step was in this state at one moment, and for as long as silence has to last."""
        spans = self.dump.history.get(key, {}).get(state)
        if not spans:
            raise Violation("no mixture is visible", f"{writer} commits {key} as it never was")
        lasted = max((self.kernel.now if span.until is None else span.until) - span.since for span in spans)
        wanted = self.settle_s if (key.step or 0) < self.newest_begun else self.quiet_s
        if lasted < wanted:
            raise Violation(
                "no half step is visible", f"{writer} commits {key} as it was for {lasted:.1f} s only"
            )

    def _check_lease(self, owner: str) -> None:
        record = self.bucket.data(LEASE)
        if record is not None and json.loads(record)["owner"] == owner:
            self.strikes[owner] = 0
            return
        # Whoever loses the lease between looking and writing may end the one write that it had begun.
        self.strikes[owner] = self.strikes.get(owner, 0) + 1
        if self.strikes[owner] > 1:
            raise Violation("one holder writes", f"{owner} goes on to write without the lease")

    # -- copies of commits

    def moment(self) -> dict[StepKey, int]:
        """Return for each step with a commit how many commits it has had so far."""
        return {key: len(leaves) for key, leaves in self._leaves.items()}

    def check_copy(self, key: StepKey, copy: bytes, asked: int) -> None:
        """Check that a copy is what the commit was when somebody asked, as `moment` said then, or later."""
        if key not in self._undone and copy not in self._leaves[key][asked - 1 :]:
            raise Violation("copies are commits", f"the copy of {key} is not its commit")

    # -- the dump

    def before_unlink(self, who: str, key: StepKey, path: str) -> None:
        """Check that the store has every byte of a file that a watcher deletes."""
        if who == "job":
            return
        file = self.dump.files[key][path]
        visible = self.visible.get(key)
        if visible is None or (path, file.content.size, file.mtime_ns) not in visible.state:
            raise Violation("only what is stored is deleted", f"{who} deletes {path}: no commit has it")
        prefix = f"{key.path}/{visible.fingerprint}/{SHARD}/"
        for name, (data, _) in self.bucket.objects.items():
            if name.startswith(prefix) and path in json.loads(data):
                if name in self.bucket.spoiled:
                    break
                self.deleted.add(key)
                return
        raise Violation("only what is stored is deleted", f"{who} deletes {path}: the store does not have it")

    # -- in the end

    def missing(self) -> list[StepKey]:
        """Return the steps that the store does not have as the dump has them, nor has removed on purpose."""
        return [key for key in self.dump.present() if not self._is_held(key, self.dump.state(key))]

    def _is_held(self, key: StepKey, state: State) -> bool:
        visible = self.visible.get(key)
        if visible is not None:
            # Only where files of the commit are gone: else a watcher has to decide.
            is_less = {path for path, _, _ in visible.state} > {path for path, _, _ in visible.state & state}
            is_named = is_less and (key, state) in self.refused
            return state <= visible.state or key in self.deleted or is_named
        # As users are told: what is not newer than a commit that was removed goes with it.
        newest = max(mtime_ns for _, _, mtime_ns in state) / 1e9
        return newest <= self.removed.get(key, 0.0) + 0.001

    def check_rounds(self, since: float) -> None:
        """Check that consolidators go on.

        Raises:
            Violation: none has ended a round since.
        """
        if self.rounds < since and self.kernel.now > since + LATE_AFTER_S:
            raise Violation(
                "nothing is late", f"no consolidator has gone on {LATE_AFTER_S:.0f} s after faults"
            )
