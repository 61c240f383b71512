"""Who takes part for the copies of commits: who changes commits, who copies them, and who believes copies.

What is simulated of the consolidated view is where a copy stands: one object for each step of a rank. When a
commit is read and copied, and which announcements stand, is up to the real code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from msgspec import structs

from ingest.consolidating.consolidator import clear_announcements
from tests.simulation.faults import Faults
from tests.simulation.judge import CHANGER, Judge
from tests.simulation.kernel import Killed, Process
from tests.simulation.objects import Bucket, SimulatedObjects
from workers.errors import StoreError
from workers.model import StepKey
from workers.store import commit
from workers.store.commit import read_announcements
from workers.store.record import encode_leaf

_COPIES = "consolidated/commit"
_ROUND_S = 30.0
_PAUSES_S = (1.0, 20.0, 90.0)


def _path_of(key: StepKey) -> str:
    return f"{_COPIES}/{key.rank}.{key.step}"


@dataclass(slots=True)
class Changer:
    """Changes commits within their generation, as `gc`, `sketch` and `repair` do."""

    bucket: Bucket
    faults: Faults
    judge: Judge
    changes: int

    def run(self) -> None:
        """Change some commits, with pauses."""
        kernel = self.bucket.kernel
        while self.changes:
            kernel.sleep(_PAUSES_S[kernel.choices.pick(len(_PAUSES_S))])
            process = Process(CHANGER, kernel)
            try:
                self._change(SimulatedObjects(process, self.bucket, self.faults))
            except StoreError:
                process.note("fails")
            except Killed:
                process.note("is killed")
            self.changes -= 1

    def _change(self, objects: SimulatedObjects) -> None:
        keys = sorted(self.judge.visible, key=lambda key: key.order)
        committed = commit.read(objects, keys[self.bucket.kernel.choices.pick(len(keys))]) if keys else None
        if committed is None:
            return
        totals = committed.record.summary
        totals = replace(totals, stored_bytes=totals.stored_bytes + 1)
        data = encode_leaf(structs.replace(committed.record, summary=totals), committed.nodes)
        history = committed.record.generations
        commit.replace_leaf(objects, committed.key, data, committed.fingerprint, history)


@dataclass(slots=True)
class Copier:
    """Copies commits that are new or announced, in the order of the consolidator.

    No write of a copy may arrive late: like the rest of the view, copies rest on one writer at a time.
    """

    bucket: Bucket
    faults: Faults

    def run(self) -> None:
        """Copy, for ever; started again when it is killed."""
        kernel = self.bucket.kernel
        while True:
            process = Process("copier", kernel)
            objects = SimulatedObjects(process, self.bucket, self.faults)
            try:
                while True:
                    self._copy(objects)
                    process.sleep(_ROUND_S)
            except StoreError:
                process.note("fails")
            except Killed:
                process.note("is killed")
            kernel.sleep(_ROUND_S)

    def _copy(self, objects: SimulatedObjects) -> None:
        announced = read_announcements(objects)
        new = [key for key in commit.list_keys(objects, commit.list_ranks(objects)) if self._is_new(key)]
        keys = sorted({*announced, *new}, key=lambda key: key.order)
        commits, damaged = commit.read_many(objects, keys)
        copies = {key: commits[key].data if key in commits else b"" for key in keys}
        objects.put_many({_path_of(key): data for key, data in copies.items()})
        clear_announcements(objects, announced, commits, damaged)

    def _is_new(self, key: StepKey) -> bool:
        return key.step is not None and not self.bucket.data(_path_of(key))


@dataclass(slots=True)
class Believer:
    """Takes copies for commits, as questions do, if no change is announced."""

    bucket: Bucket
    judge: Judge
    begun_at: float = -1.0
    """When its last reading began that has ended."""

    def run(self) -> None:
        """Read, for ever."""
        kernel = self.bucket.kernel
        process = Process("believer", kernel, may_die=False)
        objects = SimulatedObjects(process, self.bucket, Faults(kernel.choices))
        while True:
            begun_at = kernel.now
            announced = read_announcements(objects)
            asked = self.judge.moment()
            for key in asked.keys() - announced.keys():
                if copy := objects.get(_path_of(key)):
                    self.judge.check_copy(key, copy, asked[key])
            self.begun_at = begun_at
            process.sleep(_ROUND_S)
