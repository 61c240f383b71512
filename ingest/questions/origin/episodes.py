"""Episodes: the steps in a row that hold NaN or Inf, each with the operator in which it began.

A run may have several: an overflow that loss scaling skips, and weeks later a NaN that stays. The origin of
an episode depends on its first step and on the steps before. So it does not change when later steps arrive.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from ingest.questions.origin.answer import OriginAnswer
from ingest.questions.origin.search import OriginSearch
from ingest.reader.snapshot import LeftOut, Snapshot


@dataclass(frozen=True, slots=True)
class Episode:
    """Steps in a row that hold NaN or Inf."""

    origin: OriginAnswer
    """Where it began, in the first of the steps."""
    steps: tuple[int, ...]
    ranks: tuple[int, ...]
    """The ranks that hold NaN or Inf in any of the steps."""
    tensors: int
    """The number of tensors with NaN or Inf, over all of the steps and ranks."""


class FoundEpisodes(NamedTuple):
    """The episodes of a snapshot."""

    episodes: tuple[Episode, ...]
    """In order of steps."""
    left_out: tuple[LeftOut, ...]
    """The steps that the search was not about."""
    unread: frozenset[int]
    """The steps in which nothing was made of NaN and Inf."""


def episodes_of(snapshot: Snapshot) -> FoundEpisodes:
    """Return the episodes of a snapshot.

    Reads the indexes of the steps up to the first of each episode that hold something bad, and of the step
    after it. Of the other steps only their totals are used, however long an episode is. Infinity that others
    turned into finite numbers is not an episode.
    """
    search, episodes = OriginSearch(snapshot, "auto"), []
    for answer, steps in search.answers():
        bad = [
            opened.commit.summary
            for step in steps
            for opened in snapshot.of_step(step).values()
            if opened.commit.summary.anomalous_tensors
        ]
        ranks = {summary.key.rank for summary in bad} | set(answer.spread.ranks)
        known = set(steps)
        within = tuple(later for later in answer.spread.steps if later.step in known)
        episodes.append(
            Episode(
                replace(answer, spread=replace(answer.spread, steps=within)),
                tuple(steps),
                tuple(sorted(ranks)),
                sum(summary.anomalous_tensors for summary in bad),
            )
        )
    return FoundEpisodes(tuple(episodes), search.left_out, frozenset(search.unread))
