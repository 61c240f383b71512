"""The axis of tensors in the cubes: a name for each that occurs once, and reading it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from workers.errors import DamagedStore
from workers.store.consolidated.blocks import TensorAxis, TensorKey
from workers.store.consolidated.cubes import GROUP, KEY_FIELDS, REBUILD_HINT, CubeLayouts
from workers.store.objects import ObjectStore


def unique_names(keys: Sequence[TensorKey], taken: set[str]) -> list[str]:
    """Return a name for each of `keys` that occurs once: its own if that is free, otherwise with its graph.

    `taken` has the names given before; the new ones are added to it.
    """
    names = []
    for key in keys:
        name = _free_name(key, taken)
        taken.add(name)
        names.append(name)
    return names


def _free_name(key: TensorKey, taken: set[str]) -> str:
    name = f"{key.name}~{key.copy}" if key.copy else key.name
    longest = f"{key.net}/{key.graph}/{name}"
    for candidate in (name, f"{key.graph}/{name}", longest):
        if candidate not in taken:
            return candidate
    return f"{longest}~{len(taken)}"


def read_axis(objects: ObjectStore, layouts: CubeLayouts, width: int) -> TensorAxis:
    """Read the first `width` tensors of the axis.

    Raises:
        DamagedStore: they are missing or damaged.
    """
    columns = []
    for name in KEY_FIELDS:
        layout = layouts.keys[name]
        keys = [f"{GROUP}/{key}" for key in layout.keys((width,)).values()]
        chunks = objects.get_many(keys)
        parts = []
        for key in keys:
            if key not in chunks:
                raise DamagedStore(f"{key}: missing", hint=REBUILD_HINT)
            parts.append(layout.decode(chunks[key], key))
        columns.append(np.concatenate(parts)[:width].tolist() if parts else [])
    return TensorAxis(TensorKey(*column) for column in zip(*columns, strict=True))
