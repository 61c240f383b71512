"""The order of calls on different ranks, as far as collectives show it.

Clocks of different ranks are never compared. A collective that ends on any rank only after all ranks of its
group have begun it orders the calls before and after it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from ingest.questions.origin.calls import Call, CollectiveCall, RankTrace
from ingest.reader.calls import CallKey, Content
from ingest.reader.operator_kinds import synchronises

#: A collective in which several ranks meet: its name, and its outputs if they tell groups of ranks apart.
Meeting: TypeAlias = tuple[CallKey, tuple[Content, ...]]

#: Rounds in which levels settle. More are needed only if ranks disagree on the order of collectives.
_ROUNDS = 100


@dataclass(eq=False)
class CollectiveOrder:
    """The order of calls on several ranks in one step."""

    traces: Mapping[int, RankTrace]
    """By rank."""

    @cached_property
    def are_names_unique(self) -> bool:
        """Whether no collective has outputs which show that its name means another one on another rank."""
        outputs: dict[CallKey, tuple[Content, ...]] = {}
        for trace in self.traces.values():
            for key, call in trace.collectives.items():
                if call.outputs and outputs.setdefault(key, call.outputs) != call.outputs:
                    return False
        return True

    def level_of(self, call: Call) -> int:
        """Return the level of the last collective that had begun on its rank when a call ran; 0 for none.

        A call that must have ended before another one began does not have a higher level, and has a lower one
        if they are on different ranks.
        """
        own = self.traces[call.rank].collectives.get(call.key)
        if own is not None and (meeting := self._meeting(call.key, own)) in self._levels:
            return self._levels[meeting]
        rows, meetings = self._by_rank[call.rank]
        begun = bisect_right(rows, call.row)
        return self._levels.get(meetings[begun - 1], 0) if begun else 0

    def rows_after(self, call: Call) -> dict[int, int]:
        """Return by rank the row after which all calls ran later than a call, if collectives show one."""
        rows_of: dict[Meeting, list[tuple[int, int]]] = defaultdict(list)
        for rank, (rows, meetings) in self._by_rank.items():
            for row, meeting in zip(rows, meetings, strict=True):
                rows_of[meeting].append((rank, row))
        after, queue, passed = {call.rank: call.row}, [call.rank], set[Meeting]()
        for rank in queue:
            rows, meetings = self._by_rank[rank]
            for meeting in meetings[bisect_right(rows, after[rank]) :]:
                if meeting in passed:
                    continue
                passed.add(meeting)
                for other, row in rows_of[meeting]:
                    if other not in after or row < after[other]:
                        after[other] = row
                        queue.append(other)
        return after

    @cached_property
    def _by_rank(self) -> dict[int, tuple[list[int], list[Meeting]]]:
        """By rank, the rows and the meetings of its collectives, in order of execution."""
        by_rank = {}
        for rank, trace in self.traces.items():
            calls = trace.collectives.items() if trace.is_ordered else ()
            met = [(call.row, meeting) for key, call in calls if (meeting := self._meeting(key, call))]
            by_rank[rank] = [row for row, _ in met], [meeting for _, meeting in met]
        return by_rank

    def _meeting(self, key: CallKey, call: CollectiveCall) -> Meeting | None:
        is_known = call.outputs or self.are_names_unique
        return (key, call.outputs) if is_known and synchronises(key.op_type) else None

    @cached_property
    def _levels(self) -> dict[Meeting, int]:
        """The number of collectives that must have ended before a meeting, at least, itself included."""
        # Ranks that run the same collectives in the same order need to be looked at once only.
        orders = dict.fromkeys(tuple(meetings) for _, meetings in self._by_rank.values())
        levels: dict[Meeting, int] = {}
        for _ in range(_ROUNDS):
            changes = [_raise_levels(levels, order) for order in orders]
            if not any(changes):
                break
        return levels


def _raise_levels(levels: dict[Meeting, int], order: Sequence[Meeting]) -> bool:
    """Give each meeting of a rank a higher level than the one before it; return whether that changed any."""
    has_changed = False
    lowest = 0
    for meeting in order:
        lowest = max(levels.get(meeting, 0), lowest + 1)
        if levels.get(meeting) != lowest:
            levels[meeting], has_changed = lowest, True
    return has_changed
