"""Fields of protobuf messages, walked over without parsing them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.dump.formats.tensor_proto import LENGTH_DELIMITED, FieldWalk, WireField, varint
from workers.errors import UnreadableTensor


def fields_of(content: bytes, *, limit: int = 1000, end: int | None = None) -> list[WireField]:
    walk = FieldWalk(lambda offset, nbytes: content[offset : offset + nbytes], limit=limit)
    return list(walk.fields(0, len(content) if end is None else end))


def delimited(number: int, value: bytes) -> bytes:
    return varint(number << 3 | LENGTH_DELIMITED) + varint(len(value)) + value


@pytest.mark.parametrize(
    ("value", "encoded"), [(0, b"\x00"), (127, b"\x7f"), (128, b"\x80\x01"), (300, b"\xac\x02")]
)
def test_varints_are_those_of_the_specification(value: int, encoded: bytes) -> None:
    assert varint(value) == encoded


@given(st.lists(st.tuples(st.integers(1, 2**29 - 1), st.binary(max_size=6000)), max_size=5))
def test_every_field_is_found_with_its_value(values: list[tuple[int, bytes]]) -> None:
    """Also values that are longer than what is read at a time."""
    content = b"".join(delimited(number, value) for number, value in values)
    found = [(field.number, content[field.value : field.end]) for field in fields_of(content)]
    assert found == values


def test_countless_fields_are_refused() -> None:
    """Two bytes can become an object of hundreds."""
    with pytest.raises(UnreadableTensor, match="more than 10 fields"):
        fields_of(varint(1 << 3) + b"\x01" + (varint(1 << 3) + b"\x01") * 10, limit=10)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (varint(1 << 3 | 3), "no valid protobuf field at byte 0"),
        (varint(0) + b"\x01", "no valid protobuf field at byte 0"),
        (delimited(1, b"12345")[:-1], "extends to byte 7, beyond the end at 6"),
        (b"\x08" + b"\xff" * 20, "number of more than 10 bytes"),
        (b"\x08\x80", "ends inside a number"),
    ],
)
def test_damage_is_named(content: bytes, message: str) -> None:
    with pytest.raises(UnreadableTensor, match=message):
        fields_of(content)


@given(st.binary(max_size=40))
def test_any_bytes_are_fields_or_refused(content: bytes) -> None:
    try:
        fields = fields_of(content)
    except UnreadableTensor:
        return
    assert [field.begin for field in fields] == [0, *(field.end for field in fields)][: len(fields)]
