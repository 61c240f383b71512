"""`dump-ingest verify`: a check that the store still holds what was written."""

from __future__ import annotations

import typer

from ingest.cli.exits import EXIT_DAMAGE
from ingest.cli.opening import open_store
from ingest.cli.options import ConfigOption, JsonOption, RankOption, StepOption, StoreArgument
from ingest.cli.printing import counted, err, out, print_json, printable
from ingest.units import human_bytes


def command(
    store: StoreArgument = None,
    rank: RankOption = None,
    step: StepOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Read everything back, recompute every digest and statistic, and name what is damaged.

    Exits with 3 if anything is damaged.
    """
    from ingest.reader.verify import Verified, verify  # deferred: numpy, numba and zarr take 0.4 s to import

    opened = open_store(store, config)
    keys = [chosen.key for chosen in opened.select(rank, step)] if rank or step else None
    total = Verified()

    def keep_total(so_far: Verified) -> None:
        nonlocal total
        total = so_far

    with err.status("verifying"):
        damages = list(verify(opened, keys, keep_total))
    if json:
        print_json(
            [
                {
                    "rank": damage.key.rank,
                    "step": damage.key.step,
                    "source": damage.source,
                    "reason": damage.reason,
                }
                for damage in damages
            ]
        )
    else:
        for damage in damages:
            line = f"{damage.key}: {damage.source + ': ' if damage.source else ''}{damage.reason}"
            out.print(printable(line), markup=False, soft_wrap=True)
    err.print(
        f"{counted(total.steps, 'step')}, {counted(total.files, 'file')}, {human_bytes(total.nbytes)} read; "
        f"{len(damages)} damaged"
    )
    if damages:
        raise typer.Exit(EXIT_DAMAGE)
