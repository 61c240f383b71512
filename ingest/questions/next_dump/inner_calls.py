"""The calls inside of modules, which msProbe dumps with a module at level mix.

(msProbe 26.2, `core/dump/data_dump/scope.py`: `MixRangeScope`. At level L0, a module is dumped alone.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from ingest.questions.next_dump.suspicion import OperatorId, Suspicion
from ingest.reader.catalog import Catalog
from ingest.reader.context import context_of
from ingest.reader.tensor import Tensor

#: By the name of the call of a module, the calls inside of it.
InnerCalls: TypeAlias = dict[str, set[OperatorId]]
_MODULES = ("Module.", "Cell.")


def inner_calls(store: Catalog, key: tuple[int, int]) -> InnerCalls:
    """Return the calls inside of each module in a step (rank, step), as `construct.json` tells them."""
    step, context = store.step(*key), context_of(store, key[0])
    tables = step.tables
    columns = (tables.label(name).tolist() for name in ("net", "graph", "op_type", "op_name"))
    first_rows: dict[OperatorId, int] = {}
    for row, names in enumerate(zip(*columns, strict=True)):
        first_rows.setdefault(OperatorId(*map(str, names)), row)
    inner: InnerCalls = {}
    for operator, row in first_rows.items():
        for module in context.enclosing(Tensor(step, row)) if operator.op_name else ():
            inner.setdefault(module, set()).add(operator)
    return inner


def without_wrappers(suspicion: Suspicion, inner: InnerCalls) -> Suspicion:
    """Return it without the modules around chosen calls: these calls tell what the module read and wrote.

    With the module, msProbe would dump everything else inside of it, too.
    """
    names = {suspect.operator.op_name for suspect in suspicion.suspects}
    around = {module for module, calls in inner.items() if any(call.op_name in names for call in calls)}
    return replace(
        suspicion,
        suspects=tuple(suspect for suspect in suspicion.suspects if suspect.operator.op_name not in around),
    )


def dumped_with(suspicion: Suspicion, inner: InnerCalls) -> Mapping[str, set[OperatorId]]:
    """Return the calls that are dumped with each chosen module; none if only modules are chosen."""
    is_mixed = any(not suspect.operator.op_name.startswith(_MODULES) for suspect in suspicion.suspects)
    return inner if is_mixed else {}
