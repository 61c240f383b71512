"""Checkpoints of `torch.distributed.checkpoint`, such as those of torchtitan and Megatron.

    [{step or iter}{step}/]__{rank}_{n}.distcp    the parts of tensors that a rank has
    [{step or iter}{step}/].metadata              their names, written last

(torch 2.15, `torch/distributed/checkpoint`.) See `workers.dump.formats.distcp`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import ClassVar

from ingest.layouts.base import (
    Description,
    Layout,
    Place,
    Problem,
    ReadSmall,
    System,
    TensorFile,
    join_member,
)
from ingest.layouts.pattern import parse
from workers.dump.formats.distcp import MAX_METADATA_NBYTES, Chunk, read_metadata
from workers.dump.formats.header import Container
from workers.dump.model import TensorName
from workers.errors import UnreadableTensor
from workers.model import SourceFile, counted

_METADATA = ".metadata"
_COPY_HINT = (
    "It was not copied as a whole, or is still being copied. Copy all of it, and run the same command again."
)
FILE = r"__{rank}_{part:\d{1,9}}.distcp"


class DistributedCheckpoint(Layout):
    """The files of one checkpoint: one or several for each rank, and the names for all."""

    name = "distributed_checkpoint"
    is_checkpoint = True
    patterns = ()
    file_patterns = tuple(
        parse(f"{above}{FILE}", of_files=True)
        for above in (
            r"{before:(?:.*[._-])?}step{sep:[._-]?}{step}/",
            r"{before:(?:.*[._-])?}iter{sep:(?:ation)?[._-]?}{step}/",
            "",
        )
    )
    implied = {"step": "0"}  # noqa: RUF012  (a ClassVar in `Layout`)
    systems: ClassVar[Sequence[System]] = (
        System("torch.distributed.checkpoint", "step-8/__1_0.distcp", "distcp, `.metadata`"),
        System("torch.distributed.checkpoint in Megatron", "iter_0000008/__1_0.distcp", "the same"),
        System("torch.distributed.checkpoint, a single one", "__1_0.distcp", "the same"),
    )

    def describe(self, place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:
        """Describe the files of one rank; see `Layout.describe`. Reads `.metadata`."""
        metadata = f"{place.directory}/{_METADATA}".lstrip("/")
        data = read(metadata)
        if data is None:
            problem = Problem(
                metadata,
                "is missing or cannot be read: the names of the tensors are not known",
                "It is written last: the checkpoint was not finished.",
            )
            return Description(_named(files, {}), problems=(problem,), unfinished=metadata)
        try:
            chunks = _parsed(data)
        except UnreadableTensor as exc:
            return Description(_named(files, {}), problems=(Problem(metadata, exc.message),))
        lost = (*_cut_off(files, chunks), *_missing(place, files, chunks))
        return Description(_named(files, chunks), problems=lost, unfinished=lost[0].path if lost else "")


def _missing(
    place: Place, files: Sequence[SourceFile], chunks: Mapping[str, Mapping[int, Chunk]]
) -> Iterator[Problem]:
    """Yield a problem for each file of the rank that is not there, although others of the rank are.

    All files of a rank are written by one process, into one directory. Those of other ranks may be on other
    hosts.
    """
    own = f"__{place.fields['rank']}_"
    there = {file.path.rpartition("/")[2] for file in files}
    for name in sorted(name for name in chunks if name.startswith(own) and name not in there):
        parts, first = counted(len(chunks[name]), "part"), next(iter(chunks[name].values())).name
        yield Problem(
            f"{place.directory}/{name}".lstrip("/"),
            f"is missing: {_METADATA} names {parts} in it; the first is {first:.200}",
            _COPY_HINT,
        )


def _cut_off(files: Sequence[SourceFile], chunks: Mapping[str, Mapping[int, Chunk]]) -> Iterator[Problem]:
    """Yield a problem for each file that ends before parts of it begin: it may end with a whole archive."""
    for file in files:
        of_file = chunks.get(file.path.rpartition("/")[2], {})
        if behind := sorted(begin for begin in of_file if begin >= file.size):
            parts, first = counted(len(behind), "part"), of_file[behind[0]].name
            yield Problem(
                file.path,
                f"ends at byte {file.size}, before {parts} that {_METADATA} names; the first is {first:.200}",
                _COPY_HINT,
            )


def _named(files: Sequence[SourceFile], chunks: Mapping[str, Mapping[int, Chunk]]) -> dict[str, TensorFile]:
    name = TensorName(op_type="Parameter", io="output", slot=0)
    return {
        file.path: TensorFile(
            name,
            Container.DISTCP,
            name_member=_member,
            chunks=chunks.get(file.path.rpartition("/")[2], {}),
        )
        for file in files
    }


def _member(name: TensorName, path: tuple[str, ...], number: int) -> TensorName:
    first, *rest = path
    return join_member(name._replace(op_name=first), tuple(rest), number)


def _parsed(data: bytes) -> Mapping[str, Mapping[int, Chunk]]:
    """Parse a `.metadata` file."""
    if len(data) > MAX_METADATA_NBYTES:
        raise UnreadableTensor(f"has {len(data)} bytes; at most {MAX_METADATA_NBYTES} are read")
    return _last_parsed(data)


@lru_cache(maxsize=1)  # all ranks ask for the same one
def _last_parsed(data: bytes) -> Mapping[str, Mapping[int, Chunk]]:
    return read_metadata(data)
