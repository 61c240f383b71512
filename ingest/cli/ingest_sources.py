"""What `ingest --after-commit delete` prints: what was deleted in the dump, and why the rest stays."""

from __future__ import annotations

from typing import Any

from ingest.cli.printing import say
from ingest.reader.text import counted, printable
from ingest.service.one_shot import Report
from ingest.steps.events import SourceKept
from ingest.units import human_bytes

#: Why files stay, by the value of `KeepReason`.
_REASONS = {
    "newest": "the newest of their rank (--keep-last)",
    "anomalous": "an anomaly on a rank of this dump (--keep-anomalous)",
    "undecided": "another rank of this dump has not committed them yet (--keep-anomalous)",
    "partial": "partial commits: the dump may hold the only copy",
    "no_tensors": "the store has them without their tensors",
    "checkpoint": "they are checkpoints, from which the job restarts",
    "elsewhere": "committed from another dump or host",
    "no_commit": "no readable commit in the store",
    "not_stored": "files that the commit does not have as they are now",
    "not_understood": "files that are not understood; the store has them as files",
    "changed": "changed while they were read back",
    "denied": "no permission to write to the dump",
    "read_back_failed": "could not be read back from the store",
}
#: Reasons without details: the words say everything, or an error message does.
_WITHOUT_DETAIL = frozenset(["newest", "anomalous", "read_back_failed"])


def say_sources(report: Report, *, dry_run: bool) -> None:
    """Print to stderr what was deleted, and why the rest stays."""
    files, nbytes = (
        sum(getattr(deleted, name) for deleted in report.deleted) for name in ("files", "nbytes")
    )
    would = "Would delete" if dry_run else "Deleted"
    steps = len({deleted.key for deleted in report.deleted})
    say(
        f"{would} {counted(files, 'dump file')} ({human_bytes(nbytes)}) of {counted(steps, 'step')}; "
        "the store has every byte."
        if files
        else f"{would} nothing in the dump."
    )
    by_reason: dict[str, list[SourceKept]] = {}
    for kept in report.source_kept:
        by_reason.setdefault(kept.reason.value, []).append(kept)
    for reason, steps_kept in by_reason.items():
        first = steps_kept[0]
        example = "" if reason in _WITHOUT_DETAIL else f"; {first.key}: {printable(first.detail)}"
        count = counted(sum(kept.files for kept in steps_kept), "file")
        where = counted(len(steps_kept), "step")
        say(f"{count} of {where}: {_REASONS[reason]}{example}", label="stays")


def sources_row(report: Report, *, dry_run: bool) -> dict[str, Any]:
    """Return the JSON of the source files: what was deleted, and why the rest stays."""
    return {
        "dry_run": dry_run,
        "deleted": [
            {
                "rank": deleted.key.rank,
                "step": deleted.key.step,
                "files": deleted.files,
                "bytes": deleted.nbytes,
            }
            for deleted in report.deleted
        ],
        "kept": [
            {
                "rank": kept.key.rank,
                "step": kept.key.step,
                "reason": kept.reason.value,
                "files": kept.files,
                "detail": kept.detail,
            }
            for kept in report.source_kept
        ],
    }
