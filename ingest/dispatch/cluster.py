"""A Dask cluster of the user.

Importing this module takes 0.4 s, for distributed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import dask
from distributed import Client
from distributed.comm.core import connect
from distributed.security import Security

from ingest.dispatch.clients import HANGS_HINT, NO_WORKER_HINT
from ingest.settings import Settings
from workers.errors import ClusterError
from workers.host.resources import steady_dask
from workers.plugin import IngestPlugin
from workers.scheduler import MESSAGES_KEPT


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


_log = logging.getLogger(__name__)
SAME_VERSION_HINT = "Install the same version of dump-ingest for all roles, for instance from one image."
#: How often the workers are asked for the resources that they offer, in seconds.
_RESOURCES_PAUSE_S = 0.5
_DASK_DEFAULTS = {
    # A plan of 100,000 tensors has 25 MB: nothing to warn of, and nothing to put elsewhere.
    "distributed.admin.large-graph-warning-threshold": "1GB",
    "distributed.comm.retry.count": 3,
}


class Cluster(AbstractContextManager["Cluster"]):
    """Connects to the scheduler that the settings name. A context manager."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: Client | None = None
        self._warned = False

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self) -> Client:
        """Return a new client with at least one worker behind it, all of which can run our tasks.

        It waits for every worker. For one that hangs, that takes until the scheduler gives it up.

        Raises:
            ClusterError: the scheduler or its workers do not answer, or do not fit.
        """
        client = self.reach()
        _check_versions(client)
        if is_open(address := address_of(client)) and not self._warned:
            self._warned = True
            _log.warning(
                "%s is not encrypted: whoever reaches a Dask scheduler or worker runs code as its user; "
                "use tls:// (docs/deployment.md says how)",
                address,
            )
        self._wait_for_resources(client)
        try:
            client.register_plugin(IngestPlugin())
        except Exception as exc:  # what a worker says of a plugin that it cannot load has no other type
            if "ModuleNotFoundError" not in str(exc):
                raise
            message = f"a Dask worker at {self._settings.scheduler} does not have dump-ingest ({exc})"
            raise ClusterError(message, hint=SAME_VERSION_HINT) from exc
        return client

    def reach(self) -> Client:
        """Return a new client with at least one worker behind it; only the scheduler was asked.

        Raises:
            ClusterError: the scheduler does not answer, or has no workers.
        """
        steady_dask()
        dask.config.set({**_DASK_DEFAULTS, **MESSAGES_KEPT, **self._settings.dask})
        if self._client is not None:
            self._client.close(timeout=1)
        address, timeout_s = self._address(), self._settings.scheduler_timeout_s
        check_encryption(address.get("address"))
        try:
            where = address.get("address")
            if "scheduler_file" in address:
                with suppress(OSError, ValueError):
                    where = json.loads(Path(address["scheduler_file"]).read_bytes()).get("address")
            if isinstance(where, str):
                require_answer(where, self._settings.scheduler_timeout_s)
            # Not the default client: a notebook that calls `ingest_dump` may have its own.
            self._client = Client(**address, timeout=timeout_s, set_as_default=False)
            self._client.wait_for_workers(1, timeout=timeout_s)
        except (OSError, TimeoutError, ValueError) as exc:
            reason = " ".join(f"{type(exc).__name__} {exc}".split())[:200]
            where = f"{self._settings.scheduler} within {timeout_s:g} s"
            raise ClusterError(f"no Dask scheduler with workers at {where} ({reason})", hint=_HINT) from exc
        return self._client

    def close(self) -> None:
        """Disconnect."""
        if self._client is not None:
            self._client.close(timeout=5)
            self._client = None

    def _address(self) -> dict[str, str]:
        scheduler = str(self._settings.scheduler)
        if "://" not in scheduler and Path(scheduler).is_file():
            return {"scheduler_file": scheduler}
        return {"address": scheduler if "://" in scheduler else f"tcp://{scheduler}"}

    def _wait_for_resources(self, client: Client) -> None:
        """Wait for a worker that may run the tasks of this host: without one, Dask would let them wait."""
        wanted = self._settings.worker_resources
        deadline = time.monotonic() + self._settings.scheduler_timeout_s
        while wanted:
            workers = client.scheduler_info(n_workers=-1)["workers"].values()
            offers = [worker["resources"] for worker in workers]
            if any(all(offer.get(name, 0) > 0 for name in wanted) for offer in offers):
                return
            if time.monotonic() > deadline:
                offered = sorted({name for offer in offers for name in offer})
                raise ClusterError(
                    f"none of {len(offers)} Dask workers at {self._settings.scheduler} offers "
                    f"{', '.join(wanted)}; they offer {', '.join(offered[:20]) or 'no resources'}",
                    hint=NO_WORKER_HINT,
                )
            time.sleep(_RESOURCES_PAUSE_S)


def _check_versions(client: Client) -> None:
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            client.get_versions(check=True)
    except ValueError as exc:
        raise ClusterError(f"versions differ: {exc}", hint=SAME_VERSION_HINT) from exc
    for warning in caught:
        _log.warning("versions of client, scheduler and workers differ: %s", warning.message)


def address_of(client: Client) -> str:
    """Return where the scheduler of a client is."""
    scheduler = client.scheduler
    return "" if scheduler is None else str(scheduler.address)


def is_open(address: str) -> bool:
    """Return whether a Dask address is beyond this machine, and neither encrypted nor authenticated."""
    parts = urlsplit(address)
    if parts.scheme in {"tls", "inproc", "wss"}:
        return False
    host = parts.hostname or ""
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"


def check_encryption(address: object) -> None:
    """Refuse an address that does not go with Dask's configuration: Dask would answer with a traceback.

    Raises:
        ClusterError: it does not.
    """
    if not isinstance(address, str):
        return
    if address.startswith("tls://") and not dask.config.get("distributed.comm.tls.client.cert", None):
        raise ClusterError(f"no certificate for {address}", hint=_CERTIFICATE_HINT)
    if address.startswith("tcp://") and dask.config.get("distributed.comm.require-encryption", None):
        raise ClusterError(f"{address} is not encrypted, and Dask's configuration demands it", hint=_TLS_HINT)


_CERTIFICATE_HINT = (
    "Set distributed.comm.tls.ca-file, .client.cert and .client.key: under `dask` in the settings, or by "
    "DASK_DISTRIBUTED__COMM__TLS__CA_FILE, ...__CLIENT__CERT and ...__CLIENT__KEY."
)
_TLS_HINT = "Name it as tls://host:port, or take distributed.comm.require-encryption away."
_HINT = (
    "Start one (`dask scheduler`, `dask worker`), correct --scheduler, or leave it out to use this machine."
)
