"""Names that somebody may have meant."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Callable, Sequence

from workers.errors import UsageError

_SHOWN = 5
#: Names that are compared; to compare a hundred thousand would take minutes.
_COMPARED = 5000


def near(wanted: str, names: Sequence[str]) -> list[str]:
    """Return the names that are most like `wanted`, which may be a glob; at most five."""
    plain = re.sub(r"[*?\[\]]+", "", wanted).strip(".").lower()
    distinct = list(dict.fromkeys(names))
    if not plain:
        return distinct[:_SHOWN]
    holding = [name for name in distinct if plain in name.lower()]
    if holding:
        return holding[:_SHOWN]
    # A word of a name is what people remember of it.
    by_word: dict[str, list[str]] = {}
    for name in distinct[:_COMPARED]:
        for word in {name.lower(), *re.split(r"[./_#-]+", name.lower())}:
            by_word.setdefault(word, []).append(name)
    words = difflib.get_close_matches(plain, by_word, n=_SHOWN, cutoff=0.6)
    return list(dict.fromkeys(name for word in words for name in by_word[word][:_SHOWN]))[:_SHOWN]


def fits(pattern: str) -> Callable[[str], bool]:
    """Return whether a glob matches a name, or is that name: names may hold `[`, `*` and `?`."""
    match = re.compile(fnmatch.translate(pattern)).match
    return lambda name: name == pattern or match(name) is not None


def matching(pattern: str, names: Sequence[str]) -> list[int]:
    """Return the places of the names that a glob matches.

    Raises:
        UsageError: none; it names those that are near.
    """
    fitting = fits(pattern)
    found = [place for place, name in enumerate(names) if fitting(name)]
    if not found:
        nearest = near(pattern, names)
        raise UsageError(
            f"no tensor is named like {pattern!r}",
            hint=f"Near: {', '.join(nearest)}" if nearest else "`dump-ingest find STORE` lists the names.",
        )
    return found
