"""What `ingest --after-commit delete` says of the dump: what was deleted, and why the rest stays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ingest.cli.common import err, say
from ingest.units import human_bytes

if TYPE_CHECKING:
    from ingest.service.report import Report
    from ingest.settings import Settings
    from ingest.steps.events import SourceKept

_WHY = {
    "newest": "the newest of their rank (--keep-last)",
    "anomalous": "an anomaly on a rank of this dump (--keep-anomalous)",
    "undecided": "another rank of this dump has not committed them yet (--keep-anomalous)",
    "partial": "partial commits: the source may be all that there is",
    "no_tensors": "committed, or kept in the store, without their tensors",
    "elsewhere": "committed from another dump or host",
    "no_commit": "no commit in the store that can be read",
    "not_stored": "files that came late, after the rest of their step was deleted: they are not in the store",
    "not_understood": "files that are not understood; the store has them as files",
    "changed": "changed while they were read back",
    "denied": "the dump may not be written",
    "read_back_failed": "could not be read back from the store",
}


#: Reasons of which the words say everything, or of which an error is told.
_SAID = frozenset(["newest", "anomalous", "read_back_failed"])


def refuse_idle(settings: Settings, **flags: object) -> None:
    """Raise UsageError for flags that do nothing where dumps are kept: somebody thinks that they do."""
    from workers.errors import UsageError

    given = [name for name, value in flags.items() if value]
    if given and settings.after_commit != "delete":
        raise UsageError(f"--{given[0].replace('_', '-')} does nothing without --after-commit delete")


def say_sources(report: Report, *, dry_run: bool) -> None:
    """Say what was deleted and why the rest stays."""
    files, nbytes = (sum(getattr(one, name) for one in report.deleted) for name in ("files", "nbytes"))
    would = "Would delete" if dry_run else "Deleted"
    steps = len({one.key for one in report.deleted})
    err.print(
        f"{would} {files} dump files ({human_bytes(nbytes)}) of {steps} steps; the store has every byte."
        if files
        else f"{would} nothing in the dump."
    )
    by_reason: dict[str, list[SourceKept]] = {}
    for one in report.source_kept:
        by_reason.setdefault(one.reason.value, []).append(one)
    for reason, kept in by_reason.items():
        first = "" if reason in _SAID else f"; {kept[0].key}: {kept[0].detail}"
        count = sum(one.files for one in kept)
        say(f"{count} files of {len(kept)} steps: {_WHY[reason]}{first}", before="[yellow]stays:[/] ")


def sources_row(report: Report, *, dry_run: bool) -> dict[str, Any]:
    """Return the same as JSON has it."""
    return {
        "dry_run": dry_run,
        "deleted": [
            {"rank": one.key.rank, "step": one.key.step, "files": one.files, "bytes": one.nbytes}
            for one in report.deleted
        ],
        "kept": [
            {
                "rank": one.key.rank,
                "step": one.key.step,
                "reason": one.reason.value,
                "files": one.files,
                "detail": one.detail,
            }
            for one in report.source_kept
        ],
    }
