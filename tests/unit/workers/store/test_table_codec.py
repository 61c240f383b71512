"""One table as its chunk: any reader of Zarr can decode it."""

import numpy as np
import pytest
from numcodecs import VLenUTF8, Zstd

from workers.errors import DumpError
from workers.store import table_codec, untrusted
from workers.store.packed.shards import without_crc32c


def test_a_table_that_no_reader_would_decode_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted, "MAX_TABLE_NBYTES", 100)
    with pytest.raises(DumpError, match="a table of 800 bytes; the limit is 100"):
        table_codec.encode(np.zeros((10, 10)), "float64")


@pytest.mark.parametrize("rows", [0, 1, 31, 32, 33, 100])
def test_texts_are_encoded_as_by_the_codec(rows: int) -> None:
    """However many are encoded at a time, any reader of Zarr can decode them."""
    labels = np.array([f"{row} \x80 ä" * (row % 7) for row in range(3 * rows)], object).reshape(rows, 3)
    encoded = table_codec.encode(labels, "string")
    assert Zstd().decode(without_crc32c(encoded, "here")) == bytes(VLenUTF8().encode(labels.reshape(-1)))
