"""Origin on random programs of several ranks, in which NaN is planted: the truth is known by construction."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import ingest
from tests.stores import MadeDump, MadeRun, Values, ingest_directly

Place = tuple[int, int, int]
"""Step, rank, operator."""
TYPES = ("Add", "Neg", "AllReduce", "Greater")
_unlike_all_others = count(1)


@dataclass(frozen=True)
class Op:
    op_type: str
    reads: tuple[int, ...]
    """0 is the input of the network, 1 its parameter, 2 the output of the first operator, and so on."""

    @property
    def is_collective(self) -> bool:
        return self.op_type == "AllReduce"


@dataclass(frozen=True)
class Program:
    """The same on every rank, in every step; at its end the last output updates the parameter."""

    ops: tuple[Op, ...]
    ranks: int
    steps: int
    planted: frozenset[Place]
    clocks: tuple[int, ...]


@st.composite
def programs(draw: st.DrawFn, most_planted: int) -> Program:
    ops = []
    for number in range(draw(st.integers(1, 7))):
        op_type = draw(st.sampled_from(TYPES))
        reads = st.integers(0, number + 1)
        ops.append(Op(op_type, tuple(draw(reads) for _ in range(2 if op_type == "Add" else 1))))
    ranks, steps = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    local = [number for number, op in enumerate(ops) if op.op_type in ("Add", "Neg")]
    if not local:
        ops.append(Op("Neg", (0,)))
        local = [len(ops) - 1]
    place = st.tuples(st.integers(0, steps - 1), st.integers(0, ranks - 1), st.sampled_from(local))
    planted = draw(st.frozensets(place, min_size=1, max_size=most_planted))
    clocks = tuple(draw(st.integers(10**15, 2 * 10**15)) for _ in range(ranks))
    return Program(tuple(ops), ranks, steps, planted, clocks)


@dataclass
class Truth:
    """What ran, and what was bad."""

    births: list[Place] = field(default_factory=list)
    touched: set[Place] = field(default_factory=set)
    """Calls that read or gave NaN."""
    steps: set[int] = field(default_factory=set)


def values(*, bad: bool) -> Values:
    """Return an array that is like no other."""
    number = float(next(_unlike_all_others))
    return np.array([number, np.nan if bad else 1.0, 2.0], np.float32)


def is_bad(tensor: Values) -> bool:
    return bool(np.isnan(tensor.astype(np.float32)).any())


def play(program: Program, run: MadeRun) -> Truth:
    """Run a program, dump it, and note the truth."""
    truth = Truth()
    run.clocks.update(enumerate(program.clocks))
    parameters = [values(bad=False) for _ in range(program.ranks)]
    for step in range(program.steps):
        known = [[values(bad=False), parameters[rank]] for rank in range(program.ranks)]
        for number, op in enumerate(program.ops):
            inputs = [[known[rank][place] for place in op.reads] for rank in range(program.ranks)]
            for rank, output in enumerate(outputs(program, truth, (step, number), inputs)):
                run.op(f"{op.op_type}.op{number}", inputs[rank], [output], rank=rank, step=step)
                known[rank].append(output)
        for rank in range(program.ranks):
            gradient = known[rank][-1]
            before, parameters[rank] = (
                parameters[rank],
                values(bad=is_bad(gradient) or is_bad(parameters[rank])),
            )
            if is_bad(before) or is_bad(gradient):
                truth.touched.add((step, rank, len(program.ops)))
            run.op("ApplyMomentum.opt", [before, gradient], [parameters[rank]], rank=rank, step=step)
            run.parameter("w", parameters[rank], rank=rank, step=step)
    truth.steps = {step for step, _, _ in truth.touched}
    return truth


def outputs(program: Program, truth: Truth, at: tuple[int, int], inputs: list[list[Values]]) -> list[Values]:
    """Return what one operator gives on each rank."""
    step, number = at
    op = program.ops[number]
    bad = [any(map(is_bad, of)) for of in inputs]
    if op.is_collective:
        given = values(bad=any(bad))
        found = [given] * program.ranks
    elif op.op_type == "Greater":
        found = [np.array([True, False, True])] * program.ranks
    else:
        found = []
        for rank in range(program.ranks):
            planted = (step, rank, number) in program.planted
            found.append(values(bad=bad[rank] or planted))
            if planted and not bad[rank]:
                truth.births.append((step, rank, number))
    for rank in range(program.ranks):
        if bad[rank] or is_bad(found[rank]):
            truth.touched.add((step, rank, number))
    return found


def ask(program: Program) -> tuple[Truth, ingest.OriginAnswer]:
    with tempfile.TemporaryDirectory() as directory:
        run = MadeRun(MadeDump(Path(directory) / "dump"))
        truth = play(program, run)
        ingest_directly(run.dump.root, Path(directory) / "run.zarr")
        return truth, ingest.origin(ingest.open_store(Path(directory) / "run.zarr"))


@given(programs(most_planted=1))
@settings(max_examples=25)
def test_planted_nan_is_found_and_followed(program: Program) -> None:
    truth, answer = ask(program)
    ((step, rank, number),) = truth.births
    assert (answer.step, answer.rank, answer.op_name) == (step, rank, f"op{number}")
    assert (answer.how, answer.what, answer.alternatives) == ("born", "NaN", ())
    followed = {place for place in truth.touched if place[0] == step}
    assert set(answer.spread.ranks) == {rank for _, rank, _ in followed}
    assert answer.spread.operators == len(followed) - 1
    assert {later.step for later in answer.spread.steps} == truth.steps - {step}


@given(programs(most_planted=3))
@settings(max_examples=25)
def test_of_several_the_first_is_named_and_the_others_beside_it(program: Program) -> None:
    truth, answer = ask(program)
    first = min(truth.births)[0]
    births = {(rank, number) for step, rank, number in truth.births if step == first}
    named = [(answer.rank, answer.op_name), *((other.rank, other.op_name) for other in answer.alternatives)]
    assert answer.step == first
    assert {(rank, f"op{number}") for rank, number in births} == set(named)

    def synchronisations(number: int) -> int:
        return sum(op.is_collective for op in program.ops[:number])

    # What has seen fewer collectives cannot have come after what has seen more.
    least = min(synchronisations(number) for _, number in births)
    assert answer.op_name is not None
    assert synchronisations(int(answer.op_name.removeprefix("op"))) == least
