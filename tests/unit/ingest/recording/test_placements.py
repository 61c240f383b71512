"""How a DTensor lies on its mesh; `tests/integration/test_recorded_ranks.py` has real ones on two ranks."""

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from ingest.layouts.recorder import RecordedPlacement
from ingest.recording.snapshots import placement_of


def test_other_tensors_have_no_placement(torch: Any) -> None:
    assert placement_of(torch.ones(2)) is None


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("names", [("dp", "tp"), None])
def test_placements_have_the_same_names_in_all_versions(names: tuple[str, ...] | None) -> None:
    tensor = import_module("torch.distributed.tensor")
    mesh = SimpleNamespace(shape=(2, 2), mesh_dim_names=names, get_coordinate=lambda: [0, 1])
    for placements, spelled in (
        ((tensor.Replicate(), tensor.Shard(1)), ("Replicate()", "Shard(1)")),
        ((tensor.Partial(), tensor.Partial("avg")), ("Partial(sum)", "Partial(avg)")),
    ):
        of = SimpleNamespace(shape=(4, 6), device_mesh=mesh, placements=placements)
        assert placement_of(of) == RecordedPlacement(
            placements=spelled,
            global_shape=(4, 6),
            mesh_shape=(2, 2),
            mesh_dim_names=names or (),
            mesh_coordinate=(0, 1),
        )
