"""What tests do with the Zarr view of a store."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.abc.store import ByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

import ingest
from ingest.reader.zarr_nodes import ViewElements
from ingest.reader.zarr_view import TensorView
from tests.stores import SMALL_GRID, MadeDump, ingest_directly, npy_header

PROTOTYPE = default_buffer_prototype()

_ELEMENTS: dict[tuple[tuple[int, ...], bool], ViewElements] = {}
_DIRECTORIES: list[tempfile.TemporaryDirectory[str]] = []


def view_of(store: Path, **options: Any) -> TensorView:
    """Return the view of a store."""
    view: TensorView = ingest.open_store(store).as_zarr(**options)
    return view


def collected(names: AsyncIterator[str]) -> list[str]:
    """Return everything that an asynchronous iterator yields."""

    async def collect() -> list[str]:
        return [name async for name in names]

    return asyncio.run(collect())


def read_object(
    store: TensorView | MemoryStore, key: str, byte_range: ByteRequest | None = None
) -> bytes | None:
    """Return an object of a Zarr store, or a range of it; None if it does not exist."""
    buffer = asyncio.run(store.get(key, PROTOTYPE, byte_range))
    return None if buffer is None else buffer.to_bytes()


def array_at(view: TensorView, path: str) -> zarr.Array[Any]:
    """Return the array at a path."""
    return zarr.open_array(view, path=path, mode="r")


def only_array(view: TensorView) -> zarr.Array[Any]:
    """Return the array of a view that has a single one."""
    members = zarr.open_group(view, mode="r").members(max_depth=None)
    (array,) = [node for _, node in members if isinstance(node, zarr.Array)]
    return array


def stored_elements(values: npt.NDArray[np.int16], *, fortran: bool) -> ViewElements:
    """Return the elements of a tensor in a store; each shape and order is stored once."""
    key = values.shape, fortran
    if key not in _ELEMENTS:
        _DIRECTORIES.append(tempfile.TemporaryDirectory())
        directory = Path(_DIRECTORIES[-1].name)
        dump = MadeDump(directory / "dump")
        payload = values.tobytes("F" if fortran else "C")
        dump.add(npy_header("<i2", values.shape, fortran=fortran) + payload)
        ingest_directly(dump.root, directory / "store", SMALL_GRID)
        _ELEMENTS[key] = ViewElements(ingest.open_store(directory / "store").step(0, 0), 0)
    return _ELEMENTS[key]
