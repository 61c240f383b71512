"""Runs whose ranks are replicas, some of which are off; and short forms of what is found."""

from collections.abc import Iterable

from ingest.questions.divergence import Divergence
from tests.replicas import Replicas

WEIGHT, STATE, REDUCED = "Adam.dense.input.0", "Adam.dense.input.1", "AllReduce.dense.output.0"
ACTIVATION, NORM = "ReLU.dense.output.0", "Adam.norm.input.0"


def summary(found: Divergence) -> list[tuple[tuple[int, ...], int, str]]:
    """Return who is off, since when, in what."""
    return [(odd.ranks, odd.first_step, odd.first.name) for odd in found.odd]


def absent(found: Divergence) -> list[tuple[str, str, tuple[int, ...], str]]:
    return [(missing.state, missing.what, missing.ranks, missing.name) for missing in found.missing]


def replicas(
    ranks: Iterable[int] = range(4),
    steps: Iterable[int] = range(4),
    *,
    off: Iterable[tuple[int, int, str]] = (),
) -> Replicas:
    """Make data-parallel ranks, of which some are off in (rank, step, tensor)."""
    made = Replicas()
    wrong = set(off)
    for step in steps:
        for rank in ranks:
            contents = {ACTIVATION: 1000 * step + rank + 1}
            for number, name in enumerate((WEIGHT, STATE, REDUCED, NORM)):
                bad = 500 + rank if (rank, step, name) in wrong else 0
                contents[name] = 10_000 * (step + 1) + 1000 * number + bad
            made.put(rank, step, contents)
    return made


def on_a_mesh(off: Iterable[tuple[int, int, str]] = (), tensor: int = 2, data: int = 3) -> Replicas:
    """Ranks on a grid: `tensor` parts of a matrix, each held by `data` replicas."""
    made, wrong = Replicas(), set(off)
    for step in range(4):
        for rank in range(tensor * data):
            part, replica = rank % tensor, rank // tensor
            contents = {
                "AllReduce.forward.output.0": 10_000 * (step + 1) + replica,
                WEIGHT: 20_000 * (step + 1) + part,
                NORM: 30_000 * (step + 1),
                ACTIVATION: 50_000 * (step + 1) + rank,
            }
            made.put(
                rank,
                step,
                {name: content + 500 * ((rank, step, name) in wrong) for name, content in contents.items()},
            )
    return made
