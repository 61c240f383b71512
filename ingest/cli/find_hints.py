"""Why a choice may be empty: another case, a similar name, or a rank that the store does not have."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ingest.cli.options import Conditions
from ingest.reader.catalog import Catalog
from ingest.reader.choice import Choice
from ingest.reader.ranges import named_ranges
from ingest.reader.step import COLUMNS
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
    """Return possible reasons why no tensor fulfils the conditions; empty if none is known.

    Reads the index of a few steps.
    """
    known = _known(store, rank, step)
    name, op_type, where = chosen.get("name"), chosen.get("op_type"), chosen.get("where")
    answers = [_of_label(label, chosen.get(label), known[label]) for label in ("role", "io", "graph")]
    if op_type is not None and op_type not in known["op_type"]:
        answers.append(_of_type(op_type, known["op_type"]))
    if isinstance(name, str):
        answers.append(hint_of_case(name, known["name"]) or _of_name(name, known["name"]))
    if where is not None:
        answers += _of_condition(store, where, known["op_type"])
    return list(filter(None, answers))


def _of_label(label: str, wanted: object, values: Sequence[str]) -> str:
    if not isinstance(wanted, str):
        return ""
    wanted = checked_role(wanted) if label == "role" else wanted
    there = f"No tensor has the {label} {wanted}; there are: {', '.join(sorted(values)) or 'none'}"
    return "" if wanted in values else there


def _of_name(wanted: str, names: Sequence[str]) -> str:
    nearest = [] if any(map(fits(wanted), names)) else near(wanted, names)
    return f"No tensor is named like {wanted}; near: {', '.join(nearest)}" if nearest else ""


def _of_condition(store: Catalog, where: str, types: Sequence[str]) -> Iterator[str]:
    """Yield possible mistakes in a condition: text that no row has, ranks and steps."""
    texts = [first or second for first, second in _QUOTED.findall(where)]
    used = Filter(where, COLUMNS).names
    for text in texts:
        yield _of_text(text, types, is_role="role" in used)
    if used & {"rank", "step"}:
        yield f"The store has {named_ranges('rank', store.ranks)} and {named_ranges('step', store.steps)}."


def _of_text(text: str, types: Sequence[str], *, is_role: bool) -> str:
    if "*" in text:
        return f"A condition compares whole text: --name {text!r} is a pattern"
    if text not in types and (hint := _of_type(text, types, only_case=True)):
        return hint
    return _of_role(text) if is_role and text not in ROLES else ""


def _of_role(wanted: str) -> str:
    nearest = near(wanted, ROLES)
    return f"{wanted} is not a role; near: {', '.join(nearest)}" if nearest else ""


def _of_type(wanted: str, types: Sequence[str], *, only_case: bool = False) -> str:
    other_case = [known for known in types if known.lower() == wanted.lower()]
    if other_case:
        return f"Types are case-sensitive: {' or '.join(other_case)} instead of {wanted}"
    nearest = [] if only_case else near(wanted, types)
    return f"No operator is of type {wanted}; near: {', '.join(nearest)}" if nearest else ""


def _known(store: Catalog, rank: Choice, step: Choice) -> dict[str, list[str]]:
    """Return the values that tensors of a few steps have, by label, in the order in which they come."""
    values: dict[str, dict[str, None]] = {label: {} for label in ("name", "op_type", "role", "io", "graph")}
    for opened in store.select(rank, step, damages=[])[-_STEPS:]:
        try:
            tensors = opened.tensors()
        except DamagedStore:  # named already
            continue
        for label, known in values.items():
            known.update((getattr(tensor, label), None) for tensor in tensors)
    return {label: list(filter(None, known)) for label, known in values.items()}
