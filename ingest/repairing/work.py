"""The repair of one step, as its parts share it: what may be done, and what was done so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from ingest.reader.catalog import Catalog
from ingest.repairing.remaking import Dumps, Remade
from ingest.repairing.result import Lost, Mended, StepRepair
from workers.model import StepKey
from workers.store.commit import Commit
from workers.store.objects import ObjectStore
from workers.store.record import LEAF


@dataclass(frozen=True, slots=True)
class RepairPolicy:
    """What a repair may do."""

    apply: bool = False
    """Whether to write; otherwise it only says what it would write."""
    accept_loss: bool = False
    """Whether a step is committed again without the payloads that are found nowhere."""


class Unmendable(Exception):
    """Nothing is known that an object can be made from."""

    def __init__(self, what: str, reason: str) -> None:
        """Name the object, and say what to do."""
        super().__init__(reason)
        self.lost = Lost(what, reason)


@dataclass(eq=False)
class StepWork:
    """The repair of one step."""

    catalog: Catalog
    key: StepKey
    dumps: Dumps
    policy: RepairPolicy
    repair: StepRepair
    """What was done so far."""
    _remade: list[Remade | None] = field(default_factory=list)
    """What the dump gives for the committed generation; empty before it was asked."""

    @property
    def objects(self) -> ObjectStore:
        """The objects of the store."""
        return self.catalog.objects

    @property
    def leaf_path(self) -> str:
        """The key of the commit."""
        return f"{self.key.path}/{LEAF}"

    def put(self, path: str, data: bytes, origin: str) -> None:
        """Write one object, unless this is a dry run."""
        if self.policy.apply:
            self.objects.put(path, data)
        self.mended(path, origin)

    def mended(self, path: str, origin: str) -> None:
        """Note that an object is made again, and where from."""
        self.repair.mended.append(Mended(path, origin))

    def remember(self, remade: Remade) -> None:
        """Keep what the dump gives for the committed generation."""
        self._remade.append(remade)

    def remade(self, committed: Commit) -> Remade | None:
        """Return the committed generation as the dump gives it. The dump is read once."""
        if not self._remade:
            self._remade.append(self.dumps.remake(self.key, [committed.fingerprint], committed.record))
        return self._remade[0]
