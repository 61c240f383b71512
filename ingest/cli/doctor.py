"""`dump-ingest doctor`: a check of everything that the service needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

import typer

from ingest.cli.exits import EXIT_FAILED
from ingest.cli.options import ConfigOption, Flags, JsonOption, StoreOption, load_settings, takes_settings
from ingest.cli.question import print_answer
from ingest.questions.question import Rows

_COLUMNS: Mapping[str, Callable[[Any], str]] = {
    "": lambda result: "ok" if result.ok else "FAIL",
    "check": attrgetter("check"),
    "detail": lambda result: result.detail + (f"  ({result.hint})" if result.hint else ""),
}


@takes_settings(
    "scheduler",
    "expected_ranks",
)
def command(
    dump: Annotated[
        Path | None,
        typer.Argument(metavar="DUMP", help="A dump directory to check.", show_default=False, readable=False),
    ] = None,
    store: StoreOption = None,
    *,
    flags: Flags,
    processes: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="HOST:PORT",
            help="Also check the watcher or consolidator that serves its metrics there; may be repeated.",
            show_default=False,
        ),
    ] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Check settings, dump, store and scheduler, and say how to fix what is wrong.

    With a dump and a store, it also says what of the dump is not in the store, whether somebody keeps the
    consolidated view, how the last gc ended, and how far the clock is off. With --from, it asks watchers and
    consolidators whether they run, make progress, and have the same store.

    [bold]dump-ingest doctor /data/dump --store s3://bucket/run.zarr --from host:9108[/]

    Writes one small object to the store and removes it. Exits with 1 if a check fails.
    """
    from ingest.doctor.checks import run_checks  # deferred: dask, numba and zarr take 1 s to import

    loaded = load_settings(config, store=store, **flags)
    results = run_checks(loaded, dump, processes or ())
    print_answer(Rows("", results, _COLUMNS), as_json=json)
    if not all(result.ok for result in results):
        raise typer.Exit(EXIT_FAILED)
