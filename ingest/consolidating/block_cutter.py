"""Writes full blocks of steps once more, cut along the tensors: for questions about a few of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from ingest.consolidating.cube_writer import CubeWriter
from ingest.consolidating.lease import Lease
from ingest.consolidating.runners import RunJobs
from ingest.heartbeat import beat
from ingest.reader.cubes.consolidated import ConsolidatedCubes
from workers.errors import DamagedStore
from workers.model import ceil_div
from workers.tasks.cut_by_tensor import CutBlock, CutJob, cut_by_tensor


def cut_blocks(writer: CubeWriter, run: RunJobs, lease: Lease | None, limit: int = 0) -> None:
    """Write the blocks that the cubes by tensor lack, and publish each of them.

    A block with a damaged cube is left out, and not tried again by this writer before it is written again.

    Args:
        writer: of the cubes.
        run: runs the tasks.
        lease: None if no other process can write.
        limit: write at most this many blocks; 0 for all.

    Raises:
        LeaseHeld: another process writes the cubes.
        StoreError: the store refused.
    """
    for block in _lacking(writer)[: limit or None]:
        damages = []
        reader = ConsolidatedCubes(writer.objects, writer.state)
        if lease is not None:
            lease.keep()
        for result in run(cut_by_tensor, list(_jobs(writer, block))):
            beat()
            if lease is not None:
                lease.keep_in_time()
            if damage := result.damage or _missing(reader, result):
                damages.append(damage)
        if damages:
            writer.uncuttable[block] = damages[0]
            continue
        if lease is not None:
            lease.keep()
        writer.publish_cut(block)


def _missing(reader: ConsolidatedCubes, result: CutBlock) -> str:
    """Say which of the objects that a task did not find is missing; "" if all are rightly absent."""
    job = result.job
    layout = reader.layouts.per_step[job.name]
    try:
        for place in result.absent:
            reader.check_absent(layout, (place, job.rank_chunk, job.tensor_chunk))
    except DamagedStore as exc:
        return exc.message
    return ""


def _lacking(writer: CubeWriter) -> list[int]:
    """Return the blocks that the cubes by tensor lack, without those that are half written or damaged."""
    state = writer.state
    half = {place // state.grid.steps for place in state.rewriting}
    return [block for block in state.uncut if block not in half and block not in writer.uncuttable]


def _jobs(writer: CubeWriter, block: int) -> Iterator[CutJob]:
    """Yield the tasks that write a block: one for each object."""
    state, grid = writer.state, writer.state.grid
    rank_chunks = range(ceil_div(state.ranks, grid.ranks))
    tensor_chunks = range(ceil_div(state.tensors, grid.tensors))
    for name, ranks, tensors in product(writer.layouts.by_tensor, rank_chunks, tensor_chunks):
        yield CutJob(writer.objects.address, grid, name, block, ranks, tensors)
