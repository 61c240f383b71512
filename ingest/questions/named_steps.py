"""Steps that users name as `run.zarr@RANK,STEP`."""

from __future__ import annotations

from functools import cache

from ingest.questions.compare.selection import parse_selection
from ingest.reader.catalog import open_catalog
from ingest.reader.step import Step
from workers.errors import UsageError


def named_steps(*names: str | Step) -> list[Step]:
    """Return the steps that these name; one that is open already stands for itself. Opens each store once.

    Raises:
        UsageError: a name does not have a rank and a step, or these are not in the store, or it is not one.
        DamagedStore: the root of a store or a commit is damaged.
    """
    catalog_at = cache(open_catalog)

    def named(name: str | Step) -> Step:
        if isinstance(name, Step):
            return name
        selection = parse_selection(name)
        if selection.rank is None or selection.step is None:
            raise UsageError(
                f"{name} does not name a rank and a step", hint="Write STORE@RANK,STEP: run.zarr@0,3."
            )
        return catalog_at(selection.where).step(selection.rank, selection.step)

    return list(map(named, names))


def name_of(step: Step) -> str:
    """Return the name of a step: `run.zarr@RANK,STEP`."""
    return f"{step.address.url}@{step.key.rank},{step.key.step}"
