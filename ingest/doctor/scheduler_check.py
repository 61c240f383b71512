"""Whether the Dask scheduler answers, and whether its workers do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingest.dispatch.cluster import SAME_VERSION_HINT, Cluster, address_of
from ingest.doctor.check import Check
from ingest.reader.text import counted
from ingest.settings import Settings
from workers.errors import ClusterError
from workers.scheduler import WORKER_TTL_S, silences

if TYPE_CHECKING:
    from distributed import Client

#: How long a worker may send no heartbeat, in seconds. With hundreds of workers, each sends one every five.
_SILENT_S = 15.0
#: How many workers are named.
_NAMED = 4


def check_scheduler(settings: Settings) -> Check:
    """Connect to the Dask scheduler, count its workers, and name those that it does not hear of.

    Raises:
        ClusterError: the scheduler or its workers do not answer, or lack dump-ingest.
    """
    with Cluster(settings) as cluster:
        client = cluster.reach()
        workers = client.scheduler_info(n_workers=-1)["workers"]
        encrypted = "encrypted" if address_of(client).startswith("tls://") else "not encrypted"
        silent = _silent_workers(settings, client)
        if not silent:  # one that hangs would be waited for
            cluster.connect()
    threads = sum(worker["nthreads"] for worker in workers.values())
    detail = (
        f"{settings.scheduler}: {counted(len(workers), 'worker')}, {counted(threads, 'thread')}, {encrypted}"
    )
    if not silent:
        return Check("scheduler", ok=True, detail=detail)
    longest = sorted(silent, key=lambda address: -silent[address])
    named = ", ".join(f"{address} ({silent[address]:.0f} s)" for address in longest[:_NAMED])
    more = f" and {len(silent) - _NAMED} more" if len(silent) > _NAMED else ""
    hint = (
        "They hang: restart them. Without that, the scheduler gives their tasks to others when it has not "
        f"heard of them for {1.5 * WORKER_TTL_S:.0f} s at most."
    )
    return Check("scheduler", ok=False, detail=f"{detail}; it does not hear of {named}{more}", hint=hint)


def _silent_workers(settings: Settings, client: Client) -> dict[str, float]:
    """Return the workers that the scheduler does not hear of, and for how long, in seconds.

    Raises:
        ClusterError: the scheduler does not have this version of dump-ingest. Then it runs no tasks, either.
    """
    try:
        silent_s = client.run_on_scheduler(silences)
    except (ImportError, AttributeError) as exc:
        raise ClusterError(
            f"{settings.scheduler}: the scheduler does not have this version of dump-ingest ({exc})",
            hint=SAME_VERSION_HINT,
        ) from exc
    return {address: seconds for address, seconds in silent_s.items() if seconds > _SILENT_S}
