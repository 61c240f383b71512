"""What pattern a tree of tensor files seems to follow, for `--layout`: proposed, and never assumed.

Each path is turned into a pattern by itself. The pattern that covers most files is proposed, provided that it
gives no two files of one rank and step the same name.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, count, islice
from pathlib import Path
from typing import NamedTuple

from ingest.layouts.base import Layout, Pattern, Place, step_of
from ingest.layouts.declared import CONTAINERS, declare
from ingest.layouts.places import PathRank
from ingest.layouts.walk import is_directory
from workers.errors import UsageError
from workers.model import SourceFile

_MAX_FILES = 2000
#: Entries of directories that are looked at, whatever they are: a tree may have millions of other files.
_MAX_ENTRIES = 20_000
_MAX_DEPTH = 6
#: How many patterns are tried, the most common ones first.
_MAX_PATTERNS = 8
#: What patterns are written with.
_SYNTAX = frozenset("{};")
_SEPARATORS = "._-="
#: A word and the number of a process. Only `rank` is sure to number all of them.
_PROCESS = re.compile(
    r"(?i)(?<![a-z])(?P<word>(?:global_?)?rank|local_?rank|gpu|device|proc|worker|node|host|[cdepst]p(?:_?rank)?)"
    r"[._\-=]?(?P<number>\d{1,9})(?!\d)"
)
_OF_ALL = frozenset(["rank", "global_rank", "globalrank"])
_STEP = re.compile(
    r"(?i)(?<![a-z])(?:global_?step|step|iteration|iter|it|batch|checkpoint|ckpt)"
    r"[._\-=]?(?P<number>\d{1,18})(?!\d)"
)
#: A directory whose name is a number. Numbers of more digits are times.
_NUMBERED = re.compile(r"(?<![^/])(?P<number>\d{1,9})(?=/)")
_KIND = "inputs?|outputs?|grads?|in|out"
_KIND_FIRST = re.compile(rf"(?:{_KIND})(?P<separator>[._\-]).+")
_KIND_LAST = re.compile(rf".+(?P<separator>[._\-])(?:{_KIND})")
#: The name of a tensor may begin with its place in the order of execution, and end with its slot. A number of
#: one or two digits in front is rather that of a layer.
_PARTS = re.compile(r"(?:\d{3,18}(?P<first>[_\-]))?(?P<body>.+?)(?:(?P<last>[._\-])\d{1,9})?")
#: The name of a file that says what it holds of a module, and not of which one.
_NO_MODULE = re.compile(rf"(?:(?:fwd|bwd|forward|backward)[._\-])?(?:{_KIND})(?:[._\-]\d{{1,9}})?")


class ProposedPattern(NamedTuple):
    """A pattern that a tree seems to follow."""

    pattern: str
    fits: int
    """How many files it covers."""
    files: int
    """How many files were looked at."""


class _Told(NamedTuple):
    """A number in a path that tells the rank or the step."""

    begin: int
    """Where the word for it begins."""
    number: int
    """Where the number begins."""
    end: int
    field: str
    """The field that takes the place of the number."""


def propose(directory: Path) -> ProposedPattern | None:
    """Return a pattern for the tensor files below a directory.

    None if their paths tell no rank and no step, or no pattern covers half of them. Looks at no more than
    20,000 entries.
    """
    paths = list(islice(_files(directory, "", 0, iter(range(_MAX_ENTRIES))), _MAX_FILES))
    patterns = Counter(pattern for path in paths if (pattern := _pattern_of(path)))
    proposals = [
        ProposedPattern(pattern, _fits(pattern, paths), len(paths))
        for pattern, _ in patterns.most_common(_MAX_PATTERNS)
    ]
    best = max(proposals, key=lambda proposal: proposal.fits, default=None)
    return best if best is not None and 0 < best.files <= 2 * best.fits else None


def proposed_hint(directory: Path, *, step_above: int | None = None) -> str:
    """Return a hint that proposes a pattern; "" for none.

    Args:
        directory: where the tree begins.
        step_above: the step must be in one of this many levels at the top; None if it may be anywhere.
    """
    found = propose(directory)
    if found is None or (step_above is not None and "{step}" not in _top(found.pattern, step_above)):
        return ""
    return (
        f"{found.fits} of {found.files} files would fit --layout {shlex.quote(found.pattern)}. "
        "If that is how the tree is meant, pass it."
    )


def _top(pattern: str, levels: int) -> str:
    return "/".join(pattern.split("/")[:levels])


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
        if is_directory(entry):
            if depth < _MAX_DEPTH:
                yield from _files(root, path, depth + 1, budget)
        elif entry.name.rpartition(".")[2] in CONTAINERS:
            yield path


def _fits(pattern: str, paths: Sequence[str]) -> int:
    """Return how many files a pattern covers; 0 if two of them would have one name in one rank and step."""
    try:
        (layout,) = declare(pattern)
    except UsageError:
        return 0
    names = [name for path in paths if (name := _name(layout, path)) is not None]
    return len(names) if len(set(names)) == len(names) else 0


def _name(layout: Layout, path: str) -> object:
    """Return rank, step and name that a layout gives to a file; None if it does not cover it."""
    for pattern in chain(layout.file_patterns, layout.patterns):
        fields = pattern.match_path(_place(pattern, path))
        if fields is not None:
            named = layout.describe(Place("", fields), [SourceFile(path, 0, 0)], lambda _: None).named
            return PathRank.of(fields), step_of(fields), named[path].name
    return None


def _place(pattern: Pattern, path: str) -> str:
    """Return what a pattern is matched with: a path, or the first directories of it."""
    return path if pattern.of_files else "/".join(path.split("/")[:-1][: len(pattern.levels)])


def _pattern_of(path: str) -> str:
    """Return the pattern of one path; "" if it tells neither rank nor step, or cannot be written as one."""
    stem, _, suffix = path.rpartition(".")
    told = _told(stem)
    if not told or not path.isprintable() or _SYNTAX & set(path):
        return ""
    begin = stem.rfind("/") + 1
    in_file = [number for number in told if number.begin >= begin]
    directories = _with_fields(stem, 0, begin, told).split("/")[:-1]
    if in_file:
        file_name = _around(stem, begin, in_file)
    elif directories and "{" not in directories[-1] and _NO_MODULE.fullmatch(stem[begin:]):
        directories[-1] = "{module}"
        file_name = _tensor(stem[begin:], "graph")
    else:
        file_name = _tensor(stem[begin:])
    return "/".join([*_variants(directories, file_name), f"{file_name}.{suffix}"])


def _rank_in(stem: str) -> re.Match[str] | None:
    """Return the number that tells the rank; None if none does, or only several together."""
    processes = list(_PROCESS.finditer(stem))
    sure = [match for match in processes if match["word"].lower() in _OF_ALL]
    # Of several numbers, such as those of a node and of its device, each is only a part of the rank.
    return next(iter(sure or processes), None) if sure or len(processes) == 1 else None


def _told(stem: str) -> list[_Told]:
    """Return what tells rank and step in a path without its suffix, in order of place."""
    rank = _rank_in(stem)
    step = _STEP.search(stem) or (None if rank is None else _number_beside(stem, rank))
    told = []
    if rank is not None:
        digits = rank["number"]
        own = f":[0-9]{{{len(digits)}}}" if digits != str(int(digits)) else ""
        told.append(_Told(rank.start(), rank.start("number"), rank.end(), f"{{rank{own}}}"))
    if step is not None:
        told.append(_Told(step.start(), step.start("number"), step.end(), "{step}"))
    return sorted(told)


def _number_beside(stem: str, rank: re.Match[str]) -> re.Match[str] | None:
    """Return the directory directly above or below that of the rank if its name is a number."""
    level = stem.count("/", 0, rank.start())
    numbered = _NUMBERED.finditer(stem)
    return next((match for match in numbered if abs(stem.count("/", 0, match.start()) - level) == 1), None)


def _with_fields(stem: str, begin: int, end: int, told: Sequence[_Told]) -> str:
    """Return a part of a path with fields in place of the numbers in it."""
    parts = []
    for number in told:
        if begin <= number.begin and number.end <= end:
            parts += [stem[begin : number.number], number.field]
            begin = number.end
    return "".join([*parts, stem[begin:end]])


def _around(stem: str, begin: int, told: Sequence[_Told]) -> str:
    """Return the pattern of a file whose name tells rank or step: the module is behind it, or in front.

    Args:
        stem: the path without its suffix.
        begin: where the name of the file begins.
        told: what is told in it.
    """
    front, rest = stem[begin : told[0].begin], stem[told[-1].end :]
    module, name = front.rstrip(_SEPARATORS), rest.lstrip(_SEPARATORS)
    before, after = front.removeprefix(module), rest.removesuffix(name)
    if module and (not name or _NO_MODULE.fullmatch(name)):
        front = f"{_tensor(module)}{before}"
        rest = f"{after}{_tensor(name, 'graph')}" if name else rest
    elif name:
        rest = f"{after}{_tensor(name)}"
    return f"{front}{_with_fields(stem, told[0].begin, told[-1].end, told)}{rest}"


def _tensor(name: str, field: str = "module") -> str:
    """Return the name of a tensor with fields for its parts.

    Args:
        name: the name.
        field: the field of what is neither the kind of tensor nor a number.
    """
    parts = _PARTS.fullmatch(name)
    if parts is None:
        return name
    body = parts["body"]
    sequence = "" if parts["first"] is None else f"{{sequence}}{parts['first']}"
    slot = "" if parts["last"] is None else f"{parts['last']}{{slot}}"
    return f"{sequence}{_kind(body, field)}{slot}"


def _kind(body: str, field: str) -> str:
    if re.fullmatch(_KIND, body):
        return "{module}" if field == "module" else "{io}"
    if first := _KIND_FIRST.fullmatch(body):
        # As `{io}` also fits `_`, it would take more than the kind.
        io = "{io:[a-z]+}" if first["separator"] == "_" else "{io}"
        return f"{io}{first['separator']}{{{field}}}"
    last = _KIND_LAST.fullmatch(body)
    return f"{{{field}}}{last['separator']}{{io}}" if last else f"{{{field}}}"


def _variants(directories: Sequence[str], file_name: str) -> Iterator[str]:
    """Yield directories with fields in place of those that tell nothing: they may keep tensors apart."""
    names = (name for name in ("{net}", "{graph}") if name not in file_name)
    unknown = chain(names, (f"{{any{number}}}" for number in count()))
    return (name if "{" in name else next(unknown) for name in directories)
