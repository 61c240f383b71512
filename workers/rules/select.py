"""Which tensors a rule is about: patterns over their names, types and places."""

from __future__ import annotations

import fnmatch
import re
from functools import lru_cache

REGEX = "re:"


@lru_cache(maxsize=512)
def compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Return one expression that is found in what any of the patterns matches.

    Raises:
        re.error: one of them is no regular expression.
    """
    parts = [
        # A glob matches the whole, an expression is searched; `match` begins at the start, hence the `.*`.
        f"(?s:.*?)(?:{one.removeprefix(REGEX)})" if one.startswith(REGEX) else fnmatch.translate(one)
        for one in patterns
    ]
    return re.compile("|".join(f"(?:{part})" for part in parts))


def is_chosen(one_of: tuple[str, ...], none_of: tuple[str, ...], text: str) -> bool:
    """Whether any pattern of `one_of` matches, if there are any, and none of `none_of`."""
    if one_of and compiled(one_of).match(text) is None:
        return False
    return not none_of or compiled(none_of).match(text) is None
