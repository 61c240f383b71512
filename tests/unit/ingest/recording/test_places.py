"""Where a process is, by what PyTorch tells."""

from types import SimpleNamespace
from typing import Any

import pytest

from ingest.recording.record import AxisPlace, coordinates_of, rank_of


def mesh_of(names: tuple[str, ...] | None, coordinate: list[int] | None, sizes: tuple[int, ...]) -> Any:
    return SimpleNamespace(
        mesh_dim_names=names, get_coordinate=lambda: coordinate, size=lambda axis: sizes[axis]
    )


def test_a_device_mesh_tells_the_axes_that_have_several_ranks(torch: Any) -> None:
    model = torch.nn.Linear(1, 1)
    mesh = mesh_of(("dp_shard", "tp", "pp"), [1, 0, 0], (4, 2, 1))
    assert coordinates_of(torch, model, mesh) == {"dp_shard": AxisPlace(1, 4), "tp": AxisPlace(0, 2)}


@pytest.mark.parametrize(("text", "rank"), [("3", 3), ("", 0), ("x", 0)])
def test_the_rank_is_that_of_the_launcher_without_a_process_group(
    text: str, rank: int, torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", text)
    assert rank_of(torch) == rank
