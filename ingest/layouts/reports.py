"""Statistics that a dump system computed, as the CSV files of a place have them."""

from __future__ import annotations

from dataclasses import dataclass

from ingest.layouts.base import Problem, ReadSmall
from ingest.layouts.bin_names import kind_and_name
from workers.dump.formats import statistic_csv
from workers.dump.model import ReportedStatistics, TensorName

#: The file of MindSpore and of msProbe native.
STATISTIC_CSV = "statistic.csv"
_CUT_HINT = "Its writer was still at work, or died."


@dataclass(frozen=True, slots=True)
class Reports:
    """The statistics in one file."""

    reported: tuple[ReportedStatistics, ...] = ()
    problems: tuple[Problem, ...] = ()
    unfinished: bool = False
    """Whether it ends within a row."""


def read_reports(path: str, read: ReadSmall, name: TensorName) -> Reports:
    """Return the statistics in one file.

    Args:
        path: the file, one of those that `workers.dump.formats.statistic_csv` describes.
        read: reads it.
        name: net and graph of its tensors. For CANN's files, which have one operator each, also its name.
    """
    data = read(path)
    if data is None:
        return Reports(problems=(Problem(path, "has statistics, but cannot be read"),))
    table = statistic_csv.parse(data)
    problems = [Problem(path, problem) for problem in table.problems]
    if table.unfinished:
        # Seen only if the step is ingested nevertheless: while the file may still grow, the step waits.
        problems.append(Problem(path, "ends within a line, which is left out", _CUT_HINT))
    return Reports(tuple(_reported(path, row, name) for row in table.rows), tuple(problems), table.unfinished)


def _reported(path: str, row: statistic_csv.StatisticRow, name: TensorName) -> ReportedStatistics:
    name = name._replace(io=row.io, slot=row.slot, format=row.format)
    if row.op_type or row.op_name:
        op_type, op_name = kind_and_name(row.op_type, row.op_name)
        name = name._replace(
            op_type=op_type,
            op_name=op_name,
            task=row.task,
            stream=row.stream,
            timestamp=row.timestamp,
        )
    return ReportedStatistics(
        path,
        name,
        row.dtype,
        row.shape,
        statistic_csv.statistics(row),
        checksum=statistic_csv.checksum(row),
        digits=statistic_csv.DIGITS,
    )
