"""What pattern a tree of tensor files seems to follow, for `--layout`: proposed, and never assumed."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from ingest.layouts.declared import CONTAINERS, declare
from workers.errors import UsageError

_MAX_FILES = 2000
#: Entries of directories that are looked at, whatever they are: a tree may have millions of other files.
_MAX_ENTRIES = 20_000
_MAX_DEPTH = 6
_RANK = re.compile(r"(?i)(rank|gpu|device|proc|worker)([_\-=]?)(\d{1,9})")
_STEP = re.compile(r"(?i)(global_?step|step|iteration|iter|batch|it)([_\-=]?)(\d{1,18})")
_IO = re.compile(r"(?<![A-Za-z])(inputs?|outputs?|grads?|in|out)(?![A-Za-z])")


def propose(directory: Path) -> tuple[str, int, int] | None:
    """Return a pattern for the files below a directory, how many fit it, and how many were looked at.

    None if they show no rank and no step, or most of them fit no common pattern. Looks at no more than 20,000
    entries.
    """
    paths = list(islice(_files(directory, "", 0, iter(range(_MAX_ENTRIES))), _MAX_FILES))
    patterns = Counter(pattern for path in paths if (pattern := _pattern_of(path)) is not None)
    if not patterns:
        return None
    ((pattern, _),) = patterns.most_common(1)
    try:
        (layout,) = declare(pattern)
    except UsageError:
        return None
    whole = [*layout.file_patterns, *layout.patterns]
    fits = sum(
        any(p.match_path(path if p.of_files else path.rpartition("/")[0]) is not None for p in whole)
        for path in paths
    )
    return (pattern, fits, len(paths)) if 2 * fits >= len(paths) else None


def proposed_hint(directory: Path) -> str:
    """Return a hint that proposes a pattern; "" for none."""
    found = propose(directory)
    if found is None:
        return ""
    pattern, fits, total = found
    return (
        f"{fits} of {total} files would fit --layout '{pattern}'. If that is how the tree is meant, pass it."
    )


def _files(root: Path, below: str, depth: int, budget: Iterator[int]) -> Iterator[str]:
    """Yield the tensor files below a directory, in order of path.

    Args:
        root: the directory.
        below: where in it to begin.
        depth: how many levels below `root` that is.
        budget: yields once for each entry that may still be looked at.
    """
    try:
        with os.scandir(root / below) as entries:
            # The budget comes first: an entry that is taken must not be lost to it.
            seen = sorted((entry for _, entry in zip(budget, entries, strict=False)), key=lambda e: e.name)
    except OSError:
        return
    for entry in seen:
        path = f"{below}/{entry.name}" if below else entry.name
        if entry.is_dir(follow_symlinks=False):
            if depth < _MAX_DEPTH:
                yield from _files(root, path, depth + 1, budget)
        elif entry.name.rpartition(".")[2] in CONTAINERS:
            yield path


def _pattern_of(path: str) -> str | None:
    """Return the pattern of one path; None if it tells neither rank nor step."""
    *directories, file_name = path.split("/")
    told: set[str] = set()
    levels = [_level(name, told) or "{any}" for name in directories]
    # The first unknown directory may be that of a net, or of a variant: its tensors keep apart by it.
    unknown = [n for n, level in enumerate(levels) if level == "{any}"]
    for n in unknown:
        levels[n] = "{net}" if n == unknown[0] else f"{{any{n}}}"
    stem, _, suffix = file_name.rpartition(".")
    file_level = _level(stem, told)
    if not told:
        return None
    return "/".join([*levels, f"{_file(file_level or stem)}.{suffix}"])


def _level(name: str, told: set[str]) -> str:
    """Return a name with rank and step replaced by fields; "" if it has neither."""
    text = name
    for field, expression in (("rank", _RANK), ("step", _STEP)):
        match = expression.search(text)
        if match and field not in told:
            told.add(field)
            width = match[3]
            own = f":[0-9]{{{len(width)}}}" if field == "rank" and width != str(int(width)) else ""
            text = f"{text[: match.start(3)]}{{{field}{own}}}{text[match.end(3) :]}"
    return text if text != name else ""


def _file(stem: str) -> str:
    """Return a stem with the name of the module, the kind of tensor and the slot replaced by fields."""
    fields = list(re.finditer(r"\{[^{}]*(?:\{[^{}]*\})?[^{}]*\}", stem))
    begin = fields[-1].end() if fields else 0
    head, rest = stem[:begin], stem[begin:]
    separator = re.match(r"[_\-.=]*", rest)
    lead = separator[0] if separator else ""
    rest = rest[len(lead) :]
    if not rest:
        return head + lead
    slot = re.search(r"([._\-])(\d{1,9})\Z", rest)
    body = rest[: slot.start()] if slot else rest
    tail = f"{slot[1]}{{slot}}" if slot else ""
    io = _IO.search(body)
    if io is None:
        return f"{head}{lead}{{module}}{tail}"
    if io.start() == 0:
        return f"{head}{lead}{{io}}{body[io.end() : io.end() + 1]}{{module}}{tail}"
    return f"{head}{lead}{{module}}{body[io.start() - 1]}{{io}}{tail}"
