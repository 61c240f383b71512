"""The npy header parser believes nothing that the file does not bear out."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.npy_files import npy_bytes, npy_header
from workers.dump.formats.header import Truncated
from workers.dump.formats.npy import MAGIC, MAX_HEADER_BYTES, header_length, parse_header
from workers.errors import UnreadableTensor

FLOATS = npy_bytes(np.arange(6, dtype="<f4").reshape(2, 3))


def header_of(text: str, version: int = 1) -> bytes:
    encoded = text.encode("utf-8")
    length = len(encoded).to_bytes(2 if version == 1 else 4, "little")
    return MAGIC + bytes([version, 0]) + length + encoded


@pytest.mark.parametrize("version", [1, 2, 3])
def test_every_version_of_the_format_is_read(version: int) -> None:
    header = npy_header("<f8", (3, 4), version=version)
    found = parse_header(header, file_size=len(header) + 96)
    assert (found.element.name, found.shape, found.nbytes, found.lead) == ("float64", (3, 4), 96, header)


def test_mindspore_bfloat16_is_known_although_numpy_refuses_it() -> None:
    header = npy_header("<E2", (5,))
    assert parse_header(header, file_size=len(header) + 10).element.name == "bfloat16"


@pytest.mark.parametrize("length", range(0, len(FLOATS), 7))
def test_short_file_may_still_grow(length: int) -> None:
    """`Truncated` keeps a step open; a plain `UnreadableTensor` would quarantine a file in the making."""
    with pytest.raises(Truncated):
        parse_header(FLOATS[:length], file_size=length)


def test_long_file_is_no_tensor_of_that_header() -> None:
    with pytest.raises(UnreadableTensor, match="accounts for only") as found:
        parse_header(FLOATS + b"x", file_size=len(FLOATS) + 1)
    assert not isinstance(found.value, Truncated)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "42",
        "{}",
        "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'more': 1}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': [2]}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (True,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2.0,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (%s)}" % ("1," * 65),
        "{'descr': '<f4', 'fortran_order': False, 'shape': (0x%s,)}" % ("f" * 9000),
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<U0', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': 'nonsense', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': None, 'fortran_order': False, 'shape': (1,)}",
        "{'descr': 5, 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '(2,)<f4', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '|S99999999999999', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '(99999,99999,99999)f8', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': [('a', '<f4'), ('a', '<f4')], 'fortran_order': False, 'shape': (1,)}",
        "{'descr': [[]], 'fortran_order': False, 'shape': (1,)}",
        "{'descr': [('a',)], 'fortran_order': False, 'shape': (1,)}",
        "{'descr': [1], 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '[1', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '[%s1]', 'fortran_order': False, 'shape': (1,)}" % ("-" * 50_000),
        "{'descr': '\\ud800', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '[(\"\\udc80\", \"<f4\")]', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '[{[]: 1}]', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': (((1,),),), 'fortran_order': False, 'shape': (1,)}",
        "{'descr': {'names': ['a']}, 'fortran_order': False, 'shape': (1,)}",
        "{[]: 1}",
        "{'descr': {[]: 1}}",
        "__import__('os').system('true')",
        "(" * 5000,
        "-" * 30000 + "1",
        "1" + "+1" * 15000,
        "\0",
    ],
)
def test_nonsense_in_a_header_is_unreadable_and_nothing_else(text: str) -> None:
    """Any other exception would end the watcher instead of quarantining one file."""
    head = header_of(text)
    with pytest.raises(UnreadableTensor):
        parse_header(head, file_size=len(head) + 8)


@pytest.mark.parametrize("shape", [(2**62 - 1, 0), (2**31, 0, 2**31)])
def test_impossible_axes_are_refused_also_where_another_is_empty(shape: tuple[int, ...]) -> None:
    """The sizes agree, zero bytes, but numpy cannot make such an array: reading it back would fail."""
    head = npy_header("<f8", shape)
    with pytest.raises(UnreadableTensor, match="addresses"):
        parse_header(head, file_size=len(head))


def test_overlong_header_is_refused_before_it_is_read() -> None:
    head = MAGIC + b"\x02\x00" + (2**32 - 1).to_bytes(4, "little")
    with pytest.raises(UnreadableTensor, match=str(MAX_HEADER_BYTES)):
        header_length(head)


literals = st.recursive(
    st.one_of(
        st.integers(),
        st.booleans(),
        st.none(),
        st.text(max_size=5),
        st.sampled_from(["<f4", "|O", "[", "<E2"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from(["a", "names", "formats"]), inner, max_size=2),
    ),
    max_leaves=8,
)
plausible = st.builds(
    lambda descr, order, shape: f"{{'descr': {descr!r}, 'fortran_order': {order!r}, 'shape': {shape!r}}}",
    literals,
    st.one_of(st.booleans(), literals),
    st.one_of(st.lists(st.integers(-1, 2**70), max_size=4).map(tuple), literals),
)


@given(head=st.one_of(st.binary(max_size=200), plausible.map(header_of)), more=st.integers(0, 64))
@example(head=b"", more=0)
def test_any_bytes_parse_or_are_unreadable(head: bytes, more: int) -> None:
    """A dump is untrusted input."""
    try:
        found = parse_header(head, file_size=len(head) + more)
    except UnreadableTensor:
        return
    assert found.offset + found.nbytes == len(head) + more
    # What is accepted can be read: no dtype or shape that numpy itself refuses.
    element = np.zeros(0, found.element.to_numpy())
    assert element.dtype.itemsize == found.element.itemsize
    if found.size == 0:
        element.reshape(found.shape)
