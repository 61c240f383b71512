"""A page that is really served, in a thread of this process."""

from __future__ import annotations

import asyncio
import html
import http.client
import json
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from ingest.page.library import Library
from ingest.page.server import Access, Listen, PageServer, PageSettings
from ingest.page.watchers import Watchers


@dataclass(frozen=True, slots=True)
class Got:
    """An answer of the server."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def lines(self) -> tuple[str, str]:
        """The command lines below a view, and the lines of Python, as a browser copies them."""
        section = self.text.partition('<section class="lines"')[2]
        blocks = re.findall(r"<pre[^>]*>(.*?)</pre>", section, re.DOTALL)
        shell, python = (html.unescape(re.sub(r"<[^>]*>", "", block)) for block in blocks)
        return shell, python

    @property
    def json(self) -> Any:
        """Its content as JSON."""
        return json.loads(self.text)


class RunningPage:
    """A server for a store or a directory of stores; a context manager."""

    def __init__(
        self,
        url: Path | str,
        *,
        access: Access | None = None,
        base: str = "",
        refresh_s: float = 0.2,
        cache_nbytes: int = 1 << 20,
        watchers: Watchers | None = None,
        first_paint_s: float = 60,
    ) -> None:
        listen = Listen("127.0.0.1", 0)
        settings = PageSettings(listen, access or Access(), base, cache_nbytes, watchers, first_paint_s)
        self.library = Library(str(url), refresh_s=refresh_s)
        self._server = PageServer(self.library, settings)
        self.url = self._server.bind().rstrip("/")
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(
            target=self._loop.run_until_complete, args=(self._server.serve(self._stop),)
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    def get(self, path: str, *, method: str = "GET", **headers: str) -> Got:
        """Ask for a path, and do not follow where it leads."""
        address = urlsplit(self.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, headers=named)
            answer = connection.getresponse()
            return Got(answer.status, dict(answer.getheaders()), answer.read().decode())
        finally:
            connection.close()
