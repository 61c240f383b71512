"""How a DTensor lies on the mesh of the job: what its local part alone does not tell."""

from __future__ import annotations

from typing import Any

from ingest.layouts.recorder import RecordedPlacement
from ingest.recording.torch_module import TorchTensor


def placement_of(tensor: TorchTensor) -> RecordedPlacement | None:
    """Return the placement of a DTensor on its mesh; None for any other tensor."""
    mesh, placements = getattr(tensor, "device_mesh", None), getattr(tensor, "placements", None)
    if mesh is None or placements is None:
        return None
    return RecordedPlacement(
        placements=tuple(map(_spelled, placements)),
        global_shape=tuple(tensor.shape),
        mesh_shape=tuple(mesh.shape),
        mesh_dim_names=tuple(mesh.mesh_dim_names or ()),
        mesh_coordinate=tuple(mesh.get_coordinate() or ()),
    )


def _spelled(placement: Any) -> str:
    """Return a placement as `Shard(0)`: how PyTorch prints one differs between versions."""
    if placement.is_replicate():
        return "Replicate()"
    if placement.is_partial():
        return f"Partial({placement.reduce_op})"  # also of a class of its own, such as that of embeddings
    dim = getattr(placement, "dim", None)
    return f"{type(placement).__name__}({'' if dim is None else dim})"
