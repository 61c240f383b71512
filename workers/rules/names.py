"""Choosing among names by patterns and ranks by ranges, and guessing which names somebody may have meant.

A user chooses names by globs. A rule chooses tensors by globs, or by `re:` and a regular expression.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from workers.errors import UsageError
from workers.model import grouped

#: What a pattern of a rule begins with if a regular expression follows.
REGEX = "re:"
#: Names that a message suggests, at most.
_SUGGESTED = 5
#: Names that are compared by their letters, at most: to compare a hundred thousand would take minutes.
_COMPARED = 5000
_RANGE = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?")
#: By what is named: the command that lists the names.
_LISTED_BY: Mapping[str, str] = {"tensor": "dump-ingest find STORE", "rule": "dump-ingest rules list"}


class _CompiledPattern(NamedTuple):
    part: str
    """A text that all names have which the pattern matches: to look for it takes a tenth of the time."""
    match: Callable[[str], re.Match[str] | None]

    @classmethod
    def of(cls, pattern: str) -> _CompiledPattern:
        if pattern.startswith(REGEX):
            return cls("", re.compile(pattern.removeprefix(REGEX)).search)
        parts = [""] if "[" in pattern else re.split("[*?]", pattern)
        return cls(max(parts, key=len), re.compile(fnmatch.translate(pattern)).match)


@lru_cache(maxsize=512)
def compiled(patterns: tuple[str, ...]) -> tuple[_CompiledPattern, ...]:
    """Return the patterns of a rule, compiled.

    Raises:
        re.error: a regular expression is not valid.
    """
    return tuple(map(_CompiledPattern.of, patterns))


def is_chosen(include: tuple[str, ...], exclude: tuple[str, ...], text: str) -> bool:
    """Return whether any pattern of `include` matches, or it is empty, and no pattern of `exclude` does."""
    return (not include or _matches(include, text)) and not (exclude and _matches(exclude, text))


def _matches(patterns: tuple[str, ...], text: str) -> bool:
    for part, match in compiled(patterns):  # noqa: SIM110  (`any` takes twice as long)
        if part in text and match(text):
            return True
    return False


@lru_cache(maxsize=512)
def fits(pattern: str) -> Callable[[str], bool]:
    """Return a function that tells whether a name matches a glob or equals it, as names may hold `[*?`."""
    match = re.compile(fnmatch.translate(pattern)).match
    return lambda name: name == pattern or match(name) is not None


def matching(pattern: str, names: Sequence[str], what: str = "tensor") -> list[int]:
    """Return the places of the names that a glob matches.

    Args:
        pattern: a glob, or a whole name.
        names: to choose from.
        what: what the names are of, `tensor` or `rule`.

    Raises:
        UsageError: the glob matches none of the names; the hint lists those that are near.
    """
    is_match = fits(pattern)
    places = [place for place, name in enumerate(names) if is_match(name)]
    if not places:
        nearest = near(pattern, names)
        hint = f"Near: {', '.join(nearest)}" if nearest else f"`{_LISTED_BY[what]}` lists the names."
        raise UsageError(f"no {what} is named like {pattern!r}", hint=hint_of_case(pattern, names) or hint)
    return places


def hint_of_case(pattern: str, names: Iterable[str]) -> str:
    """Return a hint that names the names that a glob matches in another case; "" if there are none."""
    is_match = fits(pattern.lower())
    others = [name for name in dict.fromkeys(names) if is_match(name.lower())]
    if not others:
        return ""
    more = f", and {len(others) - _SUGGESTED} more" if len(others) > _SUGGESTED else ""
    return f"Names are case-sensitive. In another case: {', '.join(others[:_SUGGESTED])}{more}"


def near(wanted: str, names: Sequence[str]) -> list[str]:
    """Return the names that are most like `wanted`, which may be a glob; at most five."""
    plain = re.sub(r"[*?\[\]]+", "", wanted).strip(".").lower()
    distinct = list(dict.fromkeys(names))
    if not plain:
        return distinct[:_SUGGESTED]
    holding = [name for name in distinct if plain in name.lower()]
    if holding:
        # `Log` is rather the operator than a part of `MatMul.net-LogLoss`.
        return sorted(holding, key=lambda name: not name.lower().startswith(plain))[:_SUGGESTED]
    # People remember a word of a name.
    by_word = grouped(
        (word, name)
        for name in distinct[:_COMPARED]
        for word in {name.lower(), *re.split(r"[./_#-]+", name.lower())}
    )
    words = difflib.get_close_matches(plain, by_word, n=_SUGGESTED, cutoff=0.6)
    return list(dict.fromkeys(name for word in words for name in by_word[word][:_SUGGESTED]))[:_SUGGESTED]


def parse_range(text: str) -> tuple[int, int] | None:
    """Return the first and the last number of `3` or `0-7`; None if the text is not such a range."""
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        return None
    first, last = int(match[1]), int(match[2] or match[1])
    return (first, last) if first <= last else None
