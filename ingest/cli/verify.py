"""`dump-ingest verify`: a check that the store still holds what was written."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import typer

from ingest.cli.consoles import err
from ingest.cli.exits import EXIT_DAMAGE
from ingest.cli.options import ConfigOption, JsonOption, RanksOption, StepOption, StoreArgument, open_store
from ingest.cli.printing import print_json, print_text, say
from ingest.reader.text import counted, printable
from ingest.units import human_bytes

if TYPE_CHECKING:
    from ingest.reader.catalog import Damage
    from ingest.reader.verifying import StoreDamage


def command(
    store: StoreArgument = None,
    rank: RanksOption = None,
    step: StepOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Read everything back, recompute every digest and statistic, and name what is damaged.

    Exits with 3 if anything is damaged; `dump-ingest repair` makes it again.
    """
    # deferred: numpy, numba and zarr take 0.4 s to import
    from ingest.reader.verifying import Verified, uncommitted, verify, verify_copies, verify_surroundings

    opened = open_store(store, config)
    keys, notes = None, []
    if rank or step:
        unread: list[Damage] = []
        chosen = opened.select(rank, step, damages=unread)
        keys = [*(step.key for step in chosen), *(damage.key for damage in unread)]
    total = Verified()

    def keep_total(so_far: Verified) -> None:
        nonlocal total
        total = so_far

    with err.status("verifying"):
        damages: list[Damage | StoreDamage] = list(verify(opened, keys, keep_total))
        if keys is None:
            damages += verify_surroundings(opened.objects)
            damages += verify_copies(opened.objects)
            notes = uncommitted(opened.objects)
    if json:
        print_json(list(map(_json_row, damages)))
    else:
        for damage in damages:
            print_text(printable(str(damage)))
    say(
        f"{counted(total.steps, 'step')}, {counted(total.files, 'file')}, {human_bytes(total.nbytes)} read; "
        f"{len(damages)} damaged"
    )
    for key in notes:
        say(
            f"{key} has objects but no commit, for more than a day: an ingest was interrupted, or the commit "
            "was deleted. `ingest` takes the step again, `gc` removes the objects",
            label="note",
        )
    if damages:
        say(
            f"`dump-ingest repair {shlex.quote(opened.url)}` shows from what it can be restored", label="hint"
        )
        raise typer.Exit(EXIT_DAMAGE)


def _json_row(damage: Damage | StoreDamage) -> dict[str, Any]:
    return {
        "rank": damage.key.rank if damage.key else None,
        "step": damage.key.step if damage.key else None,
        "source": damage.source,
        "reason": damage.reason,
    }
