"""Adding sketches to the steps of a store, from settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ingest.consolidating import sketching
from ingest.consolidating.sketching import SketchReport
from ingest.reader.catalog import Catalog
from ingest.reader.choice import Choice
from ingest.reader.require import require_store
from ingest.settings import Settings, load
from ingest.wiring.runner import open_runner
from ingest.wiring.stores import address_of_store
from workers.store.opening import open_objects
from workers.tasks.sketch import Sketched


def sketch(
    store: str | Path,
    *,
    rank: Choice = None,
    step: Choice = None,
    settings: Settings | None = None,
    progress: Callable[[Sketched], None] = lambda _: None,
) -> SketchReport:
    """Add sketches to steps that were committed without them; what `dump-ingest sketch` does.

    Args:
        store: a directory or any fsspec URL.
        rank: one rank, or several; all if None.
        step: one step, or several; all, and the run files, if None.
        settings: everything else; tasks run in this process unless they name `scheduler` or `workers`.
        progress: is called with each step when it is done.

    Raises:
        UsageError: the store does not exist, or a rank or step is not in it.
        StoreError: the store refused. What was added stays.
        ClusterError: no worker answers.
    """
    chosen = (settings or load().settings).model_copy(update={"store": str(store)})
    objects = open_objects(address_of_store(chosen))
    require_store(objects, objects.address.url)
    with open_runner(chosen) as run:
        return sketching.sketch_steps(Catalog(objects), run, rank, step, progress)
