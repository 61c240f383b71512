"""Element types and geometry of the tensors in `.pt` files."""

from __future__ import annotations

from workers.arrays.dtypes import ElementType, from_name, from_npy_descr
from workers.dump.formats.header import MAX_NDIM, is_addressable
from workers.dump.formats.pt_pickle import RebuiltTensor
from workers.errors import UnreadableTensor

#: Storage classes of torch (`torch/storage.py`) and our names for their elements.
_STORAGES = {
    "torch.BFloat16Storage": "bfloat16",
    "torch.BoolStorage": "bool",
    "torch.ByteStorage": "uint8",
    "torch.CharStorage": "int8",
    "torch.ComplexDoubleStorage": "complex128",
    "torch.ComplexFloatStorage": "complex64",
    "torch.DoubleStorage": "float64",
    "torch.FloatStorage": "float32",
    "torch.HalfStorage": "float16",
    "torch.IntStorage": "int32",
    "torch.LongStorage": "int64",
    # For quantised tensors: the integers, not the values that they encode.
    "torch.QInt32Storage": "int32",
    "torch.QInt8Storage": "int8",
    "torch.QUInt8Storage": "uint8",
    "torch.ShortStorage": "int16",
}
_QUANTIZED = {
    "torch.QInt32Storage": "torch.qint32",
    "torch.QInt8Storage": "torch.qint8",
    "torch.QUInt8Storage": "torch.quint8",
}
_MAX_TYPE_NAME = 40
UNTYPED_STORAGE = "torch.storage.UntypedStorage"
#: Bytes per element of the types that torch saves in an untyped storage and names next to it.
_NAMED_DTYPES = {
    "torch.bits16": 2,
    "torch.bits1x8": 1,
    "torch.bits2x4": 1,
    "torch.bits4x2": 1,
    "torch.bits8": 1,
    "torch.complex32": 4,
    "torch.float4_e2m1fn_x2": 1,
    "torch.float8_e4m3fn": 1,
    "torch.float8_e4m3fnuz": 1,
    "torch.float8_e5m2": 1,
    "torch.float8_e5m2fnuz": 1,
    "torch.float8_e8m0fnu": 1,
    "torch.uint16": 2,
    "torch.uint32": 4,
    "torch.uint64": 8,
}


def is_known(tensor: RebuiltTensor) -> bool:
    """Return whether it is known where each element of a tensor is in its storage.

    It is not for `quint4x2` and `quint2x4`, whose elements share bytes, and for types of a later torch.
    """
    if tensor.storage == UNTYPED_STORAGE:
        return tensor.dtype in _NAMED_DTYPES
    return tensor.storage in _STORAGES and not tensor.dtype


def type_name(tensor: RebuiltTensor) -> str:
    """Return torch's name for the element type of a tensor for which `is_known` is false.

    >>> type_name(RebuiltTensor("torch.QUInt4x2Storage", "0", 8, 0, (4, 4), (4, 1)))
    'torch.quint4x2'
    """
    if tensor.dtype or tensor.storage == UNTYPED_STORAGE:
        return tensor.dtype[:_MAX_TYPE_NAME]
    module, _, storage = tensor.storage.rpartition(".")
    return f"{module}.{storage.removesuffix('Storage').lower()}"[:_MAX_TYPE_NAME]


def element_of(tensor: RebuiltTensor, *, big_endian: bool) -> tuple[ElementType, str]:
    """Return the element type of a tensor that `is_known` holds for, and torch's name if that is another."""
    if tensor.storage == UNTYPED_STORAGE:
        return _named_element(tensor.dtype, big_endian=big_endian)
    name = _STORAGES[tensor.storage]
    element, declared = from_name(name), _QUANTIZED.get(tensor.storage, "")
    if not big_endian or element.itemsize == 1:
        return element, declared
    if name == "bfloat16":
        return from_npy_descr("|V2"), "big-endian torch.bfloat16"
    # By its descr: some types are not kept as numbers in this order.
    return from_npy_descr(element.to_numpy().newbyteorder(">").str), declared


def _named_element(dtype: str, *, big_endian: bool) -> tuple[ElementType, str]:
    """Return the same for elements in an untyped storage, whose type is named next to it."""
    itemsize = _NAMED_DTYPES[dtype]
    try:
        return from_name(dtype.removeprefix("torch."), big_endian=big_endian and itemsize > 1), ""
    except ValueError:
        # As bytes: statistics of integers would describe numbers that never existed.
        return from_npy_descr(f"|V{itemsize}"), dtype


def check_shape(shape: tuple[int, ...], itemsize: int) -> None:
    """Raise UnreadableTensor unless the shape is one that an array can have."""
    if len(shape) > MAX_NDIM or not all(0 <= n < 2**62 for n in shape):
        raise UnreadableTensor("its pickle has an impossible shape")
    if not is_addressable(shape, itemsize):
        raise UnreadableTensor("its pickle has a shape of more bytes than there are addresses")


def is_dense(size: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Return whether each stride is the product of the sizes before it; any will do for an axis of one."""
    expected = 1
    for n, step in zip(size, stride, strict=True):
        if n != 1 and step != expected and 0 not in size:
            return False
        expected *= n
    return True


def storage_itemsize(kind: str) -> int:
    """Return the bytes of an element of a storage class.

    Raises:
        UnreadableTensor: the class is not known.
    """
    if kind == UNTYPED_STORAGE:
        return 1
    if kind not in _STORAGES:
        raise UnreadableTensor(f"its storage {kind:.40} is not known")
    return from_name(_STORAGES[kind]).itemsize
