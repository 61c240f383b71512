"""What collectives make of the pieces of all ranks, and modules of what the modules in them gave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from ingest.identities.definition import Array, Expectation, wide
from ingest.identities.limits import sum_error, unit_roundoff
from ingest.reader.operator_kinds import holders, is_container
from ingest.reader.step_flow import FlowCall, FlowOperand, StepFlow


def results(name: str, pieces: Sequence[Array], out: Array) -> Iterator[Expectation]:
    """Yield what a collective may return to one of the ranks.

    Args:
        name: the operator, by `plain_name`; prefixes of libraries do not matter.
        pieces: what each rank of the group gave, in order of ranks.
        out: what one of them got.
    """
    if len({piece.shape for piece in pieces}) > 1 or len({piece.dtype for piece in pieces}) > 1:
        return
    if "allreduce" in name or "reducescatter" in name:
        stack = np.stack([wide(piece) for piece in pieces])
        unit = max(unit_roundoff(out.dtype), 2.0**-24)
        error = sum_error(len(pieces), unit) * np.abs(stack).sum(0)
        count = len(pieces)
        for told, value, slack in (
            ("sum", stack.sum(0), error),
            ("mean", stack.mean(0), error / count + unit * np.abs(stack).mean(0)),
            ("max", stack.max(0), np.zeros_like(error)),
            ("min", stack.min(0), np.zeros_like(error)),
        ):
            yield from _parts(Expectation(value, slack, told), out, count)
    elif "allgather" in name:
        yield from _shaped(np.concatenate([np.atleast_1d(piece) for piece in pieces]), out)
    elif "alltoall" in name and pieces[0].ndim and pieces[0].shape[0] % len(pieces) == 0:
        chunks = [np.split(piece, len(pieces)) for piece in pieces]
        for own in range(len(pieces)):
            yield from _shaped(np.concatenate([chunk[own] for chunk in chunks]), out)
    elif "broadcast" in name:
        for piece in pieces:
            yield from _shaped(piece, out)


def _shaped(value: Array, out: Array) -> Iterator[Expectation]:
    if value.size == out.size and value.dtype == out.dtype:
        yield Expectation(value.reshape(out.shape), None)


def _parts(whole: Expectation, out: Array, count: int) -> Iterator[Expectation]:
    """Yield the whole, or each of the parts that are scattered, whichever has the size of what was got."""
    value, error = whole.value, np.asarray(whole.error)
    if value.size == out.size:
        yield Expectation(value.reshape(out.shape), error.reshape(out.shape), whole.told)
    elif value.size == out.size * count:
        parts, slacks = (np.split(each.reshape(-1), count) for each in (value, error))
        for part, slack in zip(parts, slacks, strict=True):
            yield Expectation(part.reshape(out.shape), slack.reshape(out.shape), whole.told)


#: What proves the output of a module that adds up its input and what the modules in it gave.
RESIDUAL = "sum of its parts"
#: Addends of a sum, and elements that choose between sums.
_ADDENDS, _SAMPLED = 3, 64


def calls_in(flow: StepFlow, call: FlowCall) -> list[FlowCall]:
    """Return the calls that a module made of the modules in it, in order."""
    within = [
        other
        for other in flow.calls.values()
        if call.key.op_name in holders(other.key.op_name)
        and (other.key.graph, other.key.occurrence) == (call.key.graph, call.key.occurrence)
        and is_container(other.op_type)
    ]
    names = {other.key.op_name for other in within}
    return [other for other in within if names.isdisjoint(holders(other.key.op_name))]


def parts_of(flow: StepFlow, call: FlowCall, output: FlowOperand) -> list[FlowOperand]:
    """Return what may add up to an output: the input of its module, and what modules in it gave."""
    given = [*call.inputs, *(each for other in calls_in(flow, call) for each in other.outputs)]
    return [
        each
        for each in {each.content: each for each in given}.values()
        if each.shape == output.shape and each.content != output.content
    ]


def last_of_chain(flow: StepFlow, call: FlowCall) -> FlowOperand | None:
    """Return what the last call in a sequence of modules gave; None if they are not one after another."""
    calls = calls_in(flow, call)
    if not calls or not all(len(each.outputs) == 1 and each.inputs for each in (call, *calls)):
        return None
    passed = [call.inputs[0], *(each.outputs[0] for each in calls)]
    is_chain = all(
        given.content == each.inputs[0].content for given, each in zip(passed, calls, strict=False)
    )
    return passed[-1] if is_chain else None


def sums_of(
    parts: Sequence[Array], actual: Array, tried: list[Sequence[int]]
) -> Iterator[tuple[Expectation, bool]]:
    """Yield the sums of few parts that most elements of a sample are; `tried` gets their numbers."""
    unit = max(unit_roundoff(actual.dtype), unit_roundoff(np.dtype(np.float32)))
    step = max(1, actual.size // _SAMPLED)
    shown = wide(actual).reshape(-1)[::step]
    for count in range(2, _ADDENDS + 1):
        for numbers in combinations(range(len(parts)), count):
            chosen = [parts[number] for number in numbers]
            sampled = np.array([each.reshape(-1)[::step] for each in chosen])
            error = sum_error(count, unit) * np.abs(sampled).sum(0)
            if np.mean(np.abs(sampled.sum(0) - shown) <= 2 * error) * 4 >= 3:
                tried.append(numbers)
                size = np.abs(np.array(chosen)).sum(0)
                yield Expectation(np.sum(chosen, axis=0), sum_error(count, unit) * size, RESIDUAL), False
