"""Whether a Dask scheduler answers at all.

Dask waits with a limit for a connection, and without one for the first answer over it. The kernel accepts
connections for a process that hangs, so a client of a scheduler that hangs would wait for ever.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from distributed.comm.core import connect
from distributed.security import Security

from ingest.dispatch.clients import HANGS_HINT
from workers.errors import ClusterError


def require_answer(address: str, timeout_s: float) -> None:
    """Do nothing if the scheduler at an address answers.

    Raises:
        ClusterError: it accepts the connection and does not answer within `timeout_s`.
        OSError: nobody accepts the connection within `timeout_s`.
        ValueError: this is not an address.
    """
    # In a separate thread: the caller may be a notebook, whose thread runs an event loop.
    with ThreadPoolExecutor(1, thread_name_prefix="dump-ingest-handshake") as pool:
        answers = pool.submit(asyncio.run, _answers(address, timeout_s)).result()
    if not answers:
        raise ClusterError(
            f"the Dask scheduler at {address} accepts connections, and gives no answer in {timeout_s:g} s",
            hint=HANGS_HINT,
        )


async def _answers(address: str, timeout_s: float) -> bool:
    """Return False if a connection was made and nothing came over it in time.

    Raises:
        OSError: no connection was made.
        ValueError: this is not an address.
    """
    security = Security().get_connection_args("client")
    connecting = asyncio.ensure_future(connect(address, timeout=timeout_s, **security))
    done, _ = await asyncio.wait([connecting], timeout=timeout_s + 1)
    if not done:  # without a connection, Dask would have given up by now
        connecting.cancel()
        return False
    await connecting.result().close()
    return True
