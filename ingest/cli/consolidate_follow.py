"""`consolidate --follow`: keeps the consolidated view up to date until it is told to stop."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from ingest.cli.printing import print_json, say
from ingest.consolidating.consolidator import Consolidator, LastFindings, StepsConsolidated
from ingest.consolidating.lease import LeaseHeld
from ingest.metrics import ConsolidatorMetrics, Scrapes, serve
from ingest.reader.choice import format_ranges
from ingest.reader.text import counted
from ingest.reporting.log_output import Reminders, configure
from ingest.reporting.logs import log_series, open_webhook
from ingest.service.stopping import is_interrupted, left_s
from ingest.settings import Settings
from ingest.store_gc.execute import GcWatch
from ingest.wiring.consolidation import open_consolidator
from ingest.wiring.stores import has_store, place_of_store
from workers import events
from workers.errors import ClusterError, StoreUnavailable
from workers.events import Observer
from workers.host.heartbeat import beat, tell_ready
from workers.rules.schema import load_rules

if TYPE_CHECKING:
    from workers.store.consolidated.cubes import CubeState


_LISTS = ("appended", "rewritten", "waiting", "damaged")


def say_consolidated(consolidated: StepsConsolidated, consolidator: Consolidator, *, json: bool) -> None:
    """Print what changed in the view, how large the view is, and what the rules found."""
    state = consolidator.state()
    if json:
        findings = sum(sum(step.result.totals.values()) for step in consolidated.findings)
        lists = {name: list(getattr(consolidated, name)) for name in _LISTS}
        sizes = {name: getattr(state, name, 0) for name in ("steps", "ranks", "tensors")}
        print_json({**lists, "findings": findings, **sizes})
    else:
        _say_steps(consolidated, state)
    for step in consolidated.findings:
        if total := sum(step.result.totals.values()):
            rules = ", ".join(f"{rule} {count}" for rule, count in step.result.totals.items())
            say(f"step {step.step}: {total} ({rules}); `dump-ingest anomalies`", label="found")
    for reason in consolidated.damaged:
        say(reason, label="damaged", style="bold red")


def _say_steps(consolidated: StepsConsolidated, state: CubeState | None) -> None:
    changes = {
        "steps added": consolidated.appended,
        "steps rewritten": consolidated.rewritten,
        "waiting for ranks": consolidated.waiting,
    }
    parts = [f"{change}: {format_ranges(steps)}" for change, steps in changes.items() if steps]
    say("; ".join(parts) or "nothing is new")
    if state is not None:
        sizes = ((state.steps, "step"), (state.ranks, "rank"), (state.tensors, "tensor"))
        say(f"the view has {', '.join(counted(count, noun) for count, noun in sizes)}")


#: How often a process that stands by tries again.
_STANDBY_S = 5.0


@dataclass(slots=True)
class Following:
    """Writes the view whenever no other process does, and stands by otherwise."""

    settings: Settings
    poll_s: float
    patience_s: float
    """How long a step waits for ranks that have not committed it."""
    rebuild: bool
    """Whether to build the view from scratch before anything else; reset when that is done."""
    json: bool
    _reminders: Reminders = field(default_factory=Reminders, init=False)

    def run(self, stop: threading.Event) -> None:
        """Consolidate until `stop` is set; stand by while the view is held by others or the store is away.

        Raises:
            UsageError: a rule or the address of the metrics is wrong.
        """
        rules = load_rules(self.settings.rules).enabled.series_rules  # a wrong rule is reported now
        registry = CollectorRegistry()
        metrics = ConsolidatorMetrics(
            registry,
            rules=[(rule.name, rule.severity) for rule in rules],
            store=place_of_store(self.settings, None).url,
            expected_ranks=self.settings.expected_ranks,
            finishes=self.settings.finish,
        )
        scrapes = Scrapes()
        configure(self.settings.log_level, self.settings.log_format)
        if self.settings.consolidator_metrics:
            events.subscribe(metrics.observe)
            serve(registry, self.settings.consolidator_metrics, scrapes=scrapes)
        with open_webhook(self.settings) as webhook:
            observers = [metrics.observe, log_series, scrapes.observe]
            observers += [webhook.observe] if webhook else []
            tell_ready()
            has_held = False
            while not stop.is_set():
                has_held = self._hold_if_free(stop, metrics, observers)
                if not has_held:
                    stop.wait(_STANDBY_S)
            if self.settings.finish and not has_held and not is_interrupted(stop):
                # It was told to stop while it stood by: what has come meanwhile is taken, too.
                self._hold_if_free(stop, metrics, observers)
        if self.settings.finish:
            scrapes.wait_for_last(left_s(stop, self.settings.drain_s))

    def _hold_if_free(
        self, stop: threading.Event, metrics: ConsolidatorMetrics, observers: Sequence[Observer]
    ) -> bool:
        beat()
        try:
            self._hold(stop, metrics, observers)
        except (LeaseHeld, StoreUnavailable, ClusterError) as exc:
            reason = exc.message.partition(" (")[0]  # details in parentheses do not count
            self._reminders.keep([reason])
            if self._reminders.is_due(reason):
                say(exc.message, label="waiting")
            metrics.lease(held=False)
            return False
        return True

    def _hold(
        self, stop: threading.Event, metrics: ConsolidatorMetrics, observers: Sequence[Observer]
    ) -> None:
        """Take the lease on the view and write the view until `stop` is set.

        Raises:
            StoreUnavailable: the store does not exist yet, or does not answer.
            LeaseHeld: another process writes the view.
            ClusterError: the cluster has no workers.
        """
        if not has_store(self.settings):
            # Watchers create the store, and often start at the same time.
            raise StoreUnavailable(f"{self.settings.store}: no dump-ingest store yet")
        with open_consolidator(self.settings, patience_s=self.patience_s) as consolidator:
            consolidator.observers += observers
            metrics.lease(held=True)
            consolidator.observers += [
                LastFindings(consolidator.objects, metrics.observe).observe,
                GcWatch(consolidator.objects, metrics.observe).observe,
            ]
            if self.rebuild:
                consolidator.once(rebuild=True)
                self.rebuild = False
            self._reminders.keep([])

            def report(consolidated: StepsConsolidated) -> None:
                say_consolidated(consolidated, consolidator, json=self.json)

            consolidator.follow(stop, poll_s=self.poll_s, observe=report)
            if self.settings.finish and not is_interrupted(stop):
                consolidator.patience_s = 0.0  # what has not come by now does not come any more
                report(consolidator.once())
