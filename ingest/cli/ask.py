"""The commands that ask besides the questions: `serve`, `mcp`, `report`, `next`, `wait` and `compare`."""

from __future__ import annotations

import asyncio
import math
import signal
import time
import webbrowser
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import ingest
from ingest.cli.exits import EXIT_DAMAGE, EXIT_DIFFERENT, EXIT_PARTLY, end_if_damaged
from ingest.cli.options import (
    WHOLE,
    AllowAnyoneOption,
    Conditions,
    ConfigOption,
    JsonOption,
    LayoutOption,
    PartialOption,
    RanksOption,
    SchedulerOption,
    StepOption,
    StoreArgument,
    TokenFileOption,
    TrustHeaderOption,
    WatchersOption,
    load_settings,
    open_store,
    settings_and_store,
    size_of,
    takes_tensor_options,
)
from ingest.cli.printing import check_writable, print_json, print_line, say, write_and_say, write_file
from workers.errors import UsageError
from workers.host.heartbeat import INTERVAL_S, beat, tell_ready

if TYPE_CHECKING:
    from ingest.page.server import PageServer
    from ingest.questions.compare.result import Comparison


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
    from ingest.page import server
    from ingest.page.library import Library
    from ingest.page.watchers import Watchers, parse_addresses

    settings, store_url = settings_and_store(store, config)
    address = server.Listen.parse(listen)
    access = server.access_for(
        address, token_file, trust_header, base_url or settings.page_url, is_open=allow_anyone
    )
    urls, cache_nbytes = parse_addresses(watchers), size_of("--cache", cache)
    library = Library(store_url, settings.store_arguments, refresh)
    library.begin()  # a wrong URL is reported before anything listens
    page = server.PageServer(
        library,
        server.PageSettings(
            address,
            access,
            server.base_path(base_path),
            cache_nbytes,
            Watchers(urls, refresh) if urls else None,
        ),
    )
    url = page.bind()
    say(f"serving {store_url} at {url}")
    if open_browser:
        webbrowser.open(url)
    asyncio.run(_serve(page))


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
    from ingest.page.library import Library
    from ingest.page.server import Listen, access_for

    library = Library(store_url, settings.store_arguments)
    if listen is None:
        library.begin()  # a wrong URL is reported before a client waits
        asyncio.run(server.serve_stdio(library))
        return
    address = Listen.parse(listen)
    access = access_for(address, token_file, trust_header, settings.page_url, is_open=allow_anyone)
    library.begin()
    sockets, shown = address.bind()
    say(f"answering agents about {store_url} at http://{shown}/mcp")
    server.serve_http(library, sockets, access)


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
    limit = None if budget is None else size_of("--budget", budget)
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


@takes_tensor_options
def compare_command(
    a: Annotated[
        str, typer.Argument(metavar="A", help="STORE, STORE@RANK, STORE@RANK,STEP, or a dump directory.")
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="The reference, in the same form.")],
    mapping: Annotated[
        Path | None,
        typer.Option(
            "--map",
            metavar="FILE",
            help="YAML file that pairs names of A with names of B.",
            readable=False,
        ),
    ] = None,
    thresholds: Annotated[
        Path | None,
        typer.Option(
            "--thresholds",
            "-t",
            metavar="FILE",
            help="YAML file of allowed differences.",
            readable=False,
        ),
    ] = None,
    fixed_limits: Annotated[
        bool,
        typer.Option(
            "--fixed-limits",
            help="Judge by one limit for each type, instead of limits that are derived for each tensor.",
            show_default=False,
        ),
    ] = False,
    suggest_map: Annotated[
        Path | None,
        typer.Option(
            "--suggest-map",
            metavar="FILE",
            help="Where names differ between two versions of a framework: write the guesses, for --map.",
            show_default=False,
        ),
    ] = None,
    *,
    chosen: Conditions,
    top: Annotated[int, typer.Option(min=0, help="Print at most this many tensors, the worst first.")] = 10,
    all_tensors: Annotated[
        bool, typer.Option("--all", help="Print all tensors, equal ones included, in order of execution.")
    ] = False,
    over_steps: Annotated[
        bool,
        typer.Option(
            "--over-steps",
            help="Print how the relative error of a rank's tensors grows over the steps; reads no elements.",
            show_default=False,
        ),
    ] = False,
    stat: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="With --over-steps: the statistic: max, std, mean, ... Default: l2_norm.",
            show_default=False,
        ),
    ] = None,
    elements: Annotated[
        bool,
        typer.Option(
            "--elements/--no-elements",
            help="Read elements where digests differ, or judge by statistics alone, which is fast.",
        ),
    ] = True,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with all figures.", show_default=False)
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="token",
            help="A is a trainer, B the engine that samples: match rows by token ids, modules by weights.",
            show_default=False,
        ),
    ] = None,
    include_partial: PartialOption = False,
    ignore_unmatched: Annotated[
        bool,
        typer.Option(
            "--ignore-unmatched", help="Do not count tensors and steps on one side only as differences."
        ),
    ] = False,
    across_layouts: Annotated[
        bool | None,
        typer.Option(
            "--across-layouts/--rank-by-rank",
            help="Put tensors together from all ranks, or compare rank by rank. Default: by their numbers.",
            show_default=False,
        ),
    ] = None,
    layout_map: Annotated[
        Path | None,
        typer.Option(
            "--layout-map",
            metavar="FILE",
            help="YAML file that says how ranks hold tensors, where that is open.",
            readable=False,
        ),
    ] = None,
    layout: LayoutOption = None,
    scheduler: SchedulerOption = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Start this many worker processes. Default: threads.", show_default=False),
    ] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Compare two steps, ranks, runs or dumps, tensor by tensor.

    B is the reference. Exits with 0 if every tensor is within its limits, with 5 if not, and with 4 if none
    differs, but not all could be compared.

    [bold]dump-ingest compare run.zarr@0,2 run.zarr@1,2[/]      two ranks, in step 2
    [bold]dump-ingest compare new.zarr s3://b/old.zarr[/]       all ranks and steps
    [bold]dump-ingest compare new.zarr@0 old.zarr@0 --over-steps[/]
    [bold]dump-ingest compare run.zarr /data/dump[/]              a store and its dump
    [bold]dump-ingest compare tp4.zarr tp1.zarr[/]                four ranks against one
    [bold]dump-ingest compare train.zarr rollout.zarr --by token[/]
    """
    # deferred: numba, numpy and zarr take 0.6 s to import; `ingest.compare` imports Dask, too, in 1.4 s
    from ingest.cli.compare_report import growth_between, print_comparison, print_growth, say_summary
    from ingest.dispatch.runners import start_workers
    from ingest.questions.compare.mapping import load_mapping
    from ingest.questions.compare.run import compare
    from ingest.questions.compare.thresholds import load_thresholds
    from ingest.questions.placement.layout_map import load_layout_map

    settings = load_settings(config, layout=layout, scheduler=scheduler, workers=workers).settings
    if a.rstrip("/") == b.rstrip("/"):
        say(f"A and B are both {a}", label="note")
    shown = None if all_tensors else top
    if by is not None:
        given: dict[str, object] = {"--map": mapping, "--thresholds": thresholds, "--layout-map": layout_map}
        given |= {"--suggest-map": suggest_map, "--stat": stat, "--over-steps": over_steps}
        _by_token((a, b), by, given | chosen, top=shown, as_json=json, html=html)
        return
    files = {"--html": html, "--suggest-map": suggest_map}
    if over_steps:
        unused = files | {"--map": mapping, "--thresholds": thresholds, "--layout-map": layout_map}
        for option in (option for option, path in unused.items() if path is not None):
            raise UsageError(f"{option} has no effect with --over-steps", hint="Leave one of the two out.")
        growth = growth_between(a, b, chosen, settings.store_arguments, stat)
        print_growth(growth, top=shown, as_json=json)
        end_if_damaged((), growth.left_out)
        raise typer.Exit(EXIT_DIFFERENT if growth.by_onset() else 0)
    if stat is not None:
        raise UsageError("--stat is about the error over the steps", hint="Add --over-steps.")
    names = load_mapping(mapping) if mapping else None
    limits = load_thresholds(thresholds) if thresholds else None
    placements = load_layout_map(layout_map) if layout_map else None
    for option, path in files.items():
        if path is not None:
            check_writable(path, option)  # before anything is compared
    with ExitStack() as at_end:
        client = None
        if scheduler is not None or workers is not None:
            running = start_workers(settings, when_needed=True)
            at_end.callback(running.close)
            client = running.connect
        comparison = compare(
            a,
            b,
            mapping=names,
            thresholds=limits,
            include_partial=include_partial,
            ignore_unmatched=ignore_unmatched,
            keep_equal=all_tensors,
            fixed_limits=fixed_limits,
            elements=elements,
            client=client,
            layout=settings.layout,
            across_layouts=across_layouts,
            layout_map=placements,
            storage_options=settings.store_arguments,
            **chosen,
        )
    _write_files(comparison, html, suggest_map)
    if json:
        print_json(comparison.to_dict())
    else:
        print_comparison(comparison, top=shown)
    say_summary(comparison, top=None if json else shown)
    raise typer.Exit(_exit_code(comparison))


def _by_token(
    sides: tuple[str, str],
    by: str,
    given: dict[str, object],
    *,
    top: int | None,
    as_json: bool,
    html: Path | None,
) -> None:
    from ingest.cli.question import end_as, print_answer  # deferred: they import numpy
    from ingest.questions.rollout.by_token import compare_tokens

    if by != "token":
        raise UsageError(f"--by {by}: rows can be matched by token alone", hint="Write --by token.")
    for option in (option for option, value in given.items() if value):
        raise UsageError(f"{option} has no effect with --by token", hint="Leave one of the two out.")
    if html is not None:
        check_writable(html, "--html")
    answer = compare_tokens(*sides)
    if html is not None:
        from ingest.page.views.tokens import document

        write_file(html, document(answer))
    print_answer(answer, top or 0, as_json=as_json, every="--all")
    end_as(answer)


def _write_files(comparison: Comparison, html: Path | None, suggest_map: Path | None) -> None:
    # deferred: numba, numpy and zarr take 0.6 s to import
    from ingest.questions.compare.html import to_html
    from ingest.questions.compare.matching import mapping_text

    if html is not None:
        write_file(html, to_html(comparison))
    if suggest_map is not None:
        write_file(suggest_map, mapping_text(comparison.guesses, {"a": comparison.a, "b": comparison.b}))


def _exit_code(comparison: Comparison) -> int:
    if comparison.damaged or any(left.is_damaged for _, left in comparison.left_out):
        return EXIT_DAMAGE
    if comparison.is_undecided:
        return EXIT_PARTLY
    return 0 if comparison.is_within else EXIT_DIFFERENT
