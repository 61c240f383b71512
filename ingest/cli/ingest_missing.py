"""What `ingest` says at its end of what was asked for and is not in the store."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import ingest
from ingest.cli.printing import say
from ingest.questions.missing import MissingItem, MissingItems
from ingest.service.one_shot import Report
from ingest.settings import Settings
from workers.errors import DumpIngestError

#: How many items are named.
_MAX_ITEMS = 5
#: Ranks of which one index is read: what is not dumped on one of them is rarely dumped on others.
_MAX_RANKS = 8


def say_missing(report: Report, settings: Settings) -> None:
    """Print what the configuration of the dump asked for and is not in the store, with the reasons.

    Reads the index of one step of up to eight ranks, if something was committed and the dump has a file that
    may be its configuration.
    """
    if not report.commits or report.stopped_by is not None or not report.may_have_configuration:
        return
    url = settings.store or ""
    try:
        store = ingest.open_store(url, **settings.store_arguments)
        items = ingest.missing(store, most_ranks=_MAX_RANKS, damages=[])
    except DumpIngestError as exc:
        say(f"cannot tell what the dump lacks: {exc.message}", label="note")
        return
    if report.missing_steps:  # these are named above
        items = MissingItems(item for item in items if not _is_step_of_no_rank(item))
    if items:
        command = f"dump-ingest ls {shlex.quote(url)} --missing"
        say(f"the dump lacks items that its configuration requests; `{command}` lists them", label="note")
        _say_items(items)


def _is_step_of_no_rank(item: MissingItem) -> bool:
    return item.what == "step" and item.rank is None


def _say_items(items: Sequence[MissingItem]) -> None:
    for item in items[:_MAX_ITEMS]:
        rank = "" if item.rank is None else f" on rank {item.rank}"
        what = "steps" if item.what == "step" and not item.name.isdecimal() else item.what
        say(f"  {what} {item.name}{rank}" + (f": {item.reason}" if item.reason else ""))
    if items[_MAX_ITEMS:]:
        say(f"  and {len(items) - _MAX_ITEMS} more")
