"""Shapes, types and memory formats in DumpData files are those of their headers, or a problem."""

import pytest

from tests.dump_data_reading import BYTES, headers_of, only, put_together
from tests.dump_data_writer import (
    DATA_TYPES,
    FORMAT_CODES,
    Tensor,
    dump_data,
)
from workers.arrays.device_format import DeviceLayout
from workers.dump.formats.dump_data import MAX_PADDING_BYTES
from workers.errors import UnreadableTensor


@pytest.mark.parametrize(
    ("shape", "original", "nbytes", "expected"),
    [
        ((), None, 4, ()),
        ((), (), 4, ()),
        ((1,), (), 4, ()),
        ((1,), None, 4, (1,)),
        ((1,), (1,), 4, (1,)),
        ((1, 1), (), 4, (1, 1)),
        ((3,), (), 12, (3,)),
        ((), None, 24, (6,)),
        ((), (2, 3), 24, (2, 3)),
        ((), (2, 2), 24, (6,)),
        ((), None, 26, (6,)),
        ((), None, 0, (0,)),
        ((0, 4), (0, 4), 0, (0, 4)),
        ((0, 4), None, 0, (0, 4)),
        ((6,), (2, 3), 24, (2, 3)),
        ((2, 3), (-1, 3), 24, (2, 3)),
        ((0,), (0, 2**61, 2**61), 0, (0,)),
        ((), (0, 2**61, 2**61), 0, (0,)),
    ],
)
def test_shape(
    shape: tuple[int, ...], original: tuple[int, ...] | None, nbytes: int, expected: tuple[int, ...]
) -> None:
    """Of float32 in ND; the original shape may be missing, empty, not known or impossible."""
    found = only(Tensor(bytes(nbytes), shape=shape, original_shape=original))
    assert (found.shape, found.problem, found.device) == (expected, "", None)


def test_padding_is_kept_beside_the_payload() -> None:
    content = dump_data([Tensor(b"12345678padding", shape=(2,))], [Tensor(b"12345678rest", shape=(2,))])
    first, second = headers_of(content)
    assert (first.nbytes, second.lead, second.nbytes, second.tail) == (8, b"padding", 8, b"rest")
    assert put_together(content, [first, second]) == content


@pytest.mark.parametrize("padding", [MAX_PADDING_BYTES, MAX_PADDING_BYTES + 1])
def test_long_padding_makes_a_tensor_of_bytes(padding: int) -> None:
    content = dump_data([Tensor(bytes(8 + padding), shape=(2,))])
    (found,) = headers_of(content)
    if padding == MAX_PADDING_BYTES:
        assert (found.element.name, found.shape, found.problem) == ("float32", (2,), "")
    else:
        assert (found.element.name, found.shape) == ("uint8", (8 + padding,))
        assert (found.declared_dtype, found.problem[-14:]) == ("DT_FLOAT", "; kept as bytes"[-14:])
    assert put_together(content, [found]) == content


def test_shape_larger_than_the_payload_is_damage() -> None:
    with pytest.raises(
        UnreadableTensor, match=r"input 0 has 20 bytes, fewer than the 24 of float32, shape \(2, 3\)"
    ):
        headers_of(dump_data([Tensor(bytes(20), shape=(2, 3))]))


@pytest.mark.parametrize("shape", [(2**40, 2**40), (0, 2**61, 2)])
def test_shape_beyond_all_memory_is_damage(shape: tuple[int, ...]) -> None:
    with pytest.raises(UnreadableTensor, match="more bytes than there are addresses"):
        headers_of(dump_data([BYTES, Tensor(b"" if 0 in shape else bytes(8), shape=shape)]))


def test_opaque_type_of_unknown_packing_keeps_its_bytes() -> None:
    """Four 6-bit elements in three bytes: whether they are packed so is not settled."""
    found = only(Tensor(bytes(3), DATA_TYPES["float6_e2m3"], (4,)))
    assert (found.element.name, found.shape, found.nbytes) == ("float6_e2m3", (3,), 3)
    assert "packing" in found.problem


@pytest.mark.parametrize(
    ("code", "element", "declared"),
    [
        (0, "uint8", "DT_UNDEFINED"),
        (13, "uint8", "DT_STRING"),
        (23, "uint8", "DT_RESOURCE"),
        (24, "uint8", "DT_STRING_REF"),
        (25, "uint8", "DT_DUAL"),
        (26, "uint8", "DT_VARIANT"),
        (43, "uint8", "data_type 43"),
        (2**31 - 1, "uint8", "data_type 2147483647"),
        (-1, "uint8", "data_type -1"),
        (14, "int8", "DT_DUAL_SUB_INT8"),
        (15, "uint8", "DT_DUAL_SUB_UINT8"),
        (18, "int8", "DT_QINT8"),
        (21, "uint8", "DT_QUINT8"),
    ],
)
def test_type_without_an_element_type_says_what_it_was(code: int, element: str, declared: str) -> None:
    found = only(Tensor(b"abcdefgh", code, (8,)))
    assert (found.element.name, found.shape, found.declared_dtype) == (element, (8,), declared)


@pytest.mark.parametrize(("name", "code"), FORMAT_CODES.items())
def test_format_has_its_name(name: str, code: int) -> None:
    found = only(Tensor(bytes(24), shape=(2, 3), format=code))
    assert (found.format, found.shape, found.device) == (name, (2, 3), None)


def test_device_format_leads_to_the_host_shape() -> None:
    tensor = Tensor(
        bytes(2 * 2 * 2 * 16 * 16),
        DATA_TYPES["float16"],
        shape=(2, 2, 16, 16),
        original_shape=(20, 30),
        format=FORMAT_CODES["FRACTAL_NZ"],
    )
    found = only(tensor)
    assert (found.shape, found.nbytes) == ((20, 30), 2048)
    assert found.device == DeviceLayout("FRACTAL_NZ", (2, 2, 16, 16))


@pytest.mark.parametrize(("code", "sub_format"), [(4, 2), (2 << 8 | 4, 0)])
def test_groups_of_a_convolution(code: int, sub_format: int) -> None:
    """Two groups of 16 outputs and 16 channels, which fill their blocks."""
    tensor = Tensor(
        bytes(2 * 2 * 1 * 16 * 16),
        DATA_TYPES["float16"],
        shape=(2, 1, 16, 16),
        original_shape=(32, 16, 1, 1),
        format=code,
        sub_format=sub_format,
    )
    assert only(tensor).device == DeviceLayout("FRACTAL_Z", (2, 1, 16, 16), groups=2)


def test_device_format_that_does_not_fit_stays_in_device_shape() -> None:
    tensor = Tensor(
        bytes(4 * 2 * 2 * 16 * 16),
        shape=(2, 2, 16, 16),
        original_shape=(100, 30),
        format=FORMAT_CODES["FRACTAL_NZ"],
    )
    found = only(tensor)
    assert (found.shape, found.device, found.format) == ((2, 2, 16, 16), None, "FRACTAL_NZ")
    assert found.problem == "kept in device shape: FRACTAL_NZ does not convert it to (100, 30)"


def test_permuted_axes_are_a_device_layout() -> None:
    tensor = Tensor(bytes(480), shape=(2, 4, 5, 3), original_shape=(2, 3, 4, 5), format=FORMAT_CODES["NHWC"])
    found = only(tensor)
    assert (found.shape, found.device) == ((2, 3, 4, 5), DeviceLayout("NHWC", (2, 4, 5, 3)))
