"""Sizes that bytes state about themselves are compared before memory is taken."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numcodecs import VLenUTF8, Zstd

from workers.store import untrusted

#: A frame that states a terabyte: magic, a descriptor for eight bytes of size, the size.
TERABYTE = b"\x28\xb5\x2f\xfd" + bytes([0xE0]) + (1 << 40).to_bytes(8, "little")


@given(st.binary(min_size=1, max_size=70_000))
def test_a_frame_of_the_expected_size_is_decoded(content: bytes) -> None:
    """Of every width of the field that states the size."""
    frame = bytes(Zstd(level=1).encode(content))
    assert untrusted.zstd(frame, exactly=len(content)) == content
    assert untrusted.zstd(frame, at_most=len(content)) == content


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_791, 65_792, 70_000])
def test_a_frame_of_another_size_is_refused(size: int) -> None:
    frame = bytes(Zstd(level=1).encode(bytes(size)))
    for wrong in (size - 1, size + 1):
        with pytest.raises(ValueError, match=f"holds {size} bytes instead of {wrong}"):
            untrusted.zstd(frame, exactly=wrong)
    if size:
        with pytest.raises(ValueError, match="instead of at most"):
            untrusted.zstd(frame, at_most=size - 1)


def test_a_frame_of_a_terabyte_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(ValueError, match="1099511627776 bytes instead of at most 1073741824"):
        untrusted.zstd(TERABYTE)


@given(st.lists(st.text(st.characters(codec="utf-8")), max_size=9))
def test_texts_come_back_if_their_number_is_right(texts: list[str]) -> None:
    raw = bytes(VLenUTF8().encode(np.array(texts, object)))
    assert list(untrusted.texts(raw, len(texts))) == texts
    with pytest.raises(ValueError, match=f"does not hold {len(texts) + 1} texts"):
        untrusted.texts(raw, len(texts) + 1)


@pytest.mark.parametrize("length", [-1, 1000, 2**31 - 1])
def test_a_text_with_an_impossible_length_is_refused(length: int) -> None:
    raw = bytearray(VLenUTF8().encode(np.array(["four"], object)))
    raw[4:8] = length.to_bytes(4, "little", signed=True)
    with pytest.raises(ValueError, match=r"impossible|buffer|corrupt"):
        untrusted.texts(bytes(raw), 1)
