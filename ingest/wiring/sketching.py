"""Adds histograms to steps that were committed without them, a task for each step of each rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingest.dispatch.runners import RunJobs, open_runner
from ingest.reader.catalog import Catalog, Damage
from ingest.reader.choice import Choice
from ingest.reader.require import require_store
from ingest.settings import Settings, load
from ingest.wiring.stores import address_of_store
from workers.model import StepKey
from workers.store.opening import open_objects
from workers.store.sketches import has_all_sketches
from workers.tasks.sketch import Sketched, SketchJob
from workers.tasks.sketch import sketch as sketch_step


@dataclass(frozen=True, slots=True)
class SketchReport:
    """What became of the steps of a store."""

    steps: tuple[Sketched, ...]
    """Those that had no histograms, by step and rank."""
    had: int
    """How many others had them already."""
    damaged: tuple[str, ...] = ()
    """Steps whose commit is damaged, and how."""

    @property
    def added(self) -> tuple[Sketched, ...]:
        """The steps that have histograms now."""
        return tuple(step for step in self.steps if step.tensors)

    @property
    def left(self) -> tuple[Sketched, ...]:
        """The steps that were left as they were."""
        return tuple(step for step in self.steps if step.left)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""

        def place(key: StepKey) -> dict[str, Any]:
            return {"rank": key.rank, "step": key.step}

        return {
            "added": [{**place(step.key), "tensors": step.tensors} for step in self.added],
            "had": self.had,
            "left": [{**place(step.key), "reason": step.left} for step in self.left],
            "damaged": list(self.damaged),
        }


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
        return sketch_steps(Catalog(objects), run, rank, step, progress)


def sketch_steps(
    catalog: Catalog,
    run: RunJobs,
    rank: Choice = None,
    step: Choice = None,
    progress: Callable[[Sketched], None] = lambda _: None,
) -> SketchReport:
    """Add histograms to the steps that lack them. Safe to stop, to run again, and to run twice at once.

    Args:
        catalog: the store.
        run: runs the tasks.
        rank: one rank, or several; all if None.
        step: one step, or several; all, and the run files, if None.
        progress: is called with each step when it is done.

    Raises:
        UsageError: a rank or step is not in the store.
        StoreError: the store refused. What was added stays.
    """
    damages: list[Damage] = []
    chosen = catalog.select(rank, step, damages=damages)
    lacking = [opened.key for opened in chosen if not has_all_sketches(opened.commit.nodes)]
    done = []
    for sketched in run(sketch_step, [SketchJob(catalog.objects.address, key) for key in lacking]):
        progress(sketched)
        done.append(sketched)
    return SketchReport(tuple(done), len(chosen) - len(lacking), tuple(map(str, damages)))
