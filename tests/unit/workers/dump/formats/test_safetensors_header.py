"""Headers of safetensors files that are written are those that are read."""

import numpy as np
import pytest

from workers.dump.formats.safetensors import CODES, DTYPES, TensorInFile, encode_header, read_headers

ROWS = np.arange(6, dtype="<f4").reshape(2, 3)
FLAGS = np.array([True, False, True])


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_what_is_written_is_read(metadata: dict[str, str] | None) -> None:
    tensors = [
        TensorInFile("rows", "float32", ROWS.shape, ROWS.nbytes),
        TensorInFile("flags \u00e9 \udc80", "bool", FLAGS.shape, FLAGS.nbytes),
    ]
    begin = encode_header(tensors, metadata)
    content = begin + ROWS.tobytes() + FLAGS.tobytes()
    headers = read_headers(lambda offset, nbytes: content[offset : offset + nbytes], len(content))
    assert len(begin) % 8 == 0
    assert [(header.element.name, header.shape, header.nbytes) for header in headers] == [
        ("float32", (2, 3), 24),
        ("bool", (3,), 3),
    ]
    assert headers[0].offset == len(begin)


def test_every_type_of_the_format_can_be_written() -> None:
    assert {CODES[name]: name for name in CODES} == DTYPES
