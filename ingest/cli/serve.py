"""`dump-ingest serve`: a page to look at a store."""

from __future__ import annotations

import asyncio
import math
import signal
import webbrowser
from typing import TYPE_CHECKING, Annotated

import typer

from ingest.cli.options import (
    AllowAnyoneOption,
    ConfigOption,
    StoreArgument,
    TokenFileOption,
    TrustHeaderOption,
    WatchersOption,
    settings_and_store,
)
from ingest.cli.printing import say
from ingest.heartbeat import INTERVAL_S, beat, tell_ready
from workers.errors import UsageError

if TYPE_CHECKING:
    from ingest.page.server import PageServer


def command(
    store: StoreArgument = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 takes any free one.")
    ] = "127.0.0.1:8000",
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the page in the browser.", show_default=False)
    ] = False,
    base_path: Annotated[
        str, typer.Option(metavar="PATH", help="The path below which a proxy shows the page, such as /dumps.")
    ] = "",
    base_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="By what URL people reach the page. Default: the `page_url` setting.",
            show_default=False,
        ),
    ] = None,
    token_file: TokenFileOption = None,
    trust_header: TrustHeaderOption = None,
    allow_anyone: AllowAnyoneOption = False,
    watchers: WatchersOption = "",
    cache: Annotated[
        str, typer.Option(metavar="SIZE", help="How many bytes of answers are kept for all viewers.")
    ] = "64MiB",
    refresh: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0.2, help="How often the store is asked for new steps, at most."),
    ] = 5.0,
    config: ConfigOption = None,
) -> None:
    """Serve a page to look at a store, or at all stores below a URL, until Ctrl-C.

    It shows incidents, a matrix of ranks and steps, operators in order of execution, tensors with their
    values, and the progress of a running job. Nothing can be changed from it. `report` writes a file.

    [bold]dump-ingest serve run.zarr --open[/]
    [bold]dump-ingest serve s3://bucket/runs --listen 0.0.0.0:8000 --token-file token[/]
    """
    # deferred: tornado and the store take 0.5 s to import
    from ingest.page.handlers import Listen, PageSettings, access_for
    from ingest.page.library import Library
    from ingest.page.server import PageServer
    from ingest.page.server import base_path as checked_base
    from ingest.page.watchers import Watchers, parse_addresses
    from ingest.units import parse_size

    settings, store_url = settings_and_store(store, config)
    address = Listen.parse(listen)
    access = access_for(
        address, token_file, trust_header, base_url or settings.page_url, is_open=allow_anyone
    )
    try:
        cache_nbytes = parse_size(cache)
    except ValueError as exc:
        raise UsageError(f"--cache: {exc}") from exc
    urls = parse_addresses(watchers)
    library = Library(store_url, settings.store_arguments, refresh)
    library.begin()  # a wrong URL is reported before anything listens
    server = PageServer(
        library,
        PageSettings(
            address,
            access,
            checked_base(base_path),
            cache_nbytes,
            Watchers(urls, refresh) if urls else None,
        ),
    )
    url = server.bind()
    say(f"serving {store_url} at {url}")
    if open_browser:
        webbrowser.open(url)
    asyncio.run(_serve(server))


async def _serve(server: PageServer) -> None:
    """Serve until SIGINT or SIGTERM."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    tell_ready()
    beating = asyncio.create_task(_beat())
    try:
        await server.serve(stop)
    finally:
        beating.cancel()


async def _beat() -> None:
    """Beat while the event loop runs, if systemd asks for it: it ends a server that hangs."""
    while math.isfinite(INTERVAL_S):
        beat()
        await asyncio.sleep(INTERVAL_S / 2)
