"""`show --unsharded`: a tensor that is put together from the pieces of ranks."""

from pathlib import Path

import numpy as np
import pytest

from ingest.api import open_store
from ingest.cli.show import show_whole
from ingest.reader.tensor import Tensor
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from workers.errors import UsageError


@pytest.fixture
def piece(made: MadeDump, store: Path) -> Tensor:
    """Rows 0 and 1 of a matrix; rank 1 has rows 2 and 3."""
    for rank in range(2):
        values = np.arange(6, dtype="<f4").reshape(2, 3) + 6 * rank
        made.add(values, tensor_name("Mul.m", time=1), rank=rank, step=1)
    ingest_directly(made.root, store)
    return open_store(store).tensors(rank=0)[0]


@pytest.mark.parametrize(("placement", "at"), [("shard 7", None), ("nonsense", None), ("shard 0", "9:")])
def test_what_does_not_fit_is_refused(piece: Tensor, placement: str, at: str | None) -> None:
    with pytest.raises(UsageError):
        show_whole(piece, placement, f"{at},5" if at else None, None, json=False)
