"""`dump-ingest verify`: whether everything in the store is as it was written."""

from __future__ import annotations

import typer

from ingest.cli.common import (
    EXIT_DAMAGE,
    ConfigOption,
    JsonOption,
    RankOption,
    StepOption,
    StoreArgument,
    err,
    out,
    print_json,
    printable,
    the_store,
)
from ingest.units import human_bytes

NAME = "verify"


def command(
    store: StoreArgument = None,
    rank: RankOption = None,
    step: StepOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Read everything back, recompute every digest and statistic, and name what is damaged.

    Exits with 3 when anything is.
    """
    from ingest.reader.verify import Verified, verify

    opened = the_store(store, config)
    keys = [one.key for one in opened.select(rank, step)] if rank or step else None
    done = Verified()

    def note(progress: Verified) -> None:
        nonlocal done
        done = progress

    with err.status("verifying"):
        damages = list(verify(opened, keys, note))
    if json:
        print_json(
            [
                {"rank": d.key.rank, "step": d.key.step, "source": d.source, "reason": d.reason}
                for d in damages
            ]
        )
    else:
        for d in damages:
            line = f"{d.key}: {d.source + ': ' if d.source else ''}{d.reason}"
            out.print(printable(line), markup=False, soft_wrap=True)
    err.print(
        f"{done.steps} steps, {done.files} files, {human_bytes(done.nbytes)} read; {len(damages)} damaged"
    )
    if damages:
        raise typer.Exit(EXIT_DAMAGE)
