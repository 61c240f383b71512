"""The server: paths, sockets, and a clean end."""

from __future__ import annotations

import asyncio
import gc
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.routing import Rule, URLSpec
from tornado.web import Application

from ingest.page.handlers import (
    NO_PAGE,
    ROUTES,
    Listen,
    PageMetrics,
    PageRequest,
    PageSettings,
    SharedAnswers,
    Site,
)
from ingest.page.library import Library
from ingest.page.rendering import environment
from workers import events
from workers.errors import UsageError

#: Answers that are made at once. More would only share the same processors.
_THREADS = 4
#: New objects, net of those that are gone, after which Python looks for garbage; 700 by default.
_OBJECTS_PER_COLLECTION = 50_000
#: How long imports wait for the first search for incidents, and how often they look, in seconds.
_PREPARED_S, _LOOK_S = 10.0, 0.05


def base_path(words: str) -> str:
    """Return a base path as it stands before other paths: `` or `/dumps`.

    Raises:
        UsageError: it is not a path.
    """
    path = "/" + words.strip("/") if words.strip("/") else ""
    if path and not re.fullmatch(r"(/[\w.~-]+)+", path, re.ASCII):
        raise UsageError(f"{words!r} is not a base path", hint="Such as /dumps.")
    return path


def application(site: Site) -> Application:
    """Return the paths and what answers them."""
    base = site.settings.base
    # A proxy may take the base path off, or leave it on.
    prefixes = ["", re.escape(base)] if base else [""]
    rules: list[Rule | list[Any]] = [
        URLSpec(f"{prefix}{route.path}", PageRequest, {"site": site, "route": route})
        for prefix in prefixes
        for route in ROUTES
    ]
    return Application(
        rules,
        default_handler_class=PageRequest,
        default_handler_args={"site": site, "route": NO_PAGE},
        compress_response=True,
        log_function=lambda _request: None,
    )


def _prepare_ahead() -> None:
    """Compile the templates, and import what questions over steps need: no viewer waits for it."""
    for name in environment().list_templates():
        environment().get_template(name)
    for name in ("pandas", "xarray"):
        import_module(name)
    gc.freeze()  # modules are never freed, so collections skip them


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Collect garbage less often for the duration of a block.

    An answer about 5000 tensors makes more objects than that, and a collection visits all commits of the
    runs: it took a third of the time of an answer.
    """
    before = gc.get_threshold()
    gc.set_threshold(_OBJECTS_PER_COLLECTION, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


@dataclass(eq=False)
class PageServer:
    """A server that is bound to its sockets, and serves while `serve` runs."""

    library: Library
    settings: PageSettings
    _sockets: list[socket.socket] = field(default_factory=list)

    def bind(self) -> str:
        """Take the address, and return it as a URL.

        Raises:
            UsageError: it cannot be had.
        """
        listen = self.settings.listen
        try:
            self._sockets = bind_sockets(listen.port, listen.host)
        except OSError as exc:
            raise UsageError(
                f"cannot listen at {listen.shown}: {exc.strerror or exc}",
                hint="Name another address; --listen 127.0.0.1:0 takes any free port.",
            ) from exc
        port = self._sockets[0].getsockname()[1]
        return f"http://{Listen(listen.host, port).shown}{self.settings.base}/"

    async def serve(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set."""
        metrics = PageMetrics()
        events.subscribe(metrics.observe)
        try:
            with (
                ThreadPoolExecutor(_THREADS, thread_name_prefix="dump-ingest-page") as pool,
                # One, because each takes a few hundred MiB.
                ThreadPoolExecutor(1, thread_name_prefix="dump-ingest-page-slow") as slow_pool,
                _rare_collections(),
            ):
                answers = SharedAnswers(pool, slow_pool, self.settings.cache_nbytes)
                server = HTTPServer(
                    application(Site(self.library, self.settings, answers, metrics)),
                    max_header_size=32 * 1024,
                    max_body_size=0,
                    idle_connection_timeout=75,
                )
                server.add_sockets(self._sockets)
                await self._until_prepared(stop)
                pool.submit(_prepare_ahead)
                await stop.wait()
                server.stop()
                await server.close_all_connections()
        finally:
            events.unsubscribe(metrics.observe)

    async def _until_prepared(self, stop: asyncio.Event) -> None:
        """Wait until the first viewer has the incidents: imports would take processor time from that."""
        until = asyncio.get_running_loop().time() + _PREPARED_S
        while not self.library.is_prepared and asyncio.get_running_loop().time() < until:
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _LOOK_S)
                return
