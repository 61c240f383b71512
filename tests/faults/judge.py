"""Holds the store against what the job left, when all is over. Knows nothing of how the store came about."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from tests import checker
from tests.faults.look import Eyes
from tests.faults.writer import Writer, digest


@dataclass
class Verdict:
    """What was compared, and what is wrong."""

    steps: int = 0
    tensors: int = 0
    files: int = 0
    quarantined: int = 0
    kept: int = 0
    """Files that are gone from the dump and still in the store."""
    deleted: int = 0
    """Files that the watcher has deleted from the dump, and that are in the store."""
    left: int = 0
    """Files that came when the others of their step had been deleted: they are in the dump only."""
    generations: int = 0
    """That there ever were, of all steps."""
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    """Quarantined without saying so, or without a reason to."""
    view: list[str] = field(default_factory=list)
    """Where the consolidated view disagrees with the commits."""

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.lost or self.wrong or self.unnamed or self.view)


def judge(eyes: Eyes, writer: Writer, scratch: Path, *, deletes: bool) -> Verdict:
    """Compare every file that the job left with the store, and the consolidated view with the commits.

    `deletes` says whether the watcher may have deleted files from the dump.
    """
    verdict = Verdict()
    stored: _Stored = {}
    found: dict[tuple[int, int], checker.Leaf] = {}
    for path in sorted(leaf for leaf in eyes.leaves() if eyes.tag(leaf) is not None):
        try:
            leaf = eyes.read(path)
        except Exception as exc:  # noqa: BLE001  (a leaf that cannot be read is lost, whatever the reason)
            verdict.wrong.append(f"{path}: {type(exc).__name__}: {exc}"[:500])
            continue
        for source, file in leaf.files.items():
            if source in stored:
                verdict.wrong.append(f"{source} is in two steps")
            stored[source] = leaf, file
        verdict.generations += 1 + len(leaf.record["previous"])
        if leaf.step is not None:
            found[leaf.rank, leaf.step] = leaf
    verdict.steps = len(found)
    _compare(verdict, writer, stored, deletes=deletes)
    _compare_view(verdict, eyes.download_view(scratch / "view"), found)
    return verdict


_Stored = dict[str, tuple[checker.Leaf, checker.File]]


def _compare(verdict: Verdict, writer: Writer, stored: _Stored, *, deletes: bool) -> None:
    """Hold what the job left against dump and store."""
    dump = writer.dump
    there = {
        str(path.relative_to(dump)): digest(path.read_bytes())
        for path in sorted(dump.rglob("*"))
        if path.is_file()
    }
    for source, content in writer.final.items():
        in_dump = there.get(source)
        if in_dump != content and not (deletes and in_dump is None):
            verdict.wrong.append(f"{source} is not in the dump as the job left it")
        file = stored[source][1] if source in stored else None
        if file is not None and digest(file.content) == content:
            verdict.files += 1
            verdict.deleted += in_dump is None
            verdict.tensors += file.kind == "tensor"
            if (file.kind == "quarantined") != (source in writer.torn):
                verdict.unnamed.append(f"{source} is {file.kind}: {file.problem}")
        elif deletes and in_dump == content:
            verdict.left += 1
        elif file is None:
            verdict.lost.append(source)
        else:
            verdict.wrong.append(f"{source} is not as it was dumped")
    _look_at_others(verdict, writer, stored)


def _look_at_others(verdict: Verdict, writer: Writer, stored: _Stored) -> None:
    """Look at what the store has beyond the dump, and at what is quarantined."""
    for source, (leaf, file) in stored.items():
        if source not in writer.final:
            verdict.kept += 1
            known = writer.written.get(source.removesuffix(".part"), set())
            if file.kind != "quarantined" and digest(file.content) not in known:
                verdict.wrong.append(f"{source} is gone, and the store has what nobody wrote")
        if file.kind == "quarantined":
            verdict.quarantined += 1
            said = any(source in problem for problem in leaf.record["problems"])
            if not (said and file.problem and leaf.status == "partial"):
                verdict.unnamed.append(f"{source} is quarantined and not named")


def _compare_view(verdict: Verdict, directory: Path, found: dict[tuple[int, int], checker.Leaf]) -> None:
    """Hold the tables of the view, and its counts of NaN, against the records of the commits."""
    if not (directory / "zarr.json").exists():
        verdict.view.append("there is none")
        return
    view = zarr.open_group(directory, mode="r")
    steps, ranks = _array(view, "step"), _array(view, "rank")
    fingerprints, tensors = _array(view, "fingerprint"), _array(view, "tensors")
    nan, rows = _array(view, "nan_count"), _array(view, "row")
    if (repeated := Counter(steps.tolist()).most_common(1)) and repeated[0][1] > 1:
        verdict.view.append(f"step {repeated[0][0]} is there twice")
    seen = {}
    for place, step in enumerate(steps.tolist()):
        for column, rank in enumerate(ranks.tolist()):
            if fingerprints[place, column]:
                seen[rank, step] = (place, column)
    for key in seen.keys() ^ found.keys():
        verdict.view.append(
            f"rank {key[0]} step {key[1]} is only in {'the view' if key in seen else 'the commits'}"
        )
    for key in seen.keys() & found.keys():
        at, record = seen[key], found[key].record
        in_view = (
            str(fingerprints[at]),
            int(tensors[at]),
            int(np.maximum(nan[at], 0).sum()),
            int((rows[at] >= 0).sum()),
        )
        summary = record["summary"]
        committed = (record["fingerprint"], summary["tensors"], summary["nan_count"], summary["tensors"])
        if in_view != committed:
            verdict.view.append(
                f"rank {key[0]} step {key[1]}: the view says {in_view}, the commit {committed}"
            )


def _array(group: zarr.Group, name: str) -> Any:
    array = group[name]
    assert isinstance(array, zarr.Array)
    return np.asarray(array[...])
