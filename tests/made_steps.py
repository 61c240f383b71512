"""Steps, commits and plans as values: what the rooms of the service decide by, without a dump or a store."""

from dataclasses import fields
from typing import Any

from ingest.layouts.base import Description, Listing
from ingest.planning.inspection import Inspected, Inspection
from ingest.planning.plan import fingerprint
from ingest.steps.committed import CommittedFiles
from ingest.steps.state import StepState
from workers.model import SourceFile, StepKey
from workers.store import metadata
from workers.store.commit import Commit
from workers.store.model import CommitSummary, Grid, Origin, StoreAddress
from workers.store.record import CommitRecord, CompactLeaf, WithoutTensors, encode_leaf, totals_of
from workers.tasks.model import StepPlan

ROOT, HOST = "/dump", "here"
_COUNTS = [field.name for field in fields(CommitSummary) if field.type in ("int", "Count")]


def made_files(key: StepKey, *versions: int) -> tuple[SourceFile, ...]:
    """Return a file for each of these versions, which stand for its time; 0 for no file."""
    return tuple(
        SourceFile(f"rank_{key.rank}/{key.step}/{number}.npy", 100, version)
        for number, version in enumerate(versions)
        if version
    )


def made_listing(key: StepKey, *versions: int, **more: Any) -> Listing:
    """Return a step as a look shows it."""
    return Listing(key, made_files(key, *versions), newest_change=0.0, **{"later_begun": False, **more})


def made_inspected(listing: Listing, *, unfinished: str = "") -> Inspected:
    """Return a listing whose files were read; one of them may still grow."""
    inspections = {unfinished: Inspection(may_grow=True)} if unfinished else {}
    return Inspected(listing, Description(), inspections)


def made_state(key: StepKey, *versions: int, quiet_s: float = 60.0, **more: Any) -> StepState:
    """Return a pending step that was looked at once."""
    state = StepState(key, is_expected=True)
    listing = made_listing(key, *versions, **more)
    state.record_listing(listing, now=0.0, reached=quiet_s)
    state.fingerprint = fingerprint(listing.files, listing.naming, Grid())
    return state


def made_plan(state: StepState, *, without_tensors: str = "", name: str = "") -> StepPlan:
    """Return a plan for a step: as its listing is, unless it is given another name."""
    origin = Origin("", HOST, ROOT)
    return StepPlan(
        state.key,
        name or state.fingerprint,
        origin,
        StoreAddress("/store"),
        nbytes=0,
        entries=(),
        arrays=(),
        without_tensors=without_tensors,
    )


def made_commit(
    key: StepKey,
    name: str,
    *,
    status: str = "complete",
    anomalous: int = 0,
    removed_tensors: bool = False,
    root: str = ROOT,
    **record: Any,
) -> Commit:
    """Return a commit of a step."""
    counts: dict[str, Any] = dict.fromkeys(_COUNTS, 0) | {"anomalous_tensors": anomalous}
    chosen: Any = status
    summary = CommitSummary(key=key, fingerprint=name, status=chosen, **counts)
    without = WithoutTensors("2026-01-01T00:00:00+00:00", "gc", "old") if removed_tensors else None
    made = CommitRecord(
        format_version=metadata.FORMAT_VERSION,
        without_tensors=without,
        rank=key.rank,
        step=key.step,
        fingerprint=name,
        committed_at="2026-01-01T00:00:00+00:00",
        source=Origin("", HOST, root),
        summary=totals_of(summary),
        **{"previous": (), "stored": {}, **record},
    )
    return Commit(key, name, summary, made, CompactLeaf.of(encode_leaf(made, {}), name))


def files_in(commit_files: tuple[SourceFile, ...]) -> CommittedFiles:
    """Return files as the index of a commit has them."""
    versions = {file.path: (file.size, file.mtime_ns) for file in commit_files}
    return CommittedFiles(versions, frozenset(versions))
