"""The consolidator, from settings; and sketches for steps without them, a task for each step of each rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingest.consolidating.consolidator import Consolidator, StepsConsolidated
from ingest.dispatch.runners import RunJobs, open_runner
from ingest.findings.stored import SeriesEvaluator
from ingest.reader.catalog import Catalog, Damage
from ingest.reader.choice import Choice
from ingest.reader.require import require_store
from ingest.service.one_shot import Report
from ingest.settings import Settings, load
from ingest.wiring.stores import address_of_store
from workers.errors import StoreError
from workers.model import StepKey
from workers.rules.ready import rules_of
from workers.rules.values import RuleSet
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects
from workers.store.sketches import has_all_sketches
from workers.tasks.consolidate import Sketched, SketchJob
from workers.tasks.consolidate import sketch as sketch_step


@contextmanager
def open_consolidator(settings: Settings, *, patience_s: float = 0.0) -> Iterator[Consolidator]:
    """Hold the consolidated view of the store that the settings name, to write it.

    Its tasks run in this process, unless the settings name a scheduler or a number of workers.

    Raises:
        UsageError: the store does not exist, or its URL is wrong.
        LeaseHeld: another process writes the view.
        ClusterError: no worker answers.
    """
    rules = rules_of(settings.rules)
    objects = open_objects(address_of_store(settings))
    require_store(objects, objects.address.url)
    evaluator = SeriesEvaluator(objects, rules)
    with (
        open_runner(settings) as run,
        Consolidator(objects, run, patience_s, evaluator=evaluator) as consolidator,
    ):
        yield consolidator


def consolidate(
    store: str | Path,
    *,
    check: bool = False,
    rebuild: bool = False,
    settings: Settings | None = None,
) -> StepsConsolidated:
    """Bring the consolidated view of a store up to date, once; what `dump-ingest consolidate` does.

    Args:
        store: a directory or any fsspec URL.
        check: read every commit again, not only new ones and those that were announced as replaced.
        rebuild: make the whole view again.
        settings: everything else; tasks run in this process unless they name `scheduler` or `workers`.

    Raises:
        UsageError: the store does not exist.
        LeaseHeld: another process writes the view.
        StoreError: the store refused.
    """
    chosen = (settings or load().settings).model_copy(update={"store": str(store)})
    with open_consolidator(chosen) as consolidator:
        return consolidator.once(check=check, rebuild=rebuild)


def consolidate_after(report: Report, objects: ObjectStore, rules: RuleSet) -> None:
    """Bring the consolidated view up to date; record why if that fails: the commits stand without it."""
    try:
        with Consolidator(objects, evaluator=SeriesEvaluator(objects, rules)) as consolidator:
            report.series = consolidator.once().findings
    except StoreError as exc:
        report.not_consolidated = exc


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
