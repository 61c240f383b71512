"""Family A: MindSpore synchronous dumps, versions 1.3 to 2.10.

    rank_{r}/{net}/{graph}/{iteration}/
        {op_type}.{op_name}.{task}.{stream}.{time}.{io}.{slot}.{format}[.{dtype}].npy
    rank_{r}/{net}/{graph}/constants/...
    rank_{r}/{graphs,execution_order,.dump_metadata}/...

All graphs of one rank and iteration make one step. What stands in a rank but in no iteration are its run
files; files beside the `rank_*` directories belong to the run files of the lowest rank.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from ingest.layouts.base import Listing, Problem, Scan
from ingest.layouts.walk import Walk, read_small
from workers.model import StepKey, TensorName

LAYOUT = "mindspore"
#: As MindSpore spells it: with `rank_01` beside `rank_1`, one of the two would be lost.
_RANK = re.compile(r"rank_(0|[1-9][0-9]{0,8})")
_NUMBER = re.compile(r"\d{1,18}")
#: msProbe's native dumps (family F) have a time where MindSpore has the net.
_TIME = re.compile(r"\d{14}")
_RANK_DIRECTORIES = frozenset([".dump_metadata", "graphs", "execution_order", "debug_files"])
#: How long a directory must have been quiet before its time proves that nothing was added: file systems
#: stamp with the time of their last tick.
_TICK_S = 2.0
#: How long a listing is trusted at least, as long as the times of its directories do not change.
_SHORTEST_TRUST_S = 60.0

_TENSOR_NAME = re.compile(
    r"(?P<op_type>[^.]+)\.(?P<op_name>.+)"
    r"\.(?P<task>\d{1,18})\.(?P<stream>\d{1,18})\.(?P<timestamp>\d{1,18})"
    r"\.(?P<io>input|output)\.(?P<slot>\d{1,9})\.(?P<format>[^.]+)(?:\.(?P<declared_dtype>[^.]+))?",
    re.DOTALL,
)


def rank_of(name: str) -> int | None:
    """Return the rank that a directory name such as `rank_3` gives, or None."""
    match = _RANK.fullmatch(name)
    return int(match[1]) if match else None


def parse_tensor_name(file_name: str, *, net: str = "", graph: str = "") -> TensorName | None:
    """Parse the name of an npy file, from the right, because old parameter names hold dots.

    >>> parse_tensor_name("Parameter.fc.weight.0.0.1795219189197639.output.0.DefaultFormat.npy").op_name
    'fc.weight'
    """
    match = _TENSOR_NAME.fullmatch(file_name.removesuffix(".npy"))
    if match is None:
        return None
    return TensorName(
        net=net,
        graph=graph,
        op_type=match["op_type"],
        op_name=match["op_name"],
        io=match["io"],
        slot=int(match["slot"]),
        task=int(match["task"]),
        stream=int(match["stream"]),
        timestamp=int(match["timestamp"]),
        format=match["format"],
        declared_dtype=match["declared_dtype"] or "",
    )


def parse_iterations(text: str) -> frozenset[int] | None:
    """Parse the `iteration` of a dump configuration: `0|5-8|100-120`; None for `all` and for nonsense."""
    steps: set[int] = set()
    for group in str(text).split("|"):
        first, dash, last = group.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            return None
        low, high = int(first), int(last or first)
        if not 0 <= high - low < 1_000_000:
            return None
        steps.update(range(low, high + 1))
        if len(steps) > 1_000_000:
            return None
    return frozenset(steps)


class MindSporeDump:
    """The directory that holds `rank_*` directories of a MindSpore dump."""

    layout = LAYOUT

    def __init__(self, root: Path, ranks: frozenset[int] | None = None) -> None:
        """Look at the ranks of `root`; at all of them when `ranks` is None."""
        self.root = root
        self._ranks = ranks

    def scan(self, known: Mapping[StepKey, Listing]) -> Scan:
        """List every step now; see `Dump.scan`."""
        top = Walk(self.root)
        ranks: dict[int, str] = {}
        beside: list[os.DirEntry[str]] = []
        for entry in top.entries(""):
            rank = rank_of(entry.name)
            if rank is not None and entry.is_dir(follow_symlinks=False):
                if self._ranks is None or rank in self._ranks:
                    ranks[rank] = entry.name
            elif self._ranks is None and not entry.is_dir(follow_symlinks=False):
                beside.append(entry)
            elif self._ranks is None and entry.name.startswith("rank_"):
                top.problems.append(Problem(entry.name, "is not how MindSpore names the directory of a rank"))
        listings: list[Listing] = []
        expected: set[int] = set()
        for rank, name in sorted(ranks.items()):
            listings += self._scan_rank(rank, name, known, beside if rank == min(ranks) else [])
            expected |= self._expected(name) or set()
        return Scan(tuple(listings), tuple(top.problems), frozenset(expected) or None)

    def names(self, listing: Listing) -> Mapping[str, TensorName | None]:
        """Return what the names of the npy files tell; see `Dump.names`."""
        mappings: dict[str, Mapping[str, str]] = {}
        names: dict[str, TensorName | None] = {}
        for file in listing.files:
            directory, _, file_name = file.path.rpartition("/")
            if not file_name.endswith(".npy"):
                continue
            stem = file_name.removesuffix(".npy")
            net, graph = _net_and_graph(directory)
            name = parse_tensor_name(file_name, net=net, graph=graph)
            if name is None and stem.isdecimal():
                if directory not in mappings:
                    mappings[directory] = self._read_mapping(directory)
                # Too long a name is replaced by a number; without its row the number is its name.
                if original := mappings[directory].get(file_name):
                    name = parse_tensor_name(original, net=net, graph=graph)
                else:
                    name = TensorName(net=net, graph=graph, op_name=stem)
            names[file.path] = name
        return _with_occurrences(names)

    def _scan_rank(
        self, rank: int, directory: str, known: Mapping[StepKey, Listing], beside: list[os.DirEntry[str]]
    ) -> Iterator[Listing]:
        run = Walk(self.root)
        for entry in beside:
            run.take(entry, entry.name)
        # All names first, and files only then: what is seen of a step then includes everything that was
        # there when the later step was seen.
        steps = self._find_iterations(run, directory)
        overtaken = self._overtaken(steps)
        for step, directories in sorted(steps.items()):
            key = StepKey(rank, step)
            later_begun = overtaken.issuperset(directories)
            yield self._listing(key, directories, later_begun=later_begun, known=known.get(key))
        if run.files or run.problems:
            run.files.sort(key=lambda file: file.path)
            yield Listing(
                StepKey(rank, None),
                tuple(run.files),
                run.newest_change,
                later_begun=False,
                problems=tuple(run.problems),
            )

    def _overtaken(self, steps: Mapping[int, list[str]]) -> set[str]:
        """Return the iteration directories after which a later one of the same graph has files."""
        later: dict[str, bool] = {}
        overtaken = set()
        for _, directories in sorted(steps.items(), reverse=True):
            for directory in directories:
                graph = directory.rpartition("/")[0]
                if later.get(graph):
                    overtaken.add(directory)
                else:
                    later[graph] = self._has_entries(directory)
        return overtaken

    def _has_entries(self, directory: str) -> bool:
        try:
            with os.scandir(f"{self.root}/{directory}") as entries:
                return next(entries, None) is not None
        except OSError:
            return False

    def _find_iterations(self, run: Walk, rank_directory: str) -> dict[int, list[str]]:
        steps: dict[int, list[str]] = {}
        for net in run.entries(rank_directory):
            path = f"{rank_directory}/{net.name}"
            if not net.is_dir(follow_symlinks=False):
                run.take(net, path)
            elif net.name in _RANK_DIRECTORIES:
                run.take_tree(path)
            elif _TIME.fullmatch(net.name):
                run.problems.append(Problem(path, "is an msProbe native dump, which is not supported yet"))
            elif net.name != "_":  # where 1.3 and 1.4 write before they move: not a place of its own
                self._find_in_net(run, path, steps)
        return steps

    def _find_in_net(self, run: Walk, net_directory: str, steps: dict[int, list[str]]) -> None:
        for graph in run.entries(net_directory):
            graph_directory = f"{net_directory}/{graph.name}"
            if not graph.is_dir(follow_symlinks=False):
                run.take(graph, graph_directory)
                continue
            for iteration in run.entries(graph_directory):
                path = f"{graph_directory}/{iteration.name}"
                if not iteration.is_dir(follow_symlinks=False):
                    run.take(iteration, path)
                elif _NUMBER.fullmatch(iteration.name):
                    steps.setdefault(int(iteration.name), []).append(path)
                else:
                    run.take_tree(path)

    def _listing(
        self, key: StepKey, directories: list[str], *, later_begun: bool, known: Listing | None
    ) -> Listing:
        listed_at = time.time()
        if known is not None and self._unchanged(known, directories, listed_at):
            return replace(known, later_begun=later_begun)
        walk = Walk(self.root)
        for directory in directories:
            walk.take_tree(directory)
        walk.files.sort(key=lambda file: file.path)
        return Listing(
            key,
            tuple(walk.files),
            walk.newest_change,
            later_begun,
            tuple(walk.directories),
            listed_at,
            tuple(walk.problems),
        )

    def _unchanged(self, known: Listing, directories: Collection[str], now: float) -> bool:
        if not {directory for directory, _ in known.directories}.issuperset(directories):
            return False
        # A file that goes on growing leaves no trace in its directory. So a listing is trusted for as long
        # again as its files had been quiet: a step is listed ever more rarely, but again and again.
        if not 0 <= now - known.listed_at < max(known.listed_at - known.newest_change, _SHORTEST_TRUST_S):
            return False
        for directory, mtime_ns in known.directories:
            if mtime_ns / 1e9 > known.listed_at - _TICK_S:
                return False
            try:
                if (self.root / directory).stat().st_mtime_ns != mtime_ns:
                    return False
            except OSError:
                return False
        return bool(known.directories)

    def _expected(self, rank_directory: str) -> frozenset[int] | None:
        data = read_small(self.root / rank_directory / ".dump_metadata" / "data_dump.json")
        try:
            settings = json.loads(data or b"")["common_dump_settings"]
            return parse_iterations(settings["iteration"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return None  # optional, and no version promises it

    def _read_mapping(self, directory: str) -> Mapping[str, str]:
        data = read_small(self.root / directory / "mapping.csv") or b""
        # No quotes: it is written by plain concatenation, and names hold commas, but the number does not.
        rows = (os.fsdecode(line).strip().partition(",") for line in data.split(b"\n"))
        return {number: original for number, comma, original in rows if comma}


def _net_and_graph(directory: str) -> tuple[str, str]:
    parts = directory.split("/")  # rank_{r}/{net}/{graph}/{iteration}[/...]
    return (parts[1], parts[2]) if len(parts) > 3 else ("", "")


def _with_occurrences(names: dict[str, TensorName | None]) -> dict[str, TensorName | None]:
    """Count the dumps of one op and slot in order of time: loops dump it several times a step."""
    count: dict[tuple[str, ...], int] = {}
    numbered = dict(names)
    in_time = sorted(((n.timestamp, path, n) for path, n in names.items() if n), key=lambda item: item[:2])
    for _, path, name in in_time:
        slot = (name.net, name.graph, name.op_type, name.op_name, name.io, str(name.slot))
        occurrence = count[slot] = count.get(slot, -1) + 1
        if occurrence:
            numbered[path] = replace(name, occurrence=occurrence)
    return numbered
