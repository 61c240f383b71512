"""Evaluates rules over several steps and ranks next to a consolidator, and stores what they find.

A step is evaluated once for each generation of it. Stored findings stay when the rules change; changed rules
apply to later steps. `dump-ingest rules test` says what they would have found before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from ingest.findings.series import SeriesRules, StepFindings
from ingest.findings.stored import ensure_group, generation_of, known_series, read_series, write_series
from ingest.reader.catalog import Catalog
from workers.rules.values import RuleSet
from workers.store.commit import read_tombstones
from workers.store.objects import ObjectStore

#: How many steps are evaluated from one listing of the store. Listing takes longer the longer the run is.
_STEPS_OF_A_LISTING = 16


@dataclass(slots=True, eq=False)
class SeriesEvaluator:
    """The only writer of findings over several steps, as the consolidator is of the cubes.

    Memory: that of `SeriesRules`, and some hundred bytes for each step of the run.
    """

    objects: ObjectStore
    rules: RuleSet
    _series: SeriesRules | None = None
    _done: set[tuple[int, str]] | None = None

    def evaluate(
        self,
        generations: Mapping[int, Mapping[int, str]],
        *,
        limit: int = 0,
        keep: Callable[[], None] = lambda: None,
    ) -> Iterator[StepFindings]:
        """Evaluate the new steps, oldest first, and yield the findings of each once they are written.

        Args:
            generations: those of the cubes, by step and rank.
            limit: how many steps to evaluate now, leaving the rest for next time; 0 for all.
            keep: called before each step.

        Raises:
            StoreError: the store refused; the remaining steps are evaluated next time.
        """
        if not self.rules.series_rules:
            return
        names = {step: generation_of(ranks) for step, ranks in sorted(generations.items()) if ranks}
        if self._done is None:
            ensure_group(self.objects)
            self._done = set(known_series(self.objects))
        new = [step for step, name in names.items() if (step, name) not in self._done]
        new = self._without_removed(new, generations)
        self._series = self._series or SeriesRules(self.rules)
        for number, step in enumerate(new[:limit] if limit else new):
            keep()
            if number % _STEPS_OF_A_LISTING == 0:
                catalog = Catalog(self.objects)
            before = {earlier: name for earlier, name in names.items() if earlier < step}
            findings = self._series.evaluate(catalog, step, before, names[step])
            write_series(self.objects, self.rules, findings, generations[step])
            self._done.add((step, names[step]))
            yield findings

    def _absent_ranks(
        self, steps: Collection[int], generations: Mapping[int, Mapping[int, str]]
    ) -> dict[int, set[int]]:
        """Return the ranks that evaluated steps lack by now, if their other ranks are as they were."""
        evaluated = {
            step: document.fingerprints
            for step, document in read_series(self.objects, steps, []).items()
            if generations[step].items() <= document.fingerprints.items()
        }
        return {step: ranks.keys() - generations[step].keys() for step, ranks in evaluated.items()}

    def _without_removed(self, new: Sequence[int], generations: Mapping[int, Mapping[int, str]]) -> list[int]:
        """Return these steps without those whose generation is another one only because ranks were removed.

        Somebody removed these ranks on purpose, so their absence is not a finding.
        """
        changed = {step for step, _ in self._done or ()}.intersection(new)
        if not changed:
            return list(new)
        absent = self._absent_ranks(changed, generations)
        removed = {rank: read_tombstones(self.objects, rank) for rank in sorted({*chain(*absent.values())})}
        without = {step for step, ranks in absent.items() if all(step in removed[rank] for rank in ranks)}
        return [step for step in new if step not in without]
