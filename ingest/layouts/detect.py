"""From a directory that a user names to the dump in it. A new layout is registered here.

For an unknown tree of tensor files, the pattern that it seems to follow is proposed, and never assumed. Each
path is turned into a pattern by itself. The pattern that covers most files is proposed, provided that it
gives no two files of one rank and step the same name.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain, count, islice
from pathlib import Path
from typing import NamedTuple

from ingest.layouts.base import Dump, Layout, PathRank, Pattern, Place, step_of
from ingest.layouts.cann import CANN, REFERENCE_DUMP, TORCHAIR
from ingest.layouts.checkpoint import (
    CHECKPOINT_FILES,
    DEEPSPEED,
    DISTRIBUTED_CHECKPOINT,
    HUGGING_FACE,
    MEGATRON,
    OLMO,
    TRAINER_SHARDS,
    VERL,
)
from ingest.layouts.declared import CONTAINERS, declare
from ingest.layouts.mindspore import MINDSPORE, MINDSPORE_ASYNC, MINDSPORE_RAW
from ingest.layouts.msprobe import MSPROBE, MSPROBE_NATIVE, MSPROBE_SAVED
from ingest.layouts.numerics import (
    DEBUG_MODE,
    TITAN_NUMERICS,
    TRANSFORMER_ENGINE_LOGS,
    TRANSFORMER_ENGINE_STATISTICS,
)
from ingest.layouts.places import MAX_SEEN
from ingest.layouts.pytorch import (
    AOT_INDUCTOR,
    FORWARD_HOOKS,
    ONNX_RUNTIME,
    SGLANG_DUMPER,
    TENSORRT_LLM,
    TRANSFORMER_ENGINE,
    VLLM,
)
from ingest.layouts.recorder import RECORDER
from ingest.layouts.tree import DumpTree
from ingest.layouts.walk import begins_like, is_directory
from workers.errors import AccessDenied, DumpError, UsageError
from workers.host.paths import absolute
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
    files: int


class _Told(NamedTuple):
    begin: int
    """Where the word for it begins."""
    number: int
    end: int
    field: str


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
    top = [] if found is None else found.pattern.split("/")[:step_above]
    if found is None or (step_above is not None and "{step}" not in "/".join(top)):
        return ""
    return (
        f"{found.fits} of {found.files} files would fit --layout {shlex.quote(found.pattern)}. "
        "If that is how the tree is meant, pass it."
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
        above = "/".join(path.split("/")[:-1][: len(pattern.levels)])
        fields = pattern.match_path(path if pattern.of_files else above)
        if fields is not None:
            named = layout.describe(Place(layout, "", fields), [SourceFile(path, 0, 0)], lambda _: None).named
            return PathRank.of(fields), step_of(fields), named[path].name
    return None


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
    processes = list(_PROCESS.finditer(stem))
    sure = [match for match in processes if match["word"].lower() in _OF_ALL]
    # Of several numbers, such as those of a node and of its device, each is only a part of the rank.
    return next(iter(sure or processes), None) if sure or len(processes) == 1 else None


def _told(stem: str) -> list[_Told]:
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


_OF_DUMPS: tuple[Layout, ...] = (
    MINDSPORE,
    MSPROBE_NATIVE,
    CANN,
    TORCHAIR,
    MSPROBE,
    MSPROBE_SAVED,
    MINDSPORE_ASYNC,
    MINDSPORE_RAW,
    SGLANG_DUMPER,
    FORWARD_HOOKS,
    TRANSFORMER_ENGINE,
    TENSORRT_LLM,
    AOT_INDUCTOR,
    VLLM,
    TRANSFORMER_ENGINE_STATISTICS,
    TRANSFORMER_ENGINE_LOGS,
    TITAN_NUMERICS,
    DEBUG_MODE,
    DISTRIBUTED_CHECKPOINT,
    ONNX_RUNTIME,
    RECORDER,
    REFERENCE_DUMP,
)
#: Many jobs have these beside their dump: they count unless one lies there.
_OF_TRAINERS: tuple[Layout, ...] = (
    HUGGING_FACE,
    DEEPSPEED,
    MEGATRON,
    VERL,
    OLMO,
    CHECKPOINT_FILES,
    TRAINER_SHARDS,
)
#: All layouts. If a directory fits several, the first one counts.
LAYOUTS = (*_OF_DUMPS, *_OF_TRAINERS)
#: How many levels below the named directory a dump may begin.
MAX_DEPTH = 3
#: How many levels above it a dump may begin, if the user names one rank, or one step, of a dump.
_MAX_ABOVE = 6
_TIME_DIGITS = 14
_NAME_HINT = "Name the directory that holds the dump, such as that with rank_0, rank_1, ..."


class StoreNamedAsDump(UsageError):
    """A store was named where a dump is needed: waiting does not help."""


def find_dump(
    directory: Path,
    *,
    rank_map: Mapping[int, int] | None = None,
    layout: str = "",
    with_checkpoints: bool = True,
) -> Dump:
    """Return the dump at, or a few levels below, a directory.

    The directory may also be one within a dump, such as that of one rank: then only that part is read.

    Args:
        directory: the directory that the user names.
        rank_map: ranks by device id, if the user gives them.
        layout: a pattern, or several, for a tree that no layout covers; see `ingest.layouts.declared`.
        with_checkpoints: whether to take the checkpoints of a trainer if there is no dump.

    Raises:
        UsageError: the directory does not exist, has no known layout, or contains more than one dump; or it
            has only checkpoints, and they are not wanted.
        StoreNamedAsDump: it is a store.
        AccessDenied: it may not be read.
        DumpError: it cannot be listed.
    """
    directory = absolute(directory)
    _check_directory(directory)
    # What the user declares comes before what names resemble.
    declared = declare(layout) if layout else ()
    dumps_only = [layout for layout in (*declared, *LAYOUTS) if not layout.is_checkpoint]
    search = _DumpSearch()
    is_dump = any(search.roots(directory, dumps_only))
    layouts = (*declared, *(_OF_DUMPS if is_dump else LAYOUTS))
    dumps, root = search.roots(directory, layouts)
    if search.denied and not (dumps and (is_dump or with_checkpoints)):
        raise search.denied[0]
    if not is_dump and not with_checkpoints and (root or dumps):
        raise UsageError(
            f"{directory}: only checkpoints of a trainer, and no dump",
            hint="`dump-ingest ingest` takes checkpoints; `watch` waits for the dump of a job.",
        )
    if root:
        return DumpTree(root, layouts, below=str(directory.relative_to(root)), rank_map=rank_map)
    if not dumps:
        raise UsageError(
            f"{directory}: no dump of a known layout",
            hint=proposed_hint(directory)
            or "A MindSpore dump has directories rank_{r}/{net}/{graph}/{iteration}; docs/formats.md has "
            "every layout. If the job has not begun to dump yet, `dump-ingest watch` waits for it.",
        )
    return DumpTree(_only(dumps, directory), layouts, rank_map=rank_map)


def _only(dumps: Sequence[Path], directory: Path) -> Path:
    """Return the only one of the dumps below a directory. Stores, which resemble dumps, do not count.

    Raises:
        UsageError: there are more, or there is only a store.
    """
    dumps = [path for path in dumps if not (path / "zarr.json").exists()] or dumps[:1]
    if len(dumps) > 1:
        names = ", ".join(str(path) for path in dumps[:4])
        # A tree of the user's own may have the directories of ranks below those of steps.
        proposed = proposed_hint(directory, step_above=len(dumps[0].relative_to(directory).parts))
        otherwise = f"{proposed} If they are dumps of several jobs: their" if proposed else "Their"
        raise UsageError(
            f"{directory} contains {len(dumps)} dumps: {names}{', ...' if len(dumps) > 4 else ''}",
            hint=f"{otherwise} ranks and steps would collide: ingest each into a store of its own.",
        )
    if (dumps[0] / "zarr.json").exists():
        raise StoreNamedAsDump(
            f"{dumps[0]} is a store, not a dump", hint="Name the dump first, then --store."
        )
    return dumps[0]


def _check_directory(directory: Path) -> None:
    try:
        is_directory, exists = directory.is_dir(), directory.exists()
    except PermissionError as exc:  # above it
        raise AccessDenied(f"{directory}: permission denied") from exc
    if not is_directory:
        what = "is not a directory" if exists else "does not exist"
        raise UsageError(f"{directory} {what}", hint=_NAME_HINT)


class _DumpSearch:
    """Looks for the roots of dumps. Lists each directory once, for all patterns."""

    def __init__(self) -> None:
        self._patterns: list[tuple[Layout, Pattern]] = []
        # The name of a file may fit several patterns: it is opened once.
        self._begins_like = cache(begins_like)
        self._files_in, self._subdirectories = cache(_files_in), cache(_subdirectories)
        self.denied: list[AccessDenied] = []
        """Directories that may not be read; they are passed over."""

    def roots(self, directory: Path, layouts: Sequence[Layout]) -> tuple[list[Path], Path | None]:
        """Return the dumps at or below a directory, and the one above of which it is a part, if any.

        Args:
            directory: the directory.
            layouts: the layouts of these dumps.

        Raises:
            DumpError: one cannot be listed.
        """
        self._patterns = [
            (layout, pattern)
            for layout in layouts
            if layout.proves_dump
            for pattern in (*layout.patterns, *layout.file_patterns)
        ]
        dumps = self.below(directory, MAX_DEPTH)
        return dumps, self.above(directory) if dumps in ([], [directory]) else None

    def below(self, directory: Path, depth: int) -> list[Path]:
        """Return the dumps at a directory, or at most `depth` levels below it.

        Raises:
            DumpError: a directory cannot be listed.
        """
        try:
            names = self._subdirectories(directory)
        except PermissionError as exc:
            error = AccessDenied(f"{directory}: permission denied")
            error.__cause__ = exc
            self.denied.append(error)
            return []
        except OSError as exc:
            raise DumpError(f"{directory} cannot be listed: {exc.strerror}") from exc
        if any(self._is_proven(*pattern, 0, directory) for pattern in self._patterns):
            return [directory]
        if depth == 0:
            return []
        return [dump for name in names for dump in self.below(directory / name, depth - 1)]

    def above(self, directory: Path) -> Path | None:
        """Return the highest directory above that is a dump of which `directory` is a part.

        If `directory` is a dump by itself, too, the one above must tell more about the same tree: the rank of
        a process, say, of which the graph engine knows only the device.
        """
        proven = {
            pattern.text
            for layout, pattern in self._patterns
            if self._is_proven(layout, pattern, 0, directory)
        }
        highest: Path | None = None
        for root in directory.parents[:_MAX_ABOVE]:
            names = directory.relative_to(root).parts
            # A name such as `3` fits a step by chance.
            if names[0].isdecimal() and len(names[0]) != _TIME_DIGITS and (proven or highest):
                continue
            if any(self._extends(*pattern, names, directory, proven) for pattern in self._patterns):
                highest = root
        return highest

    def _extends(
        self, layout: Layout, pattern: Pattern, names: Sequence[str], directory: Path, proven: set[str]
    ) -> bool:
        """Return whether a directory is part of a dump by a pattern, which extends a proven one if any is.

        Args:
            layout: that of the pattern.
            pattern: the pattern.
            names: the names of the directories from the root of the dump down to `directory`.
            directory: the directory.
            proven: the patterns by which the directory itself is a dump.
        """
        level = len(names)
        is_same_tree = not proven or "/".join(pattern.text.split("/")[level:]) in proven
        if not is_same_tree or level > pattern.directories:
            return False
        if any(pattern.match(above, name) is None for above, name in enumerate(names)):
            return False
        return level > pattern.proof or self._is_proven(layout, pattern, level, directory)

    def _is_proven(self, layout: Layout, pattern: Pattern, level: int, directory: Path) -> bool:
        """Return whether what is below a directory, at a level of a pattern, shows that it is in a dump."""
        if level == pattern.proof:
            return pattern.of_files or _has_evidence(layout, directory)
        if level == pattern.directories:
            return any(
                pattern.match(level, name) is not None
                and (layout.content is None or self._begins_like(f"{directory}/{name}", layout.content))
                for name in self._files_in(directory)
            )
        with suppress(OSError):
            return any(
                pattern.match(level, name) is not None
                and self._is_proven(layout, pattern, level + 1, directory / name)
                for name in self._subdirectories(directory)
            )
        return False


def _has_evidence(layout: Layout, directory: Path) -> bool:
    if layout.evidence is None or not layout.needs_evidence:
        return True
    with suppress(OSError):
        return any(map(layout.evidence.fullmatch, os.listdir(directory)))  # noqa: PTH208  (names suffice)
    return False


def _files_in(directory: Path) -> list[str]:
    """Return the names of the first files in a directory; none if it cannot be listed."""
    with suppress(OSError), os.scandir(directory) as entries:
        return [entry.name for entry in itertools.islice(entries, MAX_SEEN) if not entry.is_dir()]
    return []


def _subdirectories(directory: Path) -> list[str]:
    """Return the names of the directories in a directory, sorted.

    Raises:
        OSError: it cannot be listed.
    """
    with os.scandir(directory) as entries:
        return sorted(entry.name for entry in entries if is_directory(entry))
