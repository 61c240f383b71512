"""`dump-ingest export`: original files back into a directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ingest.cli.common import (
    EXIT_DAMAGE,
    EXIT_PARTLY,
    ConfigOption,
    JsonOption,
    RankOption,
    StepOption,
    print_json,
    say,
    the_store,
)
from ingest.units import human_bytes

NAME = "export"


def command(
    store: Annotated[str, typer.Argument(metavar="STORE", help="The store: a directory or URL.")],
    directory: Annotated[Path, typer.Argument(help="Where to; made if missing.")],
    rank: RankOption = None,
    step: StepOption = None,
    name: Annotated[
        str | None, typer.Option(metavar="GLOB", help="Only tensors of this name; without files.")
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            "--where", "-w", metavar="CONDITION", help="Only tensors that fulfil this; without files."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that are there.")] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Write tensors and files back as they were in the dump, byte for byte, under the same paths.

    [bold]dump-ingest export run.zarr out/ --rank 1 --step 2 --where "nan_count > 0"[/]
    """
    from ingest.reader.export import Exported, export
    from workers.model import StepKey

    opened = the_store(store, config)
    chosen: dict[StepKey, list[int] | None] = {one.key: None for one in opened.select(rank, step)}
    if name is not None or where is not None:
        rows: dict[StepKey, list[int]] = {}
        for tensor in opened.tensors(rank, step, name=name, where=where):
            rows.setdefault(StepKey(tensor.rank, tensor.step), []).append(tensor.row)
        chosen = dict(rows)
    done: list[Exported] = []
    removed: dict[StepKey, str] = {}
    for key, selected in chosen.items():
        one = opened.step(key.rank, key.step)
        done += export(one, directory, selected, overwrite=overwrite)
        removed[key] = str(one.commit.without_tensors or "")
    if json:
        print_json(
            [
                {
                    "rank": e.key.rank,
                    "step": e.key.step,
                    "source": e.source,
                    "path": str(e.path),
                    "nbytes": e.nbytes,
                    "problem": e.problem,
                }
                for e in done
            ]
        )
    good = [e for e in done if not e.problem]
    say(f"{len(good)} files, {human_bytes(sum(e.nbytes for e in good))} in {directory}")
    bad = [e for e in done if e.problem and e.problem != removed[e.key]]
    for e in bad:
        say(f"{e.key}: {e.source}: {e.problem}", before="[bold red]not exported:[/] ")
    for key, why in removed.items():
        if count := sum(1 for e in done if e.key == key and why and e.problem == why):
            say(f"{key}: {count} files: {why}", before="[yellow]not exported:[/] ")
    if len(good) < len(done):
        raise typer.Exit(EXIT_DAMAGE if bad else EXIT_PARTLY)
