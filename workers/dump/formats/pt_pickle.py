"""The tensor that a pickle of `torch.save` describes, found without executing the pickle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from workers.dump.formats.header import MAX_NDIM
from workers.dump.formats.pickle_machine import Function, Global, Machine, Storage, describe_value
from workers.errors import UnreadableTensor

_Value: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class RebuiltTensor:
    """A tensor as its pickle describes it. Sizes and strides are in elements."""

    storage: str
    """The class of its storage, such as `torch.FloatStorage`."""
    key: str
    """The member of the archive with its bytes: `data/{key}`."""
    storage_size: int
    """Elements of the storage; bytes if it is untyped."""
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str = ""
    """The type of its elements, such as `torch.uint16`, if it is not that of the storage."""


def rebuilt_tensor(pickled: bytes) -> RebuiltTensor:
    """Return the tensor of a `data.pkl`.

    Args:
        pickled: the whole member. Takes time and memory in proportion to its length.

    Raises:
        UnreadableTensor: it is damaged, or does not describe exactly one tensor.
    """
    value = Machine(pickled, _FUNCTIONS).run()
    if not isinstance(value, RebuiltTensor):
        raise UnreadableTensor(f"is not a single tensor: {describe_value(value)}")
    return value


def _tensor_v2(*arguments: _Value) -> RebuiltTensor:
    storage, offset, size, stride, _requires_grad, _hooks, metadata = arguments
    return _tensor(storage, offset, size, stride, metadata=metadata)


def _tensor_v3(*arguments: _Value) -> RebuiltTensor:
    storage, offset, size, stride, _requires_grad, _hooks, dtype, metadata = arguments
    return _tensor(storage, offset, size, stride, dtype=dtype, metadata=metadata)


def _npu_tensor(*arguments: _Value) -> RebuiltTensor:
    # The tensor was copied to the host first, and is in host layout; the last argument is its former format.
    storage, offset, size, stride, _requires_grad, _hooks, _format = arguments
    return _tensor(storage, offset, size, stride)


def _tensor(
    storage: _Value,
    offset: _Value,
    size: _Value,
    stride: _Value,
    *,
    dtype: _Value = None,
    metadata: _Value = None,
) -> RebuiltTensor:
    if not isinstance(storage, Storage):
        raise UnreadableTensor(f"is not a single tensor: made of {describe_value(storage)}")
    if type(offset) is not int or not _are_lengths(size) or not _are_lengths(stride):
        raise UnreadableTensor("its pickle has an impossible shape, strides or offset")
    if not isinstance(dtype, Global | None):
        raise UnreadableTensor(f"its pickle has {describe_value(dtype)} for an element type")
    if not isinstance(metadata, dict | None):
        raise UnreadableTensor(f"its pickle has {describe_value(metadata)} for metadata")
    _check_metadata(metadata or {})
    return RebuiltTensor(
        storage=storage.kind,
        key=storage.key,
        storage_size=storage.size,
        offset=offset,
        size=size,
        stride=stride,
        dtype=dtype.text if dtype else "",
    )


def _check_metadata(metadata: Mapping[str, _Value]) -> None:
    for key, value in metadata.items():
        # `conj` and `neg` are operations that were not carried out yet; nothing else is known.
        if key not in ("conj", "neg") or value is not False:
            raise UnreadableTensor(f"its elements are not as they are stored: {key:.40}")


def _parameter(data: _Value, _requires_grad: _Value, _hooks: _Value) -> _Value:
    return data


def _npu_format(number: _Value) -> _Value:
    return number


def _are_lengths(value: _Value) -> bool:
    return isinstance(value, tuple) and len(value) <= MAX_NDIM and all(type(n) is int for n in value)


_FUNCTIONS = {
    "collections.OrderedDict": Function(dict, 0, 0),
    "torch._utils._rebuild_parameter": Function(_parameter, 3, 3),
    "torch._utils._rebuild_tensor_v2": Function(_tensor_v2, 6, 7),
    "torch._utils._rebuild_tensor_v3": Function(_tensor_v3, 7, 8),
    # torch_npu, `torch_npu/utils/storage.py`: tensors that were on the accelerator.
    "torch_npu.npu._format.Format": Function(_npu_format, 1, 1),
    "torch_npu.utils.storage._rebuild_npu_tensor": Function(_npu_tensor, 6, 7),
}
