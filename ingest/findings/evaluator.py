"""Evaluates rules over several steps and ranks beside a consolidator, and writes down what they find.

A step is evaluated once for each generation of it: what was written stays, also when other rules come, which
apply to the steps after that. `dump-ingest rules test` says what they would have found before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ingest.findings.series import Series, StepFindings
from ingest.findings.stored import ensure_group, generation_of, known_series, write_series
from ingest.reader.catalog import Catalog
from workers.rules.values import RuleSet
from workers.store import commit, removed
from workers.store.objects import ObjectStore

#: So many steps are evaluated from one listing of the store, which takes longer the longer the run is.
_STEPS_OF_A_LISTING = 16


@dataclass(slots=True, eq=False)
class SeriesEvaluator:
    """The only writer of findings over several steps, as the consolidator is of the view.

    Memory: that of `Series`, and some hundred bytes for each step of the run.
    """

    objects: ObjectStore
    rules: RuleSet
    _series: Series | None = None
    _done: set[tuple[int, str]] | None = None

    def evaluate(
        self,
        generations: Mapping[int, Mapping[int, str]],
        *,
        most: int = 0,
        keep: Callable[[], None] = lambda: None,
    ) -> Iterator[StepFindings]:
        """Evaluate the steps that are new, oldest first, and yield what each came to, once it is written.

        Args:
            generations: by step and rank, those of the view.
            most: so many steps at most, the rest next time; 0 for all.
            keep: called before each step.

        Raises:
            StoreError: the store refused; the steps that are left are evaluated next time.
        """
        if not self.rules.of_series:
            return
        names = {step: generation_of(ranks) for step, ranks in sorted(generations.items()) if ranks}
        if self._done is None:
            ensure_group(self.objects)
            self._done = set(known_series(self.objects))
        new = self._without_removed(
            [step for step, name in names.items() if (step, name) not in self._done], generations
        )
        self._series = self._series or Series(self.rules)
        store = Catalog(self.objects)
        for number, step in enumerate(new[:most] if most else new, 1):
            keep()
            if number % _STEPS_OF_A_LISTING == 0:
                store = Catalog(self.objects)
            before = {one: name for one, name in names.items() if one < step}
            one = self._series.evaluate(store, step, before, names[step])
            write_series(self.objects, self.rules, one, generations[step])
            self._done.add((step, names[step]))
            yield one

    def _without_removed(self, new: Sequence[int], generations: Mapping[int, Mapping[int, str]]) -> list[int]:
        """Return these steps without those that have another generation only for ranks that were removed.

        That a rank is missing there is what somebody wanted, and nothing to find.
        """
        known = {step for step, _ in self._done or ()}
        if known.isdisjoint(new):
            return list(new)
        tombstones = {rank: removed.read(self.objects, rank) for rank in commit.list_ranks(self.objects)}
        return [
            step
            for step in new
            if step not in known
            or not any(step in of and rank not in generations[step] for rank, of in tombstones.items())
        ]
