"""Replay the timeline of a dump: write the same files in the same order and at the same pace."""

import csv
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Call:
    """One system call of the program that wrote the dump."""

    at_s: float
    op: str
    argument: str
    path: str


def timeline(recorded: Path) -> list[Call]:
    """Read the `timeline.csv` of an unpacked dump."""
    with (recorded / "timeline.csv").open(newline="") as lines:
        return [
            Call(int(row["t_us"]) / 1e6, row["op"], row["arg"], row["path"]) for row in csv.DictReader(lines)
        ]


def longest_pause_s(calls: list[Call]) -> float:
    """Return the longest time between two successive calls below the same iteration directory."""
    last: dict[str, float] = {}
    longest = 0.0
    for call in calls:
        iteration = "/".join(call.path.split("/")[:4])
        if call.path.count("/") == 4:
            longest = max(longest, call.at_s - last.get(iteration, call.at_s))
            last[iteration] = call.at_s
    return longest


def replay(recorded: Path, into: Path, *, speed: float) -> None:
    """Write the dump of `recorded` into `into`, `speed` times as fast as it was originally written."""
    started = time.monotonic()
    writer = Replay(recorded / "dump", into)
    for call in timeline(recorded):
        pause = call.at_s / speed - (time.monotonic() - started)
        if pause > 0:
            time.sleep(pause)
        writer.do(call)
    writer.close()


class Replay:
    """Repeats the calls of the program one by one, with the contents of its finished files in `source`."""

    def __init__(self, source: Path, target: Path) -> None:
        self._source, self._target = source, target
        self._open: dict[str, int] = {}
        self._position: dict[str, int] = {}
        self._rest: dict[str, bytes] = {}

    def do(self, call: Call) -> None:
        """Repeat one call.

        The second half of each write is held back until the next write or close of the file, so that files
        are visible half written.
        """
        path = self._target / call.path
        match call.op:
            case "mkdir":
                path.mkdir(int(call.argument, 8), parents=True, exist_ok=True)
            case "open":
                self._start(call.path, truncate=call.argument == "truncate")
            case "write":
                self._write_half(call.path, int(call.argument))
            case "close":
                self._finish(call.path)
            case "chmod":
                path.chmod(int(call.argument, 8))

    def close(self) -> None:
        """Write what is held back, and close the files that are still open."""
        for path in list(self._open):
            self._finish(path)

    def _start(self, path: str, *, truncate: bool) -> None:
        flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if truncate else os.O_APPEND)
        self._open[path] = os.open(self._target / path, flags, 0o600)
        if truncate:
            self._position[path] = 0

    def _write_half(self, path: str, nbytes: int) -> None:
        self._write_rest(path)
        position = self._position.get(path, 0)
        data = (self._source / path).read_bytes()[position : position + nbytes]
        assert len(data) == nbytes, f"{path} is shorter than its timeline"
        self._position[path] = position + nbytes
        os.write(self._open[path], data[: nbytes // 2])
        self._rest[path] = data[nbytes // 2 :]

    def _write_rest(self, path: str) -> None:
        if rest := self._rest.pop(path, b""):
            os.write(self._open[path], rest)

    def _finish(self, path: str) -> None:
        self._write_rest(path)
        os.close(self._open.pop(path))


def iterations(dump: Path) -> Iterator[tuple[int, int]]:
    """Yield the rank and step of every iteration directory of a MindSpore dump."""
    for directory in dump.glob("rank_*/*/*/*"):
        if directory.is_dir() and directory.name.isdecimal():
            yield int(directory.parts[-4].removeprefix("rank_")), int(directory.name)
