"""Operands of comparisons, from files and from stores that tests make."""

from pathlib import Path
from typing import Any

import numpy as np

from ingest.api import open_store
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import SMALL_GRID, ingest_directly, plan_all
from workers.model import StepKey
from workers.store.model import RowKind
from workers.tasks.operands import InFile, Operand, Stored


def in_files(made: MadeDump, *tensors: np.ndarray[Any, Any]) -> list[Operand]:
    """Write tensors into a dump; return them as they are in its files."""
    for slot, values in enumerate(tensors):
        made.add(values, tensor_name(slot=slot, time=slot + 1))
    (plan,) = plan_all(made.root, made.root.parent / "unused.zarr")
    operands = []
    for entry in sorted(plan.entries, key=lambda entry: entry.name.slot):
        header = entry.header
        assert header is not None
        operands.append(
            Operand(
                f"{plan.key} of {made.root}",
                header.element,
                header.shape,
                entry.nbytes,
                InFile(str(made.root), entry.source, entry.offset),
                fortran_order=header.fortran_order,
            )
        )
    return operands


def in_store(made: MadeDump, store: Path, *tensors: np.ndarray[Any, Any]) -> list[Operand]:
    """Write tensors into a dump and that into a store; return them as they are in the store."""
    of_files = in_files(made, *tensors)
    ingest_directly(made.root, store, SMALL_GRID)
    step = open_store(str(store)).step(0, 0)
    tables = step.tables
    slots = {slot: row for row, slot in enumerate(tables.number("slot").tolist())}
    operands = []
    for slot, operand in enumerate(of_files):
        row = slots[slot]
        assert tables.label("kind")[row] == RowKind.TENSOR
        path = str(tables.label("array")[row])
        place = Stored(
            step.address,
            f"{step.commit.prefix}/{path}",
            step.packed_spec(path),
            int(tables.number("offset")[row]),
            int(tables.number("size")[row]),
        )
        operands.append(
            Operand(
                f"{StepKey(0, 0)} of {store}",
                operand.element,
                operand.shape,
                operand.nbytes,
                place,
                tables.digest[row].tobytes(),
                operand.fortran_order,
            )
        )
    return operands
