"""Ingest a dump within this process: scan, plan, convert, publish. Without Dask and without waiting."""

from collections.abc import Mapping
from pathlib import Path

from ingest.layouts.base import Listing
from ingest.layouts.detect import find_dump
from ingest.planning.inspection import inspect
from ingest.planning.plan import plan_step
from workers.arrays.marginals import MarginalScope
from workers.model import StepKey
from workers.rules.values import RuleSet
from workers.store.model import CommitSummary, Grid, Origin
from workers.store.opening import resolve
from workers.tasks.convert import convert
from workers.tasks.model import StepPlan
from workers.tasks.publish import publish

#: A grid so small that a few hundred bytes already fill several chunks, shards and jobs.
SMALL_GRID = Grid(chunk_nbytes=64, shard_nbytes=256, job_nbytes=512)


def listings(dump: Path) -> dict[StepKey, Listing]:
    """Return the listing of every step of a dump."""
    return {listing.key: listing for listing in find_dump(dump).scan({}).listings}


def plan_all(
    dump: Path,
    store: Path | str,
    grid: Grid | None = None,
    rules: RuleSet | None = None,
    *,
    leave_out_tensors: str = "",
    layout: str = "",
    rank_map: Mapping[int, int] | None = None,
    sketches: bool = False,
    marginals: MarginalScope = MarginalScope.ALL,
) -> list[StepPlan]:
    """Plan every step of a dump as if it were complete."""
    tree = find_dump(dump, layout=layout, rank_map=rank_map)
    address = resolve(str(store))
    return [
        plan_step(
            inspect(tree.root, listing, tree.describe(listing)),
            Origin(listing.layout, "test-host", str(tree.root), listing.rank_from),
            address,
            grid or Grid(),
            rules,
            leave_out_tensors=leave_out_tensors,
            sketches=sketches,
            marginals=marginals,
        )
        for listing in tree.scan({}).listings
        if listing.files
    ]


def run(plan: StepPlan) -> CommitSummary:
    """Convert and publish one step."""
    return publish(plan, [convert(job) for job in plan.jobs])


def ingest_directly(
    dump: Path,
    store: Path | str,
    grid: Grid | None = None,
    rules: RuleSet | None = None,
    *,
    layout: str = "",
    rank_map: Mapping[int, int] | None = None,
    sketches: bool = False,
    marginals: MarginalScope = MarginalScope.ALL,
) -> list[CommitSummary]:
    """Ingest every step of a dump into a store, complete or not."""
    plans = plan_all(
        dump, store, grid, rules, layout=layout, rank_map=rank_map, sketches=sketches, marginals=marginals
    )
    return [run(plan) for plan in plans]
