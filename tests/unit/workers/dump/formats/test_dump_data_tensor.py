"""What the header of a DumpData file says about one tensor."""

from typing import Any

import pytest

from workers.arrays.device_format import DeviceLayout
from workers.arrays.dtypes import from_name
from workers.dump.formats.dump_data_pb2 import DataType, Format, OpBuffer, OpInput, Shape
from workers.dump.formats.dump_data_tensor import (
    ELEMENT_TYPES,
    FORMAT_NAMES,
    MAX_PADDING_BYTES,
    format_name,
    interpret,
)
from workers.errors import UnreadableTensor


def tensor(
    dtype: Any, shape: list[int], *, original: list[int] | None = None, layout: Any = Format.FORMAT_ND
) -> OpInput:
    described = OpInput(data_type=dtype, format=layout, shape=Shape(dim=shape), address=1)
    if original is not None:
        described.original_shape.dim.extend(original)
    return described


@pytest.mark.parametrize(("code", "name"), ELEMENT_TYPES.items())
def test_every_known_type_has_elements_of_its_size(code: int, name: str) -> None:
    element = from_name(name)
    meaning = interpret("input", 0, tensor(code, [6]), element.nbytes(6))
    assert (meaning.element, meaning.shape, meaning.problem) == (element, (6,), "")


@pytest.mark.parametrize("code", [DataType.DT_STRING, 9999])
def test_unknown_type_makes_bytes_and_keeps_its_name(code: int) -> None:
    meaning = interpret("input", 0, tensor(code, [2, 3]), 48)
    assert (meaning.element.name, meaning.shape, meaning.nbytes) == ("uint8", (48,), 48)
    assert meaning.declared_dtype in ("DT_STRING", "data_type 9999")


def test_quantised_integers_are_declared_as_what_they_represent() -> None:
    meaning = interpret("input", 0, tensor(DataType.DT_QINT8, [4]), 4)
    assert (meaning.element.name, meaning.declared_dtype) == ("int8", "DT_QINT8")


def test_device_shape_is_converted_where_the_formula_fits() -> None:
    described = tensor(
        DataType.DT_FLOAT16, [2, 1, 3, 4, 16], original=[2, 5, 3, 4], layout=Format.FORMAT_NC1HWC0
    )
    meaning = interpret("input", 0, described, 2 * 2 * 3 * 4 * 16)
    assert meaning.shape == (2, 5, 3, 4)
    assert meaning.device == DeviceLayout("NC1HWC0", (2, 1, 3, 4, 16))
    assert format_name(described) == "NC1HWC0"


def test_device_shape_that_does_not_fit_is_kept_and_is_a_problem() -> None:
    described = tensor(DataType.DT_FLOAT16, [1, 1, 16, 16], original=[40, 3], layout=Format.FORMAT_FRACTAL_NZ)
    meaning = interpret("input", 0, described, 512)
    assert (meaning.shape, meaning.device) == ((1, 1, 16, 16), None)
    assert "FRACTAL_NZ does not convert it to (40, 3)" in meaning.problem


def test_too_few_bytes_are_damage_and_far_too_many_are_kept_as_bytes() -> None:
    with pytest.raises(UnreadableTensor, match="output 2 has 23 bytes, fewer than the 24 of float32"):
        interpret("output", 2, tensor(DataType.DT_FLOAT, [2, 3]), 23)
    padded = interpret("output", 2, tensor(DataType.DT_FLOAT, [2, 3]), 24 + MAX_PADDING_BYTES)
    assert (padded.nbytes, padded.problem) == (24, "")
    meaning = interpret("output", 2, tensor(DataType.DT_FLOAT, [2, 3]), 25 + MAX_PADDING_BYTES)
    assert (meaning.element.name, meaning.declared_dtype) == ("uint8", "DT_FLOAT")
    assert "far more than the 24" in meaning.problem


def test_tensor_without_bytes_is_not_taken_for_an_empty_one() -> None:
    meaning = interpret("input", 0, tensor(DataType.DT_FLOAT, [2, 3]), 0)
    assert (meaning.shape, meaning.nbytes) == ((0,), 0)
    assert "not dumped" in meaning.problem
    assert interpret("input", 0, tensor(DataType.DT_FLOAT, [2, 0]), 0).problem == ""


def test_buffers_are_bytes_without_a_format() -> None:
    buffer = OpBuffer(size=7)
    assert interpret("buffer", 0, buffer, 7).shape == (7,)
    assert format_name(buffer) == ""


def test_names_of_formats_have_no_prefix() -> None:
    assert {"ND", "NC1HWC0", "FRACTAL_Z"} <= FORMAT_NAMES
    assert not any(name.startswith("FORMAT_") for name in FORMAT_NAMES)
