"""The header of a tensor, as every format returns it."""

import pickle

import numpy as np

from workers.arrays.device_format import DeviceLayout
from workers.arrays.dtypes import from_name
from workers.dump.formats.header import (
    Container,
    HoldsNoTensor,
    TensorHeader,
    Truncated,
    is_addressable,
)
from workers.errors import DumpError, UnreadableTensor


def test_size_counts_the_elements_of_the_host_shape() -> None:
    """A device shape has padding, which is not counted."""
    layout = DeviceLayout("NC1HWC0", (2, 1, 3, 4, 16))
    header = TensorHeader(from_name("float16"), (2, 5, 3, 4), offset=128, nbytes=768, device=layout)
    assert header.size == 2 * 5 * 3 * 4
    assert TensorHeader(from_name("float32"), (), offset=0, nbytes=4).size == 1


def test_shapes_of_no_elements_are_those_that_numpy_can_make() -> None:
    for shape in ((0, 2**60), (0, 2**59, 2), (2**60 - 1, 0), (0,), ()):
        try:
            np.empty(shape, np.float64)
        except ValueError:
            assert not is_addressable(shape, 8)
        else:
            assert is_addressable(shape, 8)


def test_header_survives_the_way_to_a_worker() -> None:
    header = TensorHeader(from_name("int4"), (3,), offset=9, nbytes=2, lead=b"lead", tail=b"tail", slot=1)
    assert pickle.loads(pickle.dumps(header)) == header  # noqa: S301 (our own)


def test_each_error_is_that_of_an_unreadable_tensor() -> None:
    """Whoever quarantines a file does not ask which one it is."""
    assert issubclass(Truncated, UnreadableTensor)
    assert issubclass(HoldsNoTensor, UnreadableTensor)
    assert issubclass(UnreadableTensor, DumpError)


def test_containers_are_written_by_name() -> None:
    assert [str(container) for container in Container] == [
        "npy",
        "dump_data",
        "pt",
        "safetensors",
        "npz",
        "distcp",
        "tensor_proto",
        "raw",
    ]
