"""Compare the store with the files that the job left, after the campaign.

Shares no code with the writer of the store.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import zarr

from tests import checker
from tests.faults.commits import CommitReader
from tests.faults.writer import Writer, digest


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in the store, with a digest of its content: a campaign writes more than fits in memory."""

    source: str
    kind: str
    problem: str
    digest: bytes


#: By path of the source file: the commit that holds it, without its files, and the file in it.
_Stored: TypeAlias = dict[str, tuple[checker.Leaf, StoredFile]]
#: Fingerprint, tensors, NaN and rows of one step of one rank.
_Counts: TypeAlias = tuple[str, int, int, int]


@dataclass
class Verdict:
    """What was compared, and what is wrong."""

    steps: int = 0
    tensors: int = 0
    files: int = 0
    quarantined: int = 0
    kept: int = 0
    """Files that the job removed from the dump and that are still in the store."""
    deleted: int = 0
    """Files that the watcher deleted from the dump and that are in the store."""
    left: int = 0
    """Files that arrived after the others of their step were deleted. They are in the dump only."""
    pooled: int = 0
    """Steps of one rank that refer to tensors in the pool."""
    forged: int = 0
    """Files of a hostile rank that are in the store as that rank wrote them."""
    generations: int = 0
    """All generations that ever existed, of all steps."""
    lost: list[str] = field(default_factory=list)
    """Files that are neither in the store nor in the dump."""
    late: list[str] = field(default_factory=list)
    """Files that are in the dump and not, as they are there, in the store; and what their step waits for."""
    wrong: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    """Files that are quarantined without a reason or a message, or torn and not quarantined."""
    view: list[str] = field(default_factory=list)
    """Differences between the consolidated view and the commits."""

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.lost or self.late or self.wrong or self.unnamed or self.view)


def judge(
    reader: CommitReader,
    writer: Writer,
    scratch: Path,
    *,
    waiting: Mapping[tuple[int, int | None], str],
    deletes: bool,
) -> Verdict:
    """Compare every file that the job left with the store, and the consolidated view with the commits.

    Args:
        reader: of the store.
        writer: what the job has written.
        scratch: a directory for copies.
        waiting: by rank and step, None for run files: where the step is, and what it waits for.
        deletes: the watcher may have deleted files from the dump.
    """
    verdict = Verdict()
    stored: _Stored = {}
    committed: dict[tuple[int, int], checker.Leaf] = {}
    for path in sorted(leaf for leaf in reader.leaves() if reader.version(leaf) is not None):
        try:
            leaf = reader.read(path)
        except Exception as exc:  # noqa: BLE001  (a commit that cannot be read is wrong, whatever the reason)
            verdict.wrong.append(f"{path}: {type(exc).__name__}: {exc}"[:500])
            continue
        commit = replace(leaf, files={})
        for source, file in leaf.files.items():
            if source in stored:
                verdict.wrong.append(f"{source} is in two steps")
            stored[source] = commit, StoredFile(source, file.kind, file.problem, digest(file.content))
        verdict.generations += 1 + len(leaf.record["previous"])
        if leaf.step is not None:
            committed[leaf.rank, leaf.step] = commit
            verdict.pooled += bool(commit.record.get("pool"))
    verdict.steps = len(committed)
    _compare_files(verdict, writer, stored, waiting, deletes=deletes)
    _check_files_gone_from_dump(verdict, writer, stored)
    _check_quarantined(verdict, stored)
    shutil.rmtree(scratch / "view", ignore_errors=True)
    _compare_cubes(verdict, reader.download_cubes(scratch / "view"), committed)
    return verdict


def _compare_files(
    verdict: Verdict,
    writer: Writer,
    stored: _Stored,
    waiting: Mapping[tuple[int, int | None], str],
    *,
    deletes: bool,
) -> None:
    """Compare each file that the job left with the dump and with the store."""
    in_dump = _digests_of_files(writer.dump)
    for source, content in writer.final.items():
        dumped = in_dump.get(source)
        if dumped != content and not (deletes and dumped is None):
            verdict.wrong.append(f"{source} is not in the dump as the job left it")
        file = stored[source][1] if source in stored else None
        if file is not None and file.digest == content:
            verdict.deleted += dumped is None
            verdict.forged += source in writer.forged
            _count_stored(verdict, file, is_torn=source in writer.torn)
        elif file is not None and not _was_dumped(file, writer.written.get(source, set())):
            verdict.wrong.append(f"{source} differs from all that was dumped")
        elif dumped != content:
            verdict.lost.append(source)
        elif deletes and file is None and _some_deleted(source, stored, in_dump):
            verdict.left += 1
        else:
            why = waiting.get(_step_of(source), "no watcher knows of its step")
            verdict.late.append(f"{source}: {'' if file is None else 'an earlier content is stored; '}{why}")


def _was_dumped(file: StoredFile, written: set[bytes]) -> bool:
    """Return whether the bytes of a stored file are some that the job wrote, or a part of them."""
    return file.kind == "quarantined" or file.digest in written


def _some_deleted(source: str, stored: _Stored, in_dump: Mapping[str, bytes]) -> bool:
    """Return whether other files of a step are in the store, and gone from the dump."""
    directory = source.rpartition("/")[0]
    return any(other.rpartition("/")[0] == directory and other not in in_dump for other in stored)


def _step_of(source: str) -> tuple[int, int | None]:
    """Return rank and step of a file: `rank_0/LeNet/0/7/name`; None for run files."""
    rank, *directories, _ = source.split("/")
    return int(rank.removeprefix("rank_")), int(directories[2]) if len(directories) == 3 else None


def _digests_of_files(dump: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(dump)): digest(path.read_bytes())
        for path in sorted(dump.rglob("*"))
        if path.is_file()
    }


def _count_stored(verdict: Verdict, file: StoredFile, *, is_torn: bool) -> None:
    """Count a file whose bytes are in the store. Exactly the torn files must be quarantined."""
    verdict.files += 1
    verdict.tensors += file.kind == "tensor"
    if (file.kind == "quarantined") != is_torn:
        verdict.unnamed.append(f"{file.source} is {file.kind}: {file.problem}")


def _check_files_gone_from_dump(verdict: Verdict, writer: Writer, stored: _Stored) -> None:
    """Check that the store's files without a file in the dump have contents that the job once wrote."""
    for source, (_, file) in stored.items():
        if source not in writer.final:
            verdict.kept += 1
            known = writer.written.get(source.removesuffix(".part"), set())
            if file.kind != "quarantined" and file.digest not in known:
                verdict.wrong.append(f"{source} is gone, and the store has bytes that the job never wrote")


def _check_quarantined(verdict: Verdict, stored: _Stored) -> None:
    """Check that each quarantined file has a reason and is named in the commit of a partial step."""
    for source, (leaf, file) in stored.items():
        if file.kind == "quarantined":
            verdict.quarantined += 1
            is_named = any(source in problem for problem in leaf.record["problems"])
            if not (is_named and file.problem and leaf.status == "partial"):
                verdict.unnamed.append(f"{source} is quarantined and not named")


def _compare_cubes(verdict: Verdict, directory: Path, committed: dict[tuple[int, int], checker.Leaf]) -> None:
    """Compare fingerprints and counts in the consolidated view with the commit records."""
    if not (directory / "zarr.json").exists():
        verdict.view.append("the consolidated view is missing")
        return
    cubes = zarr.open_group(directory, mode="r")
    (step, times), *_ = Counter(_array(cubes, "step").tolist()).most_common(1) or [(None, 0)]
    if times > 1:
        verdict.view.append(f"the view contains step {step} twice")
    in_view = _counts_in_view(cubes)
    for rank, step in in_view.keys() ^ committed.keys():
        place = "the view" if (rank, step) in in_view else "the commits"
        verdict.view.append(f"rank {rank} step {step} is only in {place}")
    for rank, step in in_view.keys() & committed.keys():
        viewed, in_commit = in_view[rank, step], _counts_in_commit(committed[rank, step])
        if viewed != in_commit:
            verdict.view.append(f"rank {rank} step {step}: the view has {viewed}, the commit {in_commit}")


def _counts_in_view(cubes: zarr.Group) -> dict[tuple[int, int], _Counts]:
    """Return the counts of the consolidated view by rank and step."""
    steps, ranks = _array(cubes, "step").tolist(), _array(cubes, "rank").tolist()
    fingerprints, tensors = _array(cubes, "fingerprint"), _array(cubes, "tensors")
    nan, rows = _array(cubes, "nan_count"), _array(cubes, "row")
    return {
        (ranks[at[1]], steps[at[0]]): (
            str(fingerprints[at]),
            int(tensors[at]),
            int(np.maximum(nan[at], 0).sum()),
            int((rows[at] >= 0).sum()),
        )
        for at in np.ndindex(len(steps), len(ranks))
        if fingerprints[at]
    }


def _counts_in_commit(leaf: checker.Leaf) -> _Counts:
    """Return the same counts from a commit record."""
    summary = leaf.record["summary"]
    return leaf.record["fingerprint"], summary["tensors"], summary["nan_count"], summary["tensors"]


def _array(group: zarr.Group, name: str) -> Any:
    array = group[name]
    assert isinstance(array, zarr.Array)
    return np.asarray(array[...])
