"""Why a choice may be empty: another case, a similar name, or a rank that the store does not have."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from ingest.cli.tensor_options import Conditions
from ingest.reader.catalog import Catalog
from ingest.reader.choice import Choice
from ingest.reader.indexed_step import COLUMNS
from ingest.reader.ranges import format_ranges
from ingest.reader.tensor_filter import checked_role
from workers.arrays.filter import Filter
from workers.errors import DamagedStore
from workers.rules.names import fits, hint_of_case, near
from workers.store.roles import ROLES

#: Steps whose names are compared.
_STEPS = 8
_QUOTED = re.compile(r"'([^']+)'|\"([^\"]+)\"")


def hints(
    store: Catalog,
    rank: Choice,
    step: Choice,
    chosen: Conditions,
) -> list[str]:
    """Return what may be wrong with conditions that no tensor fulfils; nothing if none of it is known.

    Reads the index of a few steps.
    """
    known = _Known.of(store, rank, step)
    name, op_type, where = chosen.get("name"), chosen.get("op_type"), chosen.get("where")
    answers = [
        f"No tensor has the {label} {wanted}; there are: {', '.join(sorted(values)) or 'none'}"
        for label, wanted, values in known.labels(chosen)
        if wanted not in values
    ]
    if op_type is not None and op_type not in known.types:
        answers.append(_of_type(op_type, list(known.types)))
    if isinstance(name, str):
        answers.append(hint_of_case(name, list(known.names)) or _of_name(name, list(known.names)))
    if where is not None:
        answers += _of_condition(store, where, list(known.types))
    return list(filter(None, answers))


def _of_name(wanted: str, names: Sequence[str]) -> str:
    nearest = [] if any(map(fits(wanted), names)) else near(wanted, names)
    return f"No tensor is named like {wanted}; near: {', '.join(nearest)}" if nearest else ""


def _of_condition(store: Catalog, where: str, types: Sequence[str]) -> Iterator[str]:
    """Yield what may be wrong with a condition: text that no row has, ranks and steps."""
    texts = [first or second for first, second in _QUOTED.findall(where)]
    yield from (_of_type(text, types, only_case=True) for text in texts if text not in types)
    yield from (
        f"A condition compares whole text: --name {text!r} is a pattern" for text in texts if "*" in text
    )
    used = Filter(where, COLUMNS).names
    if "role" in used:
        yield from (_of_role(text) for text in texts if text not in ROLES)
    if used & {"rank", "step"}:
        yield f"The store has ranks {format_ranges(store.ranks)} and steps {format_ranges(store.steps)}."


def _of_role(wanted: str) -> str:
    nearest = near(wanted, ROLES)
    return f"{wanted} is not a role; near: {', '.join(nearest)}" if nearest else ""


def _of_type(wanted: str, types: Sequence[str], *, only_case: bool = False) -> str:
    other_case = [known for known in types if known.lower() == wanted.lower()]
    if other_case:
        return f"Types are case-sensitive: {' or '.join(other_case)} instead of {wanted}"
    nearest = [] if only_case else near(wanted, types)
    return f"No operator is of type {wanted}; near: {', '.join(nearest)}" if nearest else ""


@dataclass(frozen=True, slots=True)
class _Known:
    """What tensors of a few steps have, each in the order in which it was found."""

    names: dict[str, None]
    types: dict[str, None]
    roles: dict[str, None]
    kinds: dict[str, None]
    graphs: dict[str, None]

    @classmethod
    def of(cls, store: Catalog, rank: Choice, step: Choice) -> Self:
        known = cls({}, {}, {}, {}, {})
        for opened in store.select(rank, step, damages=[])[-_STEPS:]:
            try:
                tensors = opened.tensors()
            except DamagedStore:  # named already
                continue
            known.names.update((tensor.name, None) for tensor in tensors)
            known.types.update((tensor.op_type, None) for tensor in tensors if tensor.op_type)
            known.roles.update((tensor.role, None) for tensor in tensors if tensor.role)
            known.kinds.update((tensor.io, None) for tensor in tensors if tensor.io)
            known.graphs.update((tensor.graph, None) for tensor in tensors if tensor.graph)
        return known

    def labels(self, chosen: Conditions) -> Iterator[tuple[str, str, Collection[str]]]:
        """Yield conditions on labels: the label, the wanted value, and those there are."""
        for label, values in (("role", self.roles), ("io", self.kinds), ("graph", self.graphs)):
            wanted = chosen.get(label)
            if isinstance(wanted, str):
                yield label, checked_role(wanted) if label == "role" else wanted, values
