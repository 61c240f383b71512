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
            # A damaged commit is no commit here: the source is still there, and makes a good one.
            for found in commit.read_many(self.objects, keys, skip_damaged=True):
                self._fingerprints[found.key] = found.fingerprint
            self._loaded.add(key.rank)
        return self._fingerprints.get(key) == fingerprint

    def check_again(self, key: StepKey, fingerprint: str) -> bool:
        """Ask the store the same: another watcher may have committed the step meanwhile."""
        for found in commit.read_many(self.objects, [key], skip_damaged=True):
            self._fingerprints[key] = found.fingerprint
        return self._fingerprints.get(key) == fingerprint

    def add(self, summary: CommitSummary) -> None:
        """Note a commit that was just made."""
        self._fingerprints[summary.key] = summary.fingerprint
