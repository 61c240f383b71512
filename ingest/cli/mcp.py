"""`dump-ingest mcp`: the questions as tools of the Model Context Protocol."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from ingest.cli.options import (
    AllowAnyoneOption,
    ConfigOption,
    StoreArgument,
    TokenFileOption,
    TrustHeaderOption,
    settings_and_store,
)
from ingest.cli.printing import say
from workers.errors import UsageError


def command(
    store: StoreArgument = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve HTTP at this address, below /mcp, and not standard input and output.",
            show_default=False,
        ),
    ] = None,
    token_file: TokenFileOption = None,
    trust_header: TrustHeaderOption = None,
    allow_anyone: AllowAnyoneOption = False,
    config: ConfigOption = None,
) -> None:
    """Let coding agents ask a store, or all stores below a URL: a server of the Model Context Protocol.

    It only reads. An agent starts it, and speaks with it over standard input and output. Over HTTP, the rules
    of `serve` say who may ask.

    [bold]dump-ingest mcp run.zarr[/]
    [bold]dump-ingest mcp s3://bucket/runs --listen 127.0.0.1:8001[/]
    """
    settings, store_url = settings_and_store(store, config)
    if listen is None and (token_file or trust_header or allow_anyone):
        raise UsageError("who may ask is a matter of HTTP", hint="Give --listen, or leave the other out.")
    try:
        from ingest.agents import server  # deferred: an extra; mcp takes 0.6 s to import
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] in ("ingest", "workers"):
            raise
        raise UsageError("the package mcp is missing", hint="pip install 'dump-ingest[mcp]'") from exc
    # deferred: the store takes 0.5 s to import
    from ingest.page.handlers import Listen, access_for
    from ingest.page.library import Library

    library = Library(store_url, settings.store_arguments)
    if listen is None:
        library.begin()  # a wrong URL is reported before a client waits
        asyncio.run(server.serve_stdio(library))
        return
    address = Listen.parse(listen)
    access = access_for(address, token_file, trust_header, settings.page_url, is_open=allow_anyone)
    library.begin()
    listening = server.bind(address)
    host, port = listening.getsockname()[:2]
    say(f"answering agents about {store_url} at http://{Listen(host, port).shown}/mcp")
    server.serve_http(library, listening, access)
