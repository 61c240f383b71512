"""Logs that hold statistics or hashes of tensors, and no tensors.

    nvdlfw_inspect_statistics_logs/nvdlfw_inspect_globalrank-{rank}.log   TransformerEngine's statistics
    nvdlfw_inspect_logs/nvdlfw_inspect_globalrank-{rank}.log              its messages, kept as files
    numerics/rank_{rank}_activations.log                                  torchtitan's numerics debugging
    {name}.json                                                           torch's DebugMode

For the formats, see `logged_statistics` and `debug_mode`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ingest.layouts.base import Description, Layout, Place, Problem, ReadSmall, System
from ingest.layouts.debug_mode import HEADER as DEBUG_MODE_HEADER
from ingest.layouts.debug_mode import NotDebugMode
from ingest.layouts.debug_mode import read_log as read_debug_mode
from ingest.layouts.logged_statistics import TE_LINE, TITAN_HEADER, read_te_lines, read_titan_log
from ingest.layouts.pattern import parse
from workers.dump.model import ReportedStatistics
from workers.model import SourceFile

_UNREADABLE = "has statistics, but cannot be read, or more than 64 MiB of them belong to one step"


class TransformerEngineStatistics(Layout):
    """The statistics of TransformerEngine: one log for each rank, with the lines of all iterations."""

    name = "transformer_engine_statistics"
    patterns = ()
    file_patterns = (
        parse(
            r"nvdlfw_inspect_statistics_logs/nvdlfw_inspect_{started:(?:\d{8}_\d{6}_)?}globalrank-{rank}.log",
            of_files=True,
        ),
    )
    step_of_line = TE_LINE
    systems = (
        System(
            "TransformerEngine, statistics (nvdlfw-inspect)",
            "nvdlfw_inspect_statistics_logs/nvdlfw_inspect_globalrank-1.log",
            "lines of statistics",
        ),
    )

    def describe(self, place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:
        """Return the statistics of one iteration; see `Layout.describe`."""
        above = place.directory.rpartition("/")[0]
        rank, step = int(place.fields["rank"]), int(place.fields["step"])
        tensors = f"{above}/tensor_dumps/rank_{rank}/iter_{step:06d}".lstrip("/")
        return _described(files, read, lambda file, data: read_te_lines(file.path, data, tensors))


class TransformerEngineLogs(Layout):
    """What nvdlfw-inspect says of its own work: which layers it saw, which features it switched on."""

    name = "transformer_engine_logs"
    patterns = ()
    file_patterns = (
        parse(
            r"nvdlfw_inspect_logs/nvdlfw_inspect_{started:(?:\d{8}_\d{6}_)?}globalrank-{rank}.log",
            of_files=True,
        ),
    )
    systems = (
        System(
            "TransformerEngine, messages (nvdlfw-inspect)",
            "nvdlfw_inspect_logs/nvdlfw_inspect_globalrank-1.log",
            "kept as files",
        ),
    )

    def describe(self, place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:  # noqa: ARG002
        """Return nothing: it holds no tensors. Reads none."""
        return Description()


class TitanNumerics(Layout):
    """The logs of torchtitan's numerics debugging, which do not name their step: step 0."""

    name = "torchtitan_numerics"
    patterns = ()
    file_patterns = tuple(
        parse(f"{above}rank_{{rank}}_activations.log", of_files=True) for above in ("numerics/", "")
    )
    implied = {"step": "0"}  # noqa: RUF012  (a ClassVar in `Layout`)
    content = TITAN_HEADER
    systems = (
        System("torchtitan, numerics debugging", "numerics/rank_1_activations.log", "statistics and hashes"),
    )

    def describe(self, place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:  # noqa: ARG002
        """Return the statistics of the only step; see `Layout.describe`."""
        return _described(
            files, read, lambda file, data: read_titan_log(file.path, data.decode(errors="replace"))
        )


class DebugMode(Layout):
    """The logs of torch's DebugMode, under any name. Those that do not name their step belong to step 0."""

    name = "debug_mode"
    patterns = ()
    # Users choose these names: ranks may have zeros in front.
    file_patterns = tuple(
        parse(f"{above}{name}.json", of_files=True)
        for above in ("", "debug_mode/")
        for name in (
            r"{a:(?:.*[._-])?}rank{b:[._-]?}{rank:[0-9]{1,9}}{c:(?:[._-].*)?}step{d:[._-]?}{step}{e:(?:[._-].*)?}",
            r"{a:(?:.*[._-])?}step{b:[._-]?}{step}{c:(?:[._-].*)?}rank{d:[._-]?}{rank:[0-9]{1,9}}{e:(?:[._-].*)?}",
            r"{a:(?:.*[._-])?}rank{b:[._-]?}{rank:[0-9]{1,9}}{c:(?:[._-].*)?}",
            r"{a:(?:.*[._-])?}step{b:[._-]?}{step}{c:(?:[._-].*)?}",
            r"{log}",
        )
    )
    implied = {"step": "0"}  # noqa: RUF012  (a ClassVar in `Layout`)
    content = DEBUG_MODE_HEADER
    systems = (
        System("torch, DebugMode", "eager.json", "hashes, calls"),
        System("torch, DebugMode, with numbers in the name", "eager_rank1_step8.json", "the same"),
    )

    def describe(self, place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:  # noqa: ARG002
        """Return the hashes of one step; see `Layout.describe`."""
        return _described(
            files,
            read,
            lambda file, data: read_debug_mode(
                file.path, data, file.path.rpartition("/")[2].removesuffix(".json")
            ),
        )


def _described(
    files: Sequence[SourceFile],
    read: ReadSmall,
    rows_of: Callable[[SourceFile, bytes], Iterable[ReportedStatistics]],
) -> Description:
    """Describe the tensors that logs report."""
    reported: list[ReportedStatistics] = []
    problems: list[Problem] = []
    unfinished = ""
    for file in files:
        data = read(file.path)
        if data is None:
            problems.append(Problem(file.path, _UNREADABLE))
            continue
        try:
            reported += rows_of(file, data)
        except NotDebugMode as exc:
            hint = "Its writer was still at work, or died."
            problems.append(Problem(file.path, str(exc), hint))
            unfinished = unfinished or file.path
    return Description(reported=reported, problems=problems, unfinished=unfinished)
