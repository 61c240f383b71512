"""Element types and geometry of the tensors of torch."""

import pytest

from workers.dump.formats.pt_elements import (
    UNTYPED_STORAGE,
    check_shape,
    element_of,
    is_dense,
    is_known,
    storage_itemsize,
    type_name,
)
from workers.dump.formats.pt_pickle import RebuiltTensor
from workers.errors import UnreadableTensor


def tensor(storage: str = "torch.FloatStorage", dtype: str = "") -> RebuiltTensor:
    return RebuiltTensor(storage, "0", 6, 0, (2, 3), (3, 1), dtype)


@pytest.mark.parametrize(
    ("storage", "dtype", "name", "declared"),
    [
        ("torch.FloatStorage", "", "float32", ""),
        ("torch.BFloat16Storage", "", "bfloat16", ""),
        ("torch.ComplexFloatStorage", "", "complex64", ""),
        ("torch.QUInt8Storage", "", "uint8", "torch.quint8"),
        (UNTYPED_STORAGE, "torch.uint16", "uint16", ""),
        (UNTYPED_STORAGE, "torch.float8_e4m3fn", "float8_e4m3fn", ""),
        (UNTYPED_STORAGE, "torch.complex32", "complex32", ""),
    ],
)
def test_storage_or_the_name_next_to_it_tells_the_type(
    storage: str, dtype: str, name: str, declared: str
) -> None:
    element, called = element_of(tensor(storage, dtype), big_endian=False)
    assert (element.name, called) == (name, declared)


def test_type_without_an_array_of_its_own_is_kept_as_bytes_under_its_name() -> None:
    element, called = element_of(tensor(UNTYPED_STORAGE, "torch.bits8"), big_endian=False)
    assert (element.to_numpy().str, called) == ("|V1", "torch.bits8")


def test_big_endian_types_keep_their_order() -> None:
    element, _ = element_of(tensor(), big_endian=True)
    assert element.to_numpy().str == ">f4"
    element, called = element_of(tensor("torch.BFloat16Storage"), big_endian=True)
    assert (element.itemsize, called) == (2, "big-endian torch.bfloat16")
    assert element_of(tensor("torch.ByteStorage"), big_endian=True)[0].name == "uint8"
    element, called = element_of(tensor("torch.QInt32Storage"), big_endian=True)
    assert (element.to_numpy().str, called) == (">i4", "torch.qint32")


@pytest.mark.parametrize(
    ("storage", "dtype", "name"),
    [
        ("torch.QUInt2x4Storage", "", "torch.quint2x4"),
        ("evil.Storage", "", "evil."),
        ("torch.FloatStorage", "torch.int8", "torch.int8"),
        (UNTYPED_STORAGE, "", ""),
        (UNTYPED_STORAGE, "torch.float7", "torch.float7"),
    ],
)
def test_type_that_is_not_known_has_a_name(storage: str, dtype: str, name: str) -> None:
    unknown = tensor(storage, dtype)
    assert not is_known(unknown)
    assert type_name(unknown) == name
    assert is_known(tensor())


@pytest.mark.parametrize("shape", [(1,) * 65, (-1,), (2**62,), (0, 2**31, 2**31)])
def test_impossible_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UnreadableTensor, match=r"impossible shape|more bytes than there are addresses"):
        check_shape(shape, 4)


def test_shapes_of_arrays_are_not_refused() -> None:
    check_shape((2, 3), 4)
    check_shape((), 4)
    check_shape((0, 5), 4)


def test_dense_means_that_the_first_axis_varies_fastest() -> None:
    assert is_dense((2, 3), (1, 2))
    assert not is_dense((2, 3), (3, 1))
    assert is_dense((2, 1), (1, 99))
    assert is_dense((0, 3), (7, 7))
    assert is_dense((), ())


def test_storages_have_the_size_of_their_elements() -> None:
    assert (storage_itemsize(UNTYPED_STORAGE), storage_itemsize("torch.DoubleStorage")) == (1, 8)
    with pytest.raises(UnreadableTensor, match=r"its storage os\.system is not known"):
        storage_itemsize("os.system")
