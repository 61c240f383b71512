"""The consolidator, from settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ingest.consolidating.consolidator import Consolidator, StepsConsolidated
from ingest.dispatch.runners import open_runner
from ingest.findings.stored import SeriesEvaluator
from ingest.reader.require import require_store
from ingest.service.one_shot import Report
from ingest.settings import Settings, load
from ingest.wiring.stores import address_of_store
from workers.errors import StoreError
from workers.rules.ready import rules_of
from workers.rules.values import RuleSet
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects


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
