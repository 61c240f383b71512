"""Groups of replicas, as users give them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain

from workers.errors import UsageError
from workers.rules.names import parse_range

_MAX_RANKS = 1_000_000
_HINT = "For example: 0-7, or 0,2,4."


def parse_groups(texts: Iterable[str]) -> list[list[int]]:
    """Return groups of ranks from texts such as `0-7` and `0,2,4-6`, each in order.

    Raises:
        UsageError: a text is not a group, or a rank is in two groups.
    """
    return checked_groups([_parse_group(text) for text in texts])


def checked_groups(groups: Iterable[Iterable[int]]) -> list[list[int]]:
    """Return the groups, each in order.

    Raises:
        UsageError: a group is none, or has fewer than two ranks, or a rank is in two of them.
    """
    ordered = [_checked(group) for group in groups]
    seen = Counter(chain.from_iterable(ordered))
    twice = [rank for rank, count in seen.items() if count > 1]
    if twice:
        raise UsageError(
            f"rank {twice[0]} is in {seen[twice[0]]} groups", hint="Put each rank into one group only."
        )
    return ordered


def _checked(group: Iterable[int]) -> list[int]:
    if isinstance(group, int | str):
        raise UsageError(f"{group!r} is not a group of ranks", hint="For example: [[0, 1], [2, 3]].")
    ranks = sorted(set(group))
    if len(ranks) < 2:
        raise UsageError(
            f"a group of {len(ranks)} rank has nothing to agree with: it takes two or more", hint=_HINT
        )
    return ranks


def _parse_group(text: str) -> set[int]:
    ranks: set[int] = set()
    for part in text.split(","):
        parsed = parse_range(part)
        if parsed is None or parsed[1] >= _MAX_RANKS:
            raise UsageError(f"--group {text!r} is not a group of ranks", hint=_HINT)
        ranks |= set(range(parsed[0], parsed[1] + 1))
    return ranks
