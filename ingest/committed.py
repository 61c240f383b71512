"""What the store already holds of the ranks of a dump: the state of the service, kept by the store alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from workers.model import CommitSummary, StepKey
from workers.store import commit
from workers.store.objects import ObjectStore


@dataclass(slots=True)
class Committed:
    """A cache of the fingerprints in the store, loaded rank by rank when first asked for."""

    objects: ObjectStore
    _fingerprints: dict[StepKey, str] = field(default_factory=dict)
    _loaded: set[int] = field(default_factory=set)

    def holds(self, key: StepKey, fingerprint: str) -> bool:
        """Whether this generation of the step is committed, as far as is known."""
        if key.rank not in self._loaded:
            keys = commit.list_keys(self.objects, [key.rank])
            for found in commit.read_many(self.objects, keys):
                self._fingerprints[found.key] = found.fingerprint
            self._loaded.add(key.rank)
        return self._fingerprints.get(key) == fingerprint

    def check_again(self, key: StepKey, fingerprint: str) -> bool:
        """Ask the store the same: another watcher may have committed the step meanwhile."""
        found = commit.read(self.objects, key)
        if found is not None:
            self._fingerprints[key] = found.fingerprint
        return self._fingerprints.get(key) == fingerprint

    def add(self, summary: CommitSummary) -> None:
        """Note a commit that was just made."""
        self._fingerprints[summary.key] = summary.fingerprint

    def newest_step(self, rank: int) -> int | None:
        """Return the highest committed step of a rank."""
        steps = [key.step for key in self._fingerprints if key.rank == rank and key.step is not None]
        return max(steps, default=None)
