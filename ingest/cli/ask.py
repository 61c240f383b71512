"""The commands that answer as long as they run, or wait: `serve`, `mcp`, `report`, `next` and `wait`."""

from __future__ import annotations

import asyncio
import math
import signal
import time
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import ingest
from ingest.cli.options import (
    WHOLE,
    AllowAnyoneOption,
    ConfigOption,
    JsonOption,
    RanksOption,
    StepOption,
    StoreArgument,
    TokenFileOption,
    TrustHeaderOption,
    WatchersOption,
    load_settings,
    open_store,
    settings_and_store,
)
from ingest.cli.printing import print_json, print_line, say, write_and_say, write_file
from ingest.units import parse_size
from workers.errors import UsageError
from workers.host.heartbeat import INTERVAL_S, beat, tell_ready

if TYPE_CHECKING:
    from ingest.page.server import PageServer


def serve_command(
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


def mcp_command(
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


def report_command(
    store: StoreArgument = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Write the page to this file.")] = Path(
        "report.html"
    ),
    incident: Annotated[
        str,
        typer.Option(
            metavar="ID", help="Only this incident; `anomalies` prints the ids.", show_default=False
        ),
    ] = "",
    config: ConfigOption = None,
) -> None:
    """Write the incidents of a run as one file to attach to a ticket.

    It has the cards and pictures of `serve`, needs no network, and runs no script.

    [bold]dump-ingest report run.zarr --out report.html[/]
    """
    write_and_say(out, ingest.report(open_store(store, config), incident=incident))


def next_command(
    store: StoreArgument = None,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="With --for tensor: names or globs.", show_default=False),
    ] = None,
    purpose: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="PURPOSE",
            help="What it should answer: origin (of NaN, Inf, overflows), divergence, or tensor NAME...",
        ),
    ] = "origin",
    system: Annotated[
        str | None,
        typer.Option(
            metavar="SYSTEM",
            help="One of mindspore, msprobe, acl, torchair, tensorflow, sglang, te. Default: as the dump.",
            show_default=False,
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Dump at most this, the most telling first: 20GB.",
            show_default=False,
        ),
    ] = None,
    path: Annotated[
        str | None,
        typer.Option(metavar="DIRECTORY", help="Where the job should dump. Default: the former, with _next."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write the configuration to this file."),
    ] = None,
    rank: RanksOption = None,
    step: StepOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Write the configuration of the next, small dump: of the operators under suspicion alone.

    [bold]dump-ingest next run.zarr --out data_dump.json[/]
    [bold]dump-ingest next run.zarr 'MatMul.*' --for tensor --budget 2GB[/]
    """
    try:
        limit = None if budget is None else parse_size(budget)
    except ValueError as exc:
        raise UsageError(f"--budget {exc}", hint="Such as 20GB or 500MiB.") from exc
    opened = open_store(store, config)
    answer = ingest.next_dump(
        opened, purpose, names or (), system=system, budget=limit, directory=path, rank=rank, step=step
    )
    if out is not None:
        write_file(out, answer.config.text)
    if json:
        print_json(answer.to_dict())
        return
    if out is None:
        typer.echo(answer.config.text, nl=False)
    say(str(answer))
    say("")
    say(answer.config.use if out is None else f"Written to {out}. {answer.config.use}")


#: The exit code if the time was over first: that of timeout(1).
EXIT_TIMEOUT = 124


def wait_command(
    store: StoreArgument = None,
    number: Annotated[
        str | None, typer.Argument(metavar="N", help="With --until step: its number.", show_default=False)
    ] = None,
    until: Annotated[
        str,
        typer.Option(
            metavar="incident|step N|idle",
            help="An incident whose step every rank has committed; step N on every rank; or idle: "
            "nothing was committed for --idle seconds.",
        ),
    ] = "incident",
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0, help="Give up after this time, with exit code 124."),
    ] = None,
    severity: Annotated[
        str, typer.Option(metavar="NAME", help="The lowest severity that counts: info, warning or critical.")
    ] = "critical",
    new: Annotated[
        bool,
        typer.Option(
            "--new", help="Only incidents of steps that are committed from now on: the job was resumed."
        ),
    ] = False,
    idle: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="For idle: how long.")] = 60.0,
    poll: Annotated[float, typer.Option(metavar="SECONDS", min=0.05, help="Look this often.")] = 5.0,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Wait until an incident is found, a step is committed, or nothing is committed any more.

    Exits with 0 if it came, and with 124 if --timeout was over first. The store need not exist yet.

    [bold]dump-ingest wait run.zarr --until incident && scancel "$JOB"[/]
    [bold]dump-ingest wait run.zarr --until step 8 --timeout 600[/]
    """
    from ingest.findings.waiting import wait_with  # deferred: numba, zarr: 0.5 s

    if store is None and load_settings(config).settings.store is None:
        raise UsageError("no store is named", hint="Name it as STORE, or with DUMP_INGEST_STORE.")
    if number is not None and WHOLE.fullmatch(number) is None:
        raise UsageError(f"{number!r:.80} is not a step", hint="dump-ingest wait STORE --until step 8")
    waited = wait_with(
        lambda: open_store(store, config),
        until,
        step=None if number is None else int(number),
        timeout_s=timeout,
        severity=severity,
        since=time.time() if new else 0.0,
        idle_s=idle,
        poll_s=poll,
    )
    if json:
        incident = None if waited.incident is None else waited.incident.to_dict()
        print_json({"came": waited.came, "reason": waited.reason, "incident": incident})
    else:
        print_line(waited.reason)
    if not waited.came:
        raise typer.Exit(EXIT_TIMEOUT)
