"""Places and names of MindSpore's first synchronous dumps."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.api import open_store
from ingest.layouts.detect import find_dump
from ingest.layouts.mindspore import parse_raw_name
from tests.pipeline import ingest_directly
from workers.arrays.dtypes import from_name
from workers.dump.formats.header import Container
from workers.dump.model import TensorName
from workers.model import StepKey


def raw(file_name: str) -> tuple[str, str, str, int, str, tuple[int, ...] | None, str]:
    """Return what is understood of a name."""
    named = parse_raw_name(file_name, net="Net")
    assert named is not None
    assert named.container is Container.RAW
    assert named.settled
    name = named.name
    assert name is not None
    assert name.net == "Net"
    return name.op_type, name.op_name, name.io, name.slot, named.dtype, named.shape, name.format


def test_names_are_understood_from_their_end() -> None:
    scope = "Default--network-WithLossCell--_backbone-AlexNet--conv3-Conv2d"
    assert raw(f"{scope}--Conv2D-op308_output_0_shape_4_4_4_4_Float32_NCHW.bin") == (
        "Conv2D",
        f"{scope}--Conv2D-op308".replace("--", "/"),
        "output",
        0,
        "float32",
        (4, 4, 4, 4),
        "NCHW",
    )
    assert raw("moments.conv2.bias_output_0_shape_128_Float32_DefaultFormat.bin") == (
        "Parameter",
        "moments.conv2.bias",
        "output",
        0,
        "float32",
        (128,),
        "DefaultFormat",
    )
    assert raw("Default--Cast-op3_input_1_shape_kNumberTypeFloat16_FRACTAL_NZ.bin") == (
        "Cast",
        "Default/Cast-op3",
        "input",
        1,
        "float16",
        (),
        "FRACTAL_NZ",
    )
    # What no operator is, has no type.
    assert raw("Default--data_output_0_shape_2_Int_ND.bin")[:2] == ("", "Default/data")


@given(st.text(max_size=80))
def test_any_file_name_is_a_name_or_none(text: str) -> None:
    for file_name in (
        text,
        f"{text}.bin",
        f"w_output_0_shape_{text}_Float32_ND.bin",
        f"{text}_shape_1_Int8_ND.bin",
    ):
        named = parse_raw_name(file_name)
        if named is not None:
            from_name(named.dtype)


@given(st.lists(st.integers(0, 10**6), max_size=8), st.integers(0, 99))
def test_shapes_and_slots_come_back(shape: list[int], slot: int) -> None:
    lengths = "".join(f"{length}_" for length in shape)
    named = parse_raw_name(f"a.b_c_input_{slot}_shape_{lengths}UInt16_NC1HWC0.bin")
    assert named is not None
    assert (named.shape, named.dtype) == (tuple(shape), "uint16")
    assert named.name == TensorName(
        op_type="Parameter",
        op_name="a.b_c",
        io="input",
        slot=slot,
        format="NC1HWC0",
        declared_dtype="UInt16",
    )


#: What a small GPU job would have dumped: values by the name of their file.
OWN_SAMPLE = {
    "Default--network-Net--fc-Dense--MatMul-op7_output_0_shape_2_3_Float32_NCHW.bin": (
        np.arange(6, dtype="<f4").reshape(2, 3)
    ),
    "Default--network-Net--fc-Dense--MatMul-op7_input_1_shape_3_Float16_NCHW.bin": (
        np.array([1.5, -2.25, 0.0], "<f2")
    ),
    "fc.bias_output_0_shape_Float64_DefaultFormat.bin": np.array(0.125, "<f8"),
    "fc.moments.mask_output_0_shape_4_Bool_DefaultFormat.bin": np.array([True, False, True, True]),
}


@pytest.mark.parametrize("place", ["Net/device_3/iteration_2", "Net/iteration_2"])
def test_dump_is_read_to_the_last_element(place: str, tmp_path: Path, store: Path) -> None:
    """From its directories to the values in the store, with all other layouts in play."""
    directory = tmp_path / "dump" / place
    directory.mkdir(parents=True)
    for file_name, values in OWN_SAMPLE.items():
        (directory / file_name).write_bytes(values.tobytes())
    ingest_directly(tmp_path / "dump", store)
    (step,) = open_store(store).select()
    assert step.key == StepKey(3 if "device" in place else 0, 2)
    assert [listing.layout for listing in find_dump(tmp_path / "dump").scan({}).listings] == ["mindspore_raw"]
    tensors = {tensor.source.rpartition("/")[2]: tensor for tensor in open_store(store).tensors()}
    assert tensors.keys() == OWN_SAMPLE.keys()
    for file_name, values in OWN_SAMPLE.items():
        tensor = tensors[file_name]
        assert (tensor.shape, tensor.net) == (values.shape, "Net")
        np.testing.assert_array_equal(tensor.read(), values)
    names = {(tensor.op_type, tensor.op_name.rpartition("/")[2]) for tensor in tensors.values()}
    assert names == {("MatMul", "MatMul-op7"), ("Parameter", "fc.bias"), ("Parameter", "fc.moments.mask")}
