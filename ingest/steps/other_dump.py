"""Whether a committed step came from another dump: on one machine every job is rank 0."""

from __future__ import annotations

from collections.abc import Collection

from workers.dump import paths
from workers.errors import UsageError
from workers.model import StepKey
from workers.store.commit import Commit
from workers.store.model import Origin

_REPLACE_HINT = "Give each dump a store of its own; --replace replaces what came from another one."
RANK_HINT = "The ids repeat from host to host. Give the ranks of this one: --rank-map 0=8,1=9."
#: Sources of numbers that stand in for the rank where a dump does not name it.
NO_RANKS = frozenset(["device id", "process id"])


def comes_from_other_dump(
    key: StepKey, origin: Origin, commit: Commit, other_roots: Collection[str] = ()
) -> UsageError | None:
    """Return the error for a commit that was made from another dump, or host, than this origin.

    Returns None if the commit came from the same dump. Compares the paths of the dumps; and the hosts, if the
    number in the key is the id of a device or process, because those repeat from host to host.

    Args:
        key: the step.
        origin: where the dump has it.
        commit: where the store has it from.
        other_roots: paths that the dump had before, or has elsewhere.
    """
    source = commit.record.source
    if source.root != paths.to_text(origin.root) and source.root not in other_roots:
        return UsageError(f"{key} is in the store already, from {source.root}", hint=_REPLACE_HINT)
    if origin.rank_from in NO_RANKS and source.host != origin.host:
        return UsageError(
            f"{key} is in the store already, from host {source.host}, and neither is known by its "
            f"rank but by its {origin.rank_from}",
            hint=RANK_HINT,
        )
    return None
