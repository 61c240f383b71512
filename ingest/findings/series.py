"""Rules over several steps or ranks: each step against those before it, and the ranks against each other.

What is kept of earlier steps is only what the rules ask for: some statistics and the digest of the tensors
that they choose. Where a step has a value that is not finite, or a tensor is absent, nothing is said of it.

The modified z-score is that of Iglewicz and Hoaglin (1993, "How to detect and handle outliers", section 3.3),
0.6745 (x - median) / MAD, here of log2 of the statistic: norms vary by factors, and a norm that halves is as
far off as one that doubles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from ingest.findings.replicas import Compared, chooses
from ingest.reader.catalog import Catalog
from ingest.reader.snapshot import take_snapshot
from ingest.reader.step_statistics import StepStatistics
from workers.arrays.digest import DIGEST_BYTES
from workers.errors import DamagedStore, UsageError
from workers.rules.values import Rule, RuleSet, evaluated
from workers.store.blocks import Block, TensorAxis, TensorKey
from workers.store.model import Evaluated, Finding

Values = npt.NDArray[np.float64]

#: What is kept of earlier steps takes no more; where it would, the history is shorter.
MAX_HISTORY_NBYTES = 512 * 1024 * 1024
#: Steps before that tell whether a tensor usually agrees between replicas.
_AGREED_BEFORE = 3
#: To normal quantiles: the MAD of a normal distribution is 0.6745 of its standard deviation.
_Z = 0.6745
#: Below this a norm is taken for this: its logarithm must be finite.
_TINY = 2.0**-1022


@dataclass(frozen=True, slots=True)
class StepFindings:
    """What rules over several steps or ranks found in one step, of all ranks."""

    step: int
    found: Evaluated
    not_evaluated: tuple[str, ...] = ()
    """Steps of single ranks that were left out, and why."""


@dataclass(slots=True)
class _Seen:
    """What is kept of one step: (rank, chosen tensor)."""

    ranks: tuple[int, ...]
    row: npt.NDArray[np.int32]
    """-1 for what a rank has not."""
    values: dict[str, Values]
    digest: npt.NDArray[np.uint8]
    """(rank, tensor, 16); none where no rule asks for it."""

    @property
    def nbytes(self) -> int:
        return self.row.nbytes + self.digest.nbytes + sum(one.nbytes for one in self.values.values())


@dataclass(slots=True)
class _Tally:
    """What the rules of a set have come to in one step."""

    found: list[list[Finding]] = field(default_factory=list)
    totals: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def add(self, rule: Rule, findings: list[Finding], total: int) -> None:
        if total:
            self.found.append(findings)
            self.totals[rule.name] = total


@dataclass
class Series:
    """Evaluates the rules of a set that look at several steps or ranks, one step after the other.

    Memory: `MAX_HISTORY_NBYTES`, four steps of all ranks as `StepStatistics` and `divergence` have them, and
    the arrays of one rule over its history.
    """

    rules: RuleSet
    axis: TensorAxis = field(default_factory=TensorAxis)
    """The tensors that any of the rules chooses."""
    _chosen: dict[TensorKey, bool] = field(default_factory=dict)
    _seen: dict[tuple[int, str], _Seen | None] = field(default_factory=dict)
    """By step and generation; None for a step that could not be read."""
    _masks: dict[str, list[bool]] = field(default_factory=dict)
    """By rule, over the axis."""

    def evaluate(self, store: Catalog, step: int, before: Mapping[int, str], generation: str) -> StepFindings:
        """Return what is found in one step.

        Args:
            store: the store.
            step: the step.
            before: the steps before it, with what tells one generation of them from another.
            generation: the same of the step.

        Raises:
            StoreUnavailable: the store did not answer; try again.
        """
        tally = _Tally()
        over_steps = [rule for rule in self.rules.of_series if rule.kind in _OVER_STEPS]
        if over_steps:
            try:
                history = self._history(over_steps, store, step, before, generation)
            except DamagedStore as exc:
                tally.failed.update((rule.name, exc.message) for rule in over_steps)
            else:
                for rule in over_steps:
                    self._try(tally, rule, step, history)
        left_out: tuple[str, ...] = ()
        over_ranks = [rule for rule in self.rules.of_series if rule.kind not in _OVER_STEPS]
        if over_ranks:
            compared = Compared.of(store, step, sorted(before)[-_AGREED_BEFORE:])
            left_out = compared.left_out
            for rule in over_ranks:
                if compared.failed:
                    tally.failed[rule.name] = compared.failed
                else:
                    every = list(compared.findings(rule, step))
                    tally.add(rule, every[: rule.limit], len(every))
        return StepFindings(step, evaluated(self.rules, tally.found, tally.totals, tally.failed), left_out)

    def _try(self, tally: _Tally, rule: Rule, step: int, history: Sequence[_Seen]) -> None:
        try:
            findings, total = self._over_steps(rule, step, history)
        except Exception as exc:  # noqa: BLE001  (the view must not wait for what a rule stumbles over)
            tally.failed[rule.name] = f"{type(exc).__name__}: {exc}"[:500]
        else:
            tally.add(rule, findings, total)

    def _history(
        self, rules: Sequence[Rule], store: Catalog, step: int, before: Mapping[int, str], generation: str
    ) -> list[_Seen]:
        """Return what is kept of the steps that the rules look at, the last one is `step` itself."""
        longest = max(_steps_before(rule) for rule in rules)
        wanted = [(one, before[one]) for one in sorted(before)[-longest:]] + [(step, generation)]
        unread = [one for one in wanted if one not in self._seen]
        if unread:
            read = self._read(store, dict(unread))
            self._seen.update((one, read.get(one[0])) for one in unread)
        for one in [one for one in self._seen if one not in wanted]:
            del self._seen[one]
        kept = [seen for one in wanted if (seen := self._seen[one]) is not None]
        if self._seen[wanted[-1]] is None:
            raise DamagedStore(f"step {step} could not be read")
        while len(kept) > 2 and sum(one.nbytes for one in kept) > MAX_HISTORY_NBYTES:
            kept.pop(0)
        return kept

    def _read(self, store: Catalog, unread: Mapping[int, str]) -> dict[int, _Seen]:
        """Return what is kept of these steps, without those that are gone or damaged."""
        found: dict[int, _Seen] = {}
        try:
            survey = StepStatistics(take_snapshot(store, step=list(unread), include_partial=True))
        except UsageError:
            # One of them is gone, or all are.
            for one, generation in unread.items() if len(unread) > 1 else ():
                found |= self._read(store, {one: generation})
            return found
        for step in survey.snapshot.steps:
            # One damaged step must not hide what is in those after it.
            with suppress(DamagedStore):
                found[step] = self._reduced(survey.block(step), survey.axis)
        return found

    def _reduced(self, block: Block, axis: TensorAxis) -> _Seen:
        """Return what the rules need of a step."""
        width = block.row.shape[1]
        keys = axis.keys[:width]
        places = np.array([place for place, key in enumerate(keys) if self._is_chosen(key)], np.int64)
        own = self.axis.extend(keys[place] for place in places)
        shape = (len(block.ranks), len(self.axis))
        row = np.full(shape, -1, np.int32)
        row[:, own] = block.row[:, places]
        values = {}
        for name in sorted(_statistics(self.rules)):
            values[name] = np.full(shape, np.nan)
            values[name][:, own] = block.statistic(name)[:, places]
        asks_for_digest = any(rule.kind == "unchanged" for rule in self.rules.of_series)
        digest = np.zeros((*shape, DIGEST_BYTES if asks_for_digest else 0), np.uint8)
        if asks_for_digest:
            digest[:, own] = _digests(block, places)
        return _Seen(block.ranks, row, values, digest)

    def _is_chosen(self, key: TensorKey) -> bool:
        if key not in self._chosen:
            rules = (rule for rule in self.rules.of_series if rule.kind in _OVER_STEPS)
            self._chosen[key] = any(chooses(rule.selector, key) for rule in rules)
        return self._chosen[key]

    def _mask(self, rule: Rule) -> npt.NDArray[np.bool_]:
        mask = self._masks.setdefault(rule.name, [])
        mask += [chooses(rule.selector, key) for key in self.axis.keys[len(mask) :]]
        return np.array(mask, bool)

    def _over_steps(self, rule: Rule, step: int, history: Sequence[_Seen]) -> tuple[list[Finding], int]:
        if not history:
            return [], 0
        now = history[-1]
        ranks = np.array([rule.selector.has_rank(rank) for rank in now.ranks], bool)
        table = _Table(now, history[:-1], len(self.axis))
        with np.errstate(all="ignore"):
            hits, values, threshold, say = _OVER_STEPS[rule.kind](rule, table)
        hits &= self._mask(rule) & ranks[:, None] & (table.row >= 0)
        places = np.argwhere(hits)
        order = np.lexsort((table.row[hits], places[:, 0]))
        findings = []
        for rank, tensor in places[order][: rule.limit].tolist():
            key = self.axis[tensor]
            findings.append(
                Finding(
                    rule.name,
                    rule.severity,
                    now.ranks[rank],
                    step,
                    int(table.row[rank, tensor]),
                    key.graph,
                    key.name,
                    float(values[rank, tensor]),
                    threshold,
                    say(rank, tensor),
                )
            )
        return findings, len(places)


@dataclass(slots=True)
class _Table:
    """A step and those before it, aligned along the ranks of the step and the axis."""

    now: _Seen
    before: Sequence[_Seen]
    width: int

    @property
    def row(self) -> npt.NDArray[np.int32]:
        return self._aligned(self.now, self.now.row, -1)

    def value(self, name: str) -> Values:
        """Return a statistic of the step, (rank, tensor)."""
        return self._aligned(self.now, self.now.values[name], np.nan)

    def values_before(self, name: str, steps: int) -> Values:
        """Return a statistic of the steps before, (step, rank, tensor)."""
        chosen = self.before[-steps:]
        shape = (len(chosen), len(self.now.ranks), self.width)
        whole = np.empty(shape)
        for number, seen in enumerate(chosen):
            whole[number] = self._aligned(seen, seen.values[name], np.nan)
        return whole

    def digest(self, seen: _Seen) -> npt.NDArray[np.uint8]:
        """Return the digests of one of the steps, (rank, tensor, 16); zeros for what it has not."""
        return self._aligned(seen, seen.digest, 0)

    def _aligned(self, seen: _Seen, values: npt.NDArray[Any], fill: float) -> npt.NDArray[Any]:
        if seen.ranks == self.now.ranks and values.shape[1] == self.width:
            return values
        whole = np.full((len(self.now.ranks), self.width, *values.shape[2:]), fill, values.dtype)
        places = {rank: place for place, rank in enumerate(seen.ranks)}
        into = [place for place, rank in enumerate(self.now.ranks) if rank in places]
        out_of = [places[rank] for rank in self.now.ranks if rank in places]
        whole[into, : values.shape[1]] = values[out_of]
        return whole


_Hits = tuple[npt.NDArray[np.bool_], Values, float, Callable[[int, int], str]]


def _unchanged(rule: Rule, table: _Table) -> _Hits:
    steps = int(rule["steps"])
    elements = table.value("count")
    nothing = np.zeros(elements.shape, bool), elements, float(steps), lambda _rank, _tensor: ""
    if len(table.before) < steps - 1:
        return nothing
    now = table.digest(table.now)
    hits = now.any(axis=2) & (elements >= rule["elements_ge"])
    for seen in table.before[-(steps - 1) :]:
        hits &= (table.digest(seen) == now).all(axis=2)
    return (
        hits,
        np.full(elements.shape, float(steps)),
        float(steps),
        lambda _rank, _tensor: f"the same in {steps} steps in a row",
    )


def _change(rule: Rule, table: _Table) -> _Hits:
    name = rule["statistic"]
    now, elements = table.value(name), table.value("count")
    if not table.before:
        return np.zeros(now.shape, bool), now, rule["ratio_gt"], lambda _rank, _tensor: ""
    before = table.values_before(name, 1)[0]
    ratio = np.abs(now - before) / (np.abs(before) + rule["epsilon"])
    hits = (
        (ratio > rule["ratio_gt"]) & (np.abs(before) >= rule["before_ge"]) & (elements >= rule["elements_ge"])
    )

    def say(rank: int, tensor: int) -> str:
        return (
            f"{name} went from {before[rank, tensor]:.6g} to {now[rank, tensor]:.6g}, "
            f"by {ratio[rank, tensor]:.3g} of what it was"
        )

    return hits, ratio, rule["ratio_gt"], say


def _outlier(rule: Rule, table: _Table) -> _Hits:
    name, above = rule["statistic"], rule["direction"] == "above"
    now = table.value(name)
    past = table.values_before(name, int(rule["history"]))
    known = np.isfinite(past).sum(axis=0)
    # Only where there is enough to compare with: medians of everything would take most of the time.
    rows, columns = np.nonzero((known >= rule["least"]) & np.isfinite(now))
    median = np.full(now.shape, np.nan)
    z = np.full(now.shape, np.nan)
    logs = np.log2(np.maximum(np.abs(past[:, rows, columns]), _TINY))
    logs[~np.isfinite(past[:, rows, columns])] = np.nan
    if rows.size:
        middle = np.nanmedian(logs, axis=0)
        spread = np.nanmedian(np.abs(logs - middle), axis=0)
        off = np.log2(np.maximum(np.abs(now[rows, columns]), _TINY)) - middle
        median[rows, columns] = np.exp2(middle)
        # Where it never varied, any change is beyond its spread; the ratio decides.
        z[rows, columns] = np.where(spread > 0, _Z * off / spread, np.sign(off) * np.inf)
    ratio = now / median if above else median / now
    hits = (ratio > rule["ratio_gt"]) & ((z if above else -z) > rule["z_gt"])

    def say(rank: int, tensor: int) -> str:
        return (
            f"{name} {now[rank, tensor]:.6g} is {ratio[rank, tensor]:.3g} times "
            + ("the" if above else "less than the")
            + f" median {median[rank, tensor]:.6g} of {known[rank, tensor]} steps before, "
            + f"z {z[rank, tensor]:.3g}"
        )

    return hits, ratio, rule["ratio_gt"], say


_OVER_STEPS: dict[str, Callable[[Rule, _Table], _Hits]] = {
    "unchanged": _unchanged,
    "change": _change,
    "outlier": _outlier,
}


def _steps_before(rule: Rule) -> int:
    match rule.kind:
        case "unchanged":
            return int(rule["steps"]) - 1
        case "outlier":
            return int(rule["history"])
    return 1


def _statistics(rules: RuleSet) -> set[str]:
    named = {rule["statistic"] for rule in rules.of_series if rule.kind in ("change", "outlier")}
    return {*named, "count"}


def _digests(block: Block, places: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Return what tells contents apart: digests, or those of the statistics where only these were dumped."""
    digest = block.digest[:, places].copy()
    lacking = ~digest.any(axis=2) & np.isfinite(block.statistics[:, places]).any(axis=2)
    for rank, place in np.argwhere(lacking).tolist():
        known = block.statistics[rank, places[place]]
        digest[rank, place] = np.frombuffer(xxhash.xxh3_128_digest(known.tobytes()), np.uint8)
    return digest
