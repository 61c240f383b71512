"""What the pieces of ranks make up."""

from pathlib import Path

import numpy as np

import ingest
from ingest.questions.compare.held_tensors import HeldTensors, hold_together
from ingest.questions.compare.runner import ThreadRunner
from ingest.questions.compare.stored_steps import load_step
from ingest.questions.placement.collective_results import find_collective_results, is_removed
from ingest.questions.placement.equal_holders import equal_holders
from tests.pipeline import ingest_directly
from tests.sharded_net import LAYOUT, write


def held_of(root: Path) -> HeldTensors:
    """Return two ranks with a sum that is reduced, shards that are gathered, and data of their own."""
    whole, other, own = (np.random.default_rng(seed).normal(size=(6, 8)) for seed in range(3))
    ranks = [
        {"part": whole - 1, "total": whole, "own": own + rank, "shard": other[:, 4 * rank : 4 * rank + 4]}
        | {"gathered": other}
        for rank in range(2)
    ]
    ranks[1]["part"] = np.ones_like(whole)
    write(root / "dump", [ranks])
    ingest_directly(root / "dump", root / "run.zarr", layout=LAYOUT)
    snapshot = ingest.open_store(root / "run.zarr").snapshot()
    steps = snapshot.of_step(0)
    return hold_together(0, {rank: load_step(snapshot.store, steps[rank]) for rank in steps}, {})


def test_sums_and_shards_are_found_in_what_follows_and_only_those_asked_for(tmp_path: Path) -> None:
    held = held_of(tmp_path)
    rows = equal_holders(held)
    names = [key.op_name.rpartition(".")[2] for key in held.keys]
    part, total = names.index("part"), names.index("total")
    with ThreadRunner() as runner:
        whole = find_collective_results(held, rows, runner)
        assert find_collective_results(held, rows, runner, asked=[part]) == {part: (total, "partial sum")}
        assert find_collective_results(held, rows, runner, asked=()) == {}
    assert {names[piece]: (names[other], way) for piece, (other, way) in whole.items()} == {
        "part": ("total", "partial sum"),
        "shard": ("gathered", "shard 1"),
    }
    assert not is_removed(held, (part, total))
