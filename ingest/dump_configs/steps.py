"""Lists of steps as the configurations of MindSpore, CANN and TorchAir spell them: `0|5-8|100`."""

from __future__ import annotations

from collections.abc import Iterable


def format_steps(steps: Iterable[int]) -> str:
    """Return steps as a list of groups.

    >>> format_steps([7, 8, 9, 3])
    '3|7-9'
    """
    groups: list[tuple[int, int]] = []
    for step in sorted(set(steps)):
        if groups and groups[-1][1] == step - 1:
            groups[-1] = (groups[-1][0], step)
        else:
            groups.append((step, step))
    return "|".join(str(first) if first == last else f"{first}-{last}" for first, last in groups)
