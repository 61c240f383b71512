"""Make the operands of comparisons: tensors in dump files and in stores."""

from pathlib import Path
from typing import Any

import numpy as np

from ingest.api import open_store
from tests.stores import SMALL_GRID, MadeDump, ingest_directly, plan_all, tensor_name
from workers.model import StepKey
from workers.store.model import RowKind
from workers.tasks.operands import InFile, Operand, Stored


def in_files(dump: MadeDump, *tensors: np.ndarray[Any, Any]) -> list[Operand]:
    """Write tensors into a dump, and return them as operands in its files."""
    for slot, values in enumerate(tensors):
        dump.add(values, tensor_name(slot=slot, time=slot + 1))
    (plan,) = plan_all(dump.root, dump.root.parent / "unused.zarr")
    operands = []
    for entry in sorted(plan.entries, key=lambda entry: entry.name.slot):
        header = entry.header
        assert header is not None
        operands.append(
            Operand(
                f"{plan.key} of {dump.root}",
                header.element,
                header.shape,
                entry.nbytes,
                InFile(str(dump.root), entry.source, entry.offset),
                fortran_order=header.fortran_order,
            )
        )
    return operands


def in_store(dump: MadeDump, store: Path, *tensors: np.ndarray[Any, Any]) -> list[Operand]:
    """Write tensors into a dump, ingest it, and return them as operands in the store."""
    file_operands = in_files(dump, *tensors)
    ingest_directly(dump.root, store, SMALL_GRID)
    step = open_store(str(store)).step(0, 0)
    tables = step.tables
    slots = {slot: row for row, slot in enumerate(tables.number("slot").tolist())}
    operands = []
    for slot, operand in enumerate(file_operands):
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
