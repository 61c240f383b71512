"""From a directory that a user names to the dump in it. A new layout is registered here."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from ingest.layouts.base import Dump, Layout, Pattern
from ingest.layouts.cann import Cann, ReferenceDump, TorchAir
from ingest.layouts.checkpoint import (
    CheckpointFiles,
    DeepSpeed,
    DistributedCheckpoint,
    HuggingFaceTrainer,
    Megatron,
    Olmo,
    TrainerShards,
    Verl,
)
from ingest.layouts.declared import declare
from ingest.layouts.mindspore import MindSpore, MindSporeAsync, MindSporeRaw
from ingest.layouts.msprobe import MsProbe, MsProbeNative, MsProbeSaved
from ingest.layouts.numerics import (
    DebugMode,
    TitanNumerics,
    TransformerEngineLogs,
    TransformerEngineStatistics,
)
from ingest.layouts.places import MAX_SEEN
from ingest.layouts.proposal import proposed_hint
from ingest.layouts.pytorch import (
    AotInductor,
    ForwardHooks,
    OnnxRuntime,
    SglangDumper,
    TensorRtLlm,
    TransformerEngine,
    Vllm,
)
from ingest.layouts.recorder import RecorderTree
from ingest.layouts.tree import DumpTree
from ingest.layouts.walk import begins_like, is_directory
from workers.errors import AccessDenied, DumpError, UsageError
from workers.host.paths import absolute

_OF_DUMPS: tuple[Layout, ...] = (
    MindSpore(),
    MsProbeNative(),
    Cann(),
    TorchAir(),
    MsProbe(),
    MsProbeSaved(),
    MindSporeAsync(),
    MindSporeRaw(),
    SglangDumper(),
    ForwardHooks(),
    TransformerEngine(),
    TensorRtLlm(),
    AotInductor(),
    Vllm(),
    TransformerEngineStatistics(),
    TransformerEngineLogs(),
    TitanNumerics(),
    DebugMode(),
    DistributedCheckpoint(),
    OnnxRuntime(),
    RecorderTree(),
    ReferenceDump(),
)
#: Many jobs have these beside their dump: they count unless one lies there.
_OF_TRAINERS: tuple[Layout, ...] = (
    HuggingFaceTrainer(),
    DeepSpeed(),
    Megatron(),
    Verl(),
    Olmo(),
    CheckpointFiles(),
    TrainerShards(),
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
        self._patterns: list[Pattern] = []
        #: Of patterns whose directories have names that other programs use, too.
        self._evidence: dict[Pattern, re.Pattern[str]] = {}
        #: Of patterns of files whose names other programs use, too.
        self._contents: dict[Pattern, re.Pattern[bytes]] = {}
        # The name of a file may fit several patterns: it is opened once.
        self._begins_like = cache(begins_like)
        self._files: dict[Path, list[str]] = {}
        self._names: dict[Path, list[str]] = {}
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
        self._look_for([layout for layout in layouts if layout.proves_dump])
        dumps = self.below(directory, MAX_DEPTH)
        return dumps, self.above(directory) if dumps in ([], [directory]) else None

    def _look_for(self, layouts: Sequence[Layout]) -> None:
        self._patterns = [
            pattern for layout in layouts for pattern in (*layout.patterns, *layout.file_patterns)
        ]
        self._evidence = {
            pattern: layout.evidence
            for layout in layouts
            for pattern in layout.patterns
            if layout.evidence is not None and layout.needs_evidence
        }
        self._contents = {
            pattern: layout.content
            for layout in layouts
            for pattern in layout.file_patterns
            if layout.content is not None
        }

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
        if any(self._is_proven(pattern, 0, directory) for pattern in self._patterns):
            return [directory]
        if depth == 0:
            return []
        return [dump for name in names for dump in self.below(directory / name, depth - 1)]

    def above(self, directory: Path) -> Path | None:
        """Return the highest directory above that is a dump of which `directory` is a part.

        If `directory` is a dump by itself, too, the one above must tell more about the same tree: the rank of
        a process, say, of which the graph engine knows only the device.
        """
        proven = {pattern.text for pattern in self._patterns if self._is_proven(pattern, 0, directory)}
        highest: Path | None = None
        for root in directory.parents[:_MAX_ABOVE]:
            names = directory.relative_to(root).parts
            # A name such as `3` fits a step by chance.
            if names[0].isdecimal() and len(names[0]) != _TIME_DIGITS and (proven or highest):
                continue
            if any(self._extends(pattern, names, directory, proven) for pattern in self._patterns):
                highest = root
        return highest

    def _extends(self, pattern: Pattern, names: Sequence[str], directory: Path, proven: set[str]) -> bool:
        """Return whether a directory is part of a dump by a pattern, which extends a proven one if any is."""
        is_same_tree = not proven or _without_levels(pattern, len(names)) in proven
        return is_same_tree and self._fits(pattern, names, directory)

    def _fits(self, pattern: Pattern, names: Sequence[str], directory: Path) -> bool:
        """Return whether a directory is part of a dump by a pattern.

        Args:
            pattern: the pattern.
            names: the names of the directories from the root of the dump down to `directory`.
            directory: the directory.
        """
        level = len(names)
        if level > pattern.directories or any(
            pattern.match(above, name) is None for above, name in enumerate(names)
        ):
            return False
        return level > pattern.proof or self._is_proven(pattern, level, directory)

    def _is_proven(self, pattern: Pattern, level: int, directory: Path) -> bool:
        """Return whether what is below a directory, at a level of a pattern, shows that it is in a dump."""
        if level == pattern.proof:
            evidence = self._evidence.get(pattern)
            return evidence is None or any(map(evidence.fullmatch, _entries_of(directory)))
        if level == pattern.directories:
            content = self._contents.get(pattern)
            return any(
                pattern.match(level, name) is not None
                and (content is None or self._begins_like(f"{directory}/{name}", content))
                for name in self._files_in(directory)
            )
        try:
            names = self._subdirectories(directory)
        except OSError:
            return False
        return any(
            pattern.match(level, name) is not None and self._is_proven(pattern, level + 1, directory / name)
            for name in names
        )

    def _files_in(self, directory: Path) -> list[str]:
        """Return the names of the first files in a directory; none if it cannot be listed."""
        if directory not in self._files:
            try:
                with os.scandir(directory) as entries:
                    seen = itertools.islice(entries, MAX_SEEN)
                    self._files[directory] = [entry.name for entry in seen if not entry.is_dir()]
            except OSError:
                self._files[directory] = []
        return self._files[directory]

    def _subdirectories(self, directory: Path) -> list[str]:
        """Return the names of the directories in a directory, sorted.

        Raises:
            OSError: it cannot be listed.
        """
        if directory not in self._names:
            with os.scandir(directory) as entries:
                self._names[directory] = sorted(entry.name for entry in entries if is_directory(entry))
        return self._names[directory]


def _entries_of(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)  # noqa: PTH208  (names are all that is needed)
    except OSError:
        return []


def _without_levels(pattern: Pattern, count: int) -> str:
    """Return the text of a pattern without its first levels."""
    return "/".join(pattern.text.split("/")[count:])
