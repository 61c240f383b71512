"""What a device computes is what the compiled statistics compute of the same elements."""

from typing import Any

import numpy as np
import pytest

from ingest.recording import snapshots
from ingest.recording.snapshots import Camera, merge_pieces, pieces_of
from tests.unit.ingest.recording.test_snapshots import NUMBERS, of_type


@pytest.mark.parametrize("name", [name for name in NUMBERS if name not in ("uint64", "complex32")])
@pytest.mark.parametrize("piece", [5, 1 << 24])
def test_pieces_merge_to_the_statistics_of_the_whole(
    name: str, piece: int, torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "_PIECE", piece)
    tensor = of_type(name, torch)
    merged = merge_pieces(pieces_of(tensor, torch).numpy(), is_complex=tensor.is_complex())
    expected = Camera(torch).take(tensor, elements=False).statistics()
    np.testing.assert_allclose(merged, np.array(expected), rtol=1e-6)


def test_a_tensor_without_finite_elements_has_counts_only(torch: Any) -> None:
    for tensor in (torch.zeros(0), torch.full((3,), torch.nan)):
        merged = merge_pieces(pieces_of(tensor, torch).numpy(), is_complex=False)
        assert merged[:2] == (tensor.numel(), tensor.numel())
        assert np.isnan(merged[7:]).all()
