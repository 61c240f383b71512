"""Which tensor `dump-ingest show` is about."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import ingest
from ingest.reader.ranges import format_ranges
from workers.errors import UsageError
from workers.rules.names import hint_of_case, near

#: Names that a message suggests, at most.
_SIMILAR = 3
#: Names of which a message asks for one, at most.
_LISTED = 10


def choose_tensor(
    store: ingest.DumpStore, name: str, rank: int | None, step: int | None, graph: str | None
) -> ingest.Tensor:
    """Return the tensor of that name, or else the only one that the name matches as a glob.

    Without a rank: that of a store with a single rank. Without a step: a tensor that belongs to no step or,
    if there is none, one of the only step.

    Raises:
        UsageError: no tensor matches, or several do; or the store has several ranks or steps to choose from.
    """
    chosen = _only_rank(store) if rank is None else rank
    if step is None and not _matching(_outside(store, chosen), name, graph):
        steps = [key.step for key in store.listed(chosen) if key.step is not None]
        if len(steps) > 1:
            raise UsageError(
                f"{store.url}: rank {chosen} has {len(steps)} steps",
                hint=f"Name one with --step: {format_ranges(steps)}.",
            )
        if steps:
            return _the_tensor(store, name, chosen, steps[0], graph)
    return _the_tensor(store, name, chosen, step, graph)


def first_rank(store: ingest.DumpStore) -> int | None:
    """Return the first rank of a store; None if it is empty."""
    return next(iter(store.ranks), None)


def _only_rank(store: ingest.DumpStore) -> int:
    if len(store.ranks) == 1:
        return store.ranks[0]
    raise UsageError(
        f"{store.url}: there are {len(store.ranks)} ranks",
        hint=f"Name one with --rank: {format_ranges(store.ranks)}." if store.ranks else "The store is empty.",
    )


def _matching(tensors: Sequence[ingest.Tensor], name: str, graph: str | None) -> list[ingest.Tensor]:
    of_graph = [tensor for tensor in tensors if graph in (None, tensor.graph)]
    exact = [tensor for tensor in of_graph if tensor.name == name]
    return exact or [tensor for tensor in of_graph if fnmatchcase(tensor.name, name)]


def _the_tensor(
    store: ingest.DumpStore, name: str, rank: int, step: int | None, graph: str | None
) -> ingest.Tensor:
    tensors = _outside(store, rank) if step is None else store.tensors(rank=rank, step=step)
    matches = _matching(tensors, name, graph)
    if len(matches) == 1:
        return matches[0]
    where = f"rank {rank}" if step is None else f"rank {rank} step {step}"
    outside = " outside of its steps" if step is None else ""
    if not matches:
        names = [tensor.name for tensor in tensors]
        hint = hint_of_case(name, names) or _where_to_look(near(name, names)[:_SIMILAR])
        raise UsageError(f"{where} has no tensor {name!r}{outside}", hint=hint)
    raise UsageError(
        f"{where} has {len(matches)} tensors{outside} that match {name!r}:{_listed(matches)}",
        hint="Name one of them; --graph tells graphs apart.",
    )


def _listed(tensors: Sequence[ingest.Tensor]) -> str:
    shown = tensors[:_LISTED]
    rows = (f"graph {tensor.graph}  {tensor.name}" if tensor.graph else tensor.name for tensor in shown)
    more = [f"{len(tensors) - _LISTED} more"] if len(tensors) > _LISTED else []
    return "".join(f"\n    {row}" for row in (*rows, *more))


def _where_to_look(similar: Sequence[str]) -> str:
    return f"Similar: {', '.join(similar)}" if similar else "List them: dump-ingest ls STORE --tensors"


def _outside(store: ingest.DumpStore, rank: int) -> list[ingest.Tensor]:
    """Return the tensors of a rank that belong to no step, if any."""
    try:
        return store.step(rank, None).tensors()
    except UsageError:
        if rank not in store.ranks:
            raise
        return []
