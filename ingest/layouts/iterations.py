"""The steps that a dump configuration of MindSpore or CANN asks for."""

from __future__ import annotations

import re

#: One step, or the first and the last of several. Steps have at most 18 digits, here as in paths.
_GROUP = re.compile(r"\s*(?P<first>[0-9]{1,18})(?:-(?P<last>[0-9]{1,18}))?\s*")
#: Those that are listed twice count twice: a configuration of some kilobytes could list a million of them
#: again and again.
_MAX_STEPS = 1_000_000


def parse_iterations(text: str) -> frozenset[int] | None:
    """Return the steps that the `iteration` of a dump configuration lists, as in `0|5-8|100-120`.

    None for `all`, for nonsense, and for more than a million steps.
    """
    steps: set[int] = set()
    left = _MAX_STEPS
    for group in str(text).split("|"):
        match = _GROUP.fullmatch(group)
        if match is None:
            return None
        low, high = int(match["first"]), int(match["last"] or match["first"])
        left -= high - low + 1
        if high < low or left < 0:
            return None
        steps.update(range(low, high + 1))
    return frozenset(steps)
