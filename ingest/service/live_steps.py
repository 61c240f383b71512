"""The steps of a running watcher, for others to ask: served next to its metrics, and fetched from there."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable

from ingest.service.process_address import FROM_HINT, process_address
from ingest.service.service import Service
from ingest.steps.explain import StepRow, explain_table
from workers.errors import DumpIngestError

#: Where the page is, next to `/metrics`.
PATH = "/steps"
_TIMEOUT_S = 30.0


class LiveSteps:
    """The page `/steps` of a watcher: all of its steps, as they are when somebody asks.

    It is made in a thread of the web server, while the service goes on. So each row is true of its step, and
    two rows may be some milliseconds apart.
    """

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        """Begin before the service: until then the page has no steps."""
        self._service: Service | None = None
        self._wall_clock = wall_clock

    def attach(self, service: Service) -> None:
        """Show the steps of this service."""
        self._service = service

    def rows(self) -> list[StepRow]:
        """Return a row for each step."""
        if self._service is None:
            return []
        return explain_table(self._service.table, self._service.current_policy, self._service.clock())

    def page(self) -> bytes:
        """Return the page as JSON."""
        page = {"at": self._wall_clock(), "steps": [row.to_dict() for row in self.rows()]}
        return json.dumps(page, allow_nan=False).encode()


def fetch_steps(url: str, timeout_s: float = _TIMEOUT_S) -> list[StepRow]:
    """Return the rows of a running watcher.

    Args:
        url: where it serves its metrics, such as `http://host:9108`.
        timeout_s: how long to wait for it, in seconds.

    Raises:
        UsageError: the URL is not one of a web server.
        DumpIngestError: nobody answers there, or no watcher does.
    """
    page = fetch_page(url, PATH, timeout_s)
    try:
        return [StepRow.from_dict(row) for row in json.loads(page)["steps"]]
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        address = f"{process_address(url)}{PATH}"
        raise DumpIngestError(f"{address} is not served by a watcher", hint=FROM_HINT) from exc


def fetch_page(url: str, path: str, timeout_s: float) -> bytes:
    """Fetch a page of a running watcher.

    Raises:
        UsageError: the URL is not one of a web server.
        DumpIngestError: nobody answers there.
    """
    address = f"{process_address(url)}{path}"
    try:
        with urllib.request.urlopen(address, timeout=timeout_s) as answer:  # noqa: S310 (http or https)
            return bytes(answer.read())
    except (OSError, http.client.HTTPException) as exc:
        if isinstance(exc, urllib.error.HTTPError) and exc.code == http.client.NOT_FOUND:
            raise DumpIngestError(f"{address} is not served by a watcher", hint=FROM_HINT) from exc
        reason = getattr(exc, "reason", None) or exc
        raise DumpIngestError(f"no watcher answers at {address}: {reason}", hint=FROM_HINT) from exc
