"""Which rank this process is, and where it is in the mesh of the job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from ingest.recording.torch_module import Torch, TorchModule
from workers.errors import UsageError

_AXES = ("tp", "pp", "dp", "cp", "ep", "sp", "dp_replicate", "dp_shard")
_MESH_HINT = (
    "A mesh is a torch DeviceMesh with names, or the place and size by axis: {'tp': (0, 2), 'dp': (3, 4)}."
)


class AxisPlace(NamedTuple):
    """The place of this process along one axis."""

    rank: int
    size: int


def rank_of(torch: Torch) -> int:
    """Return the rank of this process: of `torch.distributed`, else of `RANK`, else 0."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    text = os.environ.get("RANK", "")
    return int(text) if text.isascii() and text.isdecimal() else 0


def coordinates_of(torch: Torch, model: TorchModule, mesh: Any = None) -> dict[str, AxisPlace]:
    """Return the place of this process along each axis of more than one rank.

    From the mesh that the caller names; else from the meshes of DTensors among the parameters, and from
    DistributedDataParallel, whose processes are `dp`.

    Raises:
        UsageError: the mesh is not one, or has an axis of another name.
    """
    if mesh is None:
        places = _of_model(torch, model)
    elif isinstance(mesh, Mapping):
        places = _told(mesh)
    else:
        places = _of_mesh(mesh)
        if not places:
            raise UsageError("mesh: has no names of axes, or this rank is not in it", hint=_MESH_HINT)
    if unknown := [axis for axis in places if axis not in _AXES]:
        if mesh is not None:
            raise UsageError(f"mesh: no axis {unknown[0]!r}", hint=f"Axes: {', '.join(_AXES)}.")
        places = {axis: place for axis, place in places.items() if axis in _AXES}
    return {axis: place for axis, place in places.items() if place.size > 1}


def _told(mesh: Mapping[Any, Any]) -> dict[str, AxisPlace]:
    places = {}
    for axis, place in mesh.items():
        match place:
            case (int(rank), int(size)) if 0 <= rank < size:
                places[str(axis)] = AxisPlace(rank, size)
            case _:
                raise UsageError(f"mesh: {axis}={place!r} is not a place and a size", hint=_MESH_HINT)
    return places


def _of_model(torch: Torch, model: TorchModule) -> dict[str, AxisPlace]:
    places: dict[str, AxisPlace] = {}
    for parameter in model.parameters():
        if (mesh := getattr(parameter, "device_mesh", None)) is not None:
            places = _of_mesh(mesh) | places
    group = getattr(model, "process_group", None)
    if type(model).__name__ == "DistributedDataParallel" and group is not None:
        distributed = torch.distributed
        places.setdefault(
            "dp", AxisPlace(int(distributed.get_rank(group)), int(distributed.get_world_size(group)))
        )
    return places


def _of_mesh(mesh: Any) -> dict[str, AxisPlace]:
    names = getattr(mesh, "mesh_dim_names", None)
    ranks = mesh.get_coordinate() if names else None
    if not names or ranks is None:
        return {}
    places = enumerate(zip(names, ranks, strict=True))
    return {name: AxisPlace(int(rank), int(mesh.size(number))) for number, (name, rank) in places}
