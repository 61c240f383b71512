"""Whether a committed step came from another dump: on one machine every job is rank 0."""

from __future__ import annotations

from workers.dump import paths
from workers.errors import UsageError
from workers.model import StepKey
from workers.store.commit import Commit
from workers.store.model import Origin

_REPLACE_HINT = "Give each dump a store of its own; --replace replaces what came from another one."
_RANK_HINT = "The ids repeat from host to host. Give the ranks of this one: --rank-map 0=8,1=9."
#: Sources of numbers that stand in for the rank where a dump does not name it.
_NO_RANKS = frozenset(["device id", "process id"])


def comes_from_elsewhere(key: StepKey, origin: Origin, commit: Commit) -> UsageError | None:
    """Return the error for a commit that was made from another dump, or host, than this origin.

    Returns None if the commit came from the same dump. Compares the paths of the dumps; and the hosts, if the
    number in the key is the id of a device or process, because those repeat from host to host.
    """
    source = commit.record.source
    if source.root != paths.to_text(origin.root):
        return UsageError(f"{key} is in the store already, from {source.root}", hint=_REPLACE_HINT)
    if origin.rank_from in _NO_RANKS and source.host != origin.host:
        return UsageError(
            f"{key} is in the store already, from host {source.host}, and neither is known by its "
            f"rank but by its {origin.rank_from}",
            hint=_RANK_HINT,
        )
    return None
