"""What lies beside the steps of a store: its root, the groups of ranks, and the consolidated view."""

from __future__ import annotations

from ingest.consolidating.consolidator import Consolidator
from ingest.consolidating.lease import LeaseHeld
from ingest.reader.verifying.verify_view import StoreDamage, verify_copies, verify_surroundings
from ingest.repairing.result import Lost, Mended, StepRepair
from workers.errors import DamagedStore
from workers.store import commit
from workers.store.consolidated.cubes import GROUP
from workers.store.objects import ObjectStore


def damage_of_root(objects: ObjectStore) -> StoreDamage | None:
    """Return what is wrong with the root of a store; None if nothing is.

    Raises:
        StoreFormatError: it is the root of something else, or of a later version.
    """
    try:
        version = commit.read_root(objects)
    except DamagedStore as exc:
        return StoreDamage(commit.ROOT, exc.message)
    if version is None and commit.holds_commits(objects):
        return StoreDamage(commit.ROOT, f"{commit.ROOT} is missing")
    return None


def mend_surroundings(objects: ObjectStore, *, apply: bool) -> StepRepair | None:
    """Repair root, groups of ranks and view; return what became of them, or None if nothing is damaged.

    The view is made again from the steps, so these are to be repaired first.

    Raises:
        StoreFormatError: the place holds something else.
        StoreError: the store refused.
    """
    root = damage_of_root(objects)
    damages = [*([root] if root else []), *verify_surroundings(objects), *verify_copies(objects)]
    if not damages:
        return None
    repair = StepRepair(None, tuple(map(str, damages)))
    for damage in damages:
        if damage.path == GROUP:
            continue
        rank = damage.path.partition("/")[0].removeprefix("rank_")
        is_root = damage.path == commit.ROOT
        if apply:
            document = commit.root_document() if is_root else commit.rank_document(int(rank))
            objects.put(damage.path, document)
        repair.mended.append(Mended(damage.path, "its place in the store"))
    if any(damage.path == GROUP for damage in damages):
        _mend_view(objects, repair, apply=apply)
    if apply:
        repair.remains = tuple(map(str, [*verify_surroundings(objects), *verify_copies(objects)]))
    return repair


def _mend_view(objects: ObjectStore, repair: StepRepair, *, apply: bool) -> None:
    """Make the view again from the commits; if only copies of commits are damaged, only those."""
    try:
        if apply:
            with Consolidator(objects) as consolidator:
                consolidator.once(check=True)
    except LeaseHeld as exc:
        repair.lost.append(Lost(GROUP, exc.message))
        return
    repair.mended.append(Mended(GROUP, "the steps"))
