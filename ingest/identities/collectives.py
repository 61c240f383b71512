"""What collectives make of the pieces of all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ingest.identities.definition import Array, Expectation, wide
from ingest.identities.limits import sum_error, unit_roundoff


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
