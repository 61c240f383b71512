"""Logs of many steps: where the lines of each step are.

A log grows while a job runs. It is one of the run files of its rank, as a whole. The lines of each step are a
place of that step, which does not change any more when the log goes on: so a step is converted once. A log is
read from where the look before ended.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import xxhash

from ingest.heartbeat import beat
from ingest.layouts.base import LayoutPlace, Problem, Section
from workers.model import MIB

_PIECE_NBYTES = 4 * MIB
#: The most runs of lines of a log: a million steps one after the other.
_MAX_RUNS = 1_000_000
#: A line is at most this long; what is longer is passed over.
_MAX_LINE_NBYTES = 64 * 1024
#: This many bytes before the end of the last look must be the same at the next one.
_SEAM_NBYTES = 256
_NS = 1_000_000
_MS = 1_000_000_000 // _NS
#: The last millisecond of which 64 bits hold every nanosecond, in 2262.
_LAST_MS = 2**63 // _NS - 1


@dataclass(slots=True)
class _StepLines:
    """The lines of one step, as far as a log was read."""

    ranges: list[tuple[int, int]] = field(default_factory=list)
    digest: xxhash.xxh3_64 = field(default_factory=xxhash.xxh3_64)
    time: bytes = b""

    def add(self, begin: int, lines: memoryview, time: bytes) -> None:
        """Add lines that begin at a byte of the log."""
        end = begin + len(lines)
        if self.ranges and self.ranges[-1][1] == begin:
            self.ranges[-1] = (self.ranges[-1][0], end)
        else:
            self.ranges.append((begin, end))
        self.digest.update(lines)
        self.time = time or self.time

    def section(self) -> Section:
        """Return them as they are now."""
        return Section(tuple(self.ranges), _time_ns(self.time) + self.digest.intdigest() % _NS)


@dataclass(slots=True)
class _Read:
    """What was read of a log."""

    inode: int = -1
    mtime_ns: int = -1
    end: int = 0
    """The byte after the last whole line."""
    seam: bytes = b""
    """The bytes before that."""
    steps: dict[int, _StepLines] = field(default_factory=dict)
    last: bytes = b""
    """The step of the last line, as it is written; empty before the first."""
    runs: int = 0

    def continues(self, fd: int, status: os.stat_result) -> bool:
        """Return whether a log is still this one, with nothing changed but its end."""
        if status.st_ino != self.inode or status.st_size < self.end:
            return False
        if status.st_size == self.end:
            return status.st_mtime_ns == self.mtime_ns
        return os.pread(fd, len(self.seam), self.end - len(self.seam)) == self.seam


class LogSections:
    """The sections of one log, which may grow."""

    def __init__(self, step_of_line: re.Pattern[bytes]) -> None:
        """Prepare for a log whose lines tell their steps by this expression; see `Layout.step_of_line`."""
        self._expression = step_of_line
        self._read = _Read()

    @property
    def is_whole(self) -> bool:
        """Whether no lines were left out because there are too many runs of them."""
        return self._read.runs < _MAX_RUNS

    def update(self, path: Path) -> dict[int, Section]:
        """Read what has been added to a log; return the section of each step. Empty if it cannot be read.

        Takes memory in proportion to the number of steps, and a few MiB.
        """
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return {}
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                return {}
            if not self._read.continues(fd, status):
                self._read = _Read()
            self._read.inode, self._read.mtime_ns = status.st_ino, status.st_mtime_ns
            self._read_to(fd, status.st_size)
        except OSError:
            return {}
        finally:
            os.close(fd)
        sections = {step: lines.section() for step, lines in self._read.steps.items()}
        if self._read.last:
            last = int(self._read.last)
            sections[last] = replace(sections[last], is_last=True)
        return sections

    def _read_to(self, fd: int, size: int) -> None:
        read = self._read
        while read.end < size and self.is_whole:
            beat()
            piece = os.pread(fd, min(_PIECE_NBYTES, size - read.end), read.end)
            whole = piece.rfind(b"\n") + 1
            if not whole:
                if len(piece) < _MAX_LINE_NBYTES:
                    return  # the rest of a line is still to come
                whole = len(piece)
            self._add(piece[:whole])
            read.seam = (read.seam + piece[max(whole - _SEAM_NBYTES, 0) : whole])[-_SEAM_NBYTES:]
            read.end += whole

    def _add(self, piece: bytes) -> None:
        read = self._read
        for text, begin, end, time in runs(piece, self._expression, read.last):
            lines = read.steps.setdefault(int(text), _StepLines())
            lines.add(read.end + begin, memoryview(piece)[begin:end], time)
            read.last = text
            read.runs += 1


def runs(
    piece: bytes, expression: re.Pattern[bytes], before: bytes = b""
) -> Iterator[tuple[bytes, int, int, bytes]]:
    """Yield the step, as it is written, begin, end and last time stamp of each run of lines of one step.

    Lines that tell no step belong to the step of the line before; their time stamp is empty.

    Args:
        piece: whole lines.
        expression: see `Layout.step_of_line`.
        before: the step of the line before the piece, as it is written; empty for the first line.
    """
    begin, text, time = 0, before, b""
    for match in expression.finditer(piece):
        if match["step"] != text:
            if text and match.start() > begin:
                yield text, begin, match.start(), time
            begin, text, time = match.start(), match["step"], b""
        time = match["time"]
    if text and begin < len(piece):
        yield text, begin, len(piece), time


def _time_ns(time: bytes) -> int:
    """Return a time stamp in nanoseconds, as if it were UTC: the log does not tell the zone."""
    try:
        parsed = datetime.strptime(time.decode(), "%Y-%m-%d %H:%M:%S,%f").replace(tzinfo=UTC)
    except ValueError:
        return 0
    return min(max(int(parsed.timestamp() * _MS), 0), _LAST_MS) * _NS


class SectionedLogs:
    """The logs of a dump, each read only once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._logs: dict[str, LogSections] = {}

    def expand(self, places: list[LayoutPlace]) -> tuple[list[LayoutPlace], list[Problem]]:
        """Return places, with each log of many steps replaced by a place for each of its steps.

        Args:
            places: those of a scan.

        Returns:
            The places, and what is wrong with logs.
        """
        expanded: list[LayoutPlace] = []
        problems: list[Problem] = []
        logs, self._logs = self._logs, {}
        for located in places:
            if located.layout.step_of_line is None:
                expanded.append(located)
                continue
            for name in located.place.names or ():
                path = f"{located.place.directory}/{name}".lstrip("/")
                log = self._logs[path] = logs.get(path) or LogSections(located.layout.step_of_line)
                sections = log.update(self._root / path)
                expanded += [_of_step(located, name, step, section) for step, section in sections.items()]
                if not log.is_whole:
                    problems.append(
                        Problem(path, f"goes back and forth between steps more than {_MAX_RUNS} times")
                    )
        return expanded, problems


def _of_step(located: LayoutPlace, name: str, step: int, section: Section) -> LayoutPlace:
    place = located.place
    fields = {**place.fields, "step": str(step)}
    path = f"{place.directory}/{name},step={step}"
    return replace(located, place=replace(place, path=path, fields=fields, names=(name,), section=section))


def read_section(path: Path, section: Section, limit: int) -> bytes | None:
    """Return the lines of a section; None if they cannot be read, or are more than `limit` bytes."""
    if section.nbytes > limit:
        return None
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return b"".join(os.pread(fd, end - begin, begin) for begin, end in section.ranges)
    except OSError:
        return None
    finally:
        os.close(fd)
