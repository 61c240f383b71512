"""References of other frameworks, and the Ascend dumps that are compared with them."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import ingest
from ingest.layouts.cann import parse_reference_name
from ingest.layouts.detect import find_dump
from tests.dump_data_writer import Tensor, dump_data, version_1
from tests.pipeline import ingest_directly
from workers.dump.formats.header import Container

X = np.arange(12, dtype=np.float32).reshape(3, 4)
RELU = np.maximum(X - 5, 0)


def output(values: npt.NDArray[np.float32], model: tuple[bytes, int]) -> Tensor:
    return Tensor(values.tobytes(), 1, values.shape, original=model)


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    """Three operators of a model, as its framework computed them."""
    root = tmp_path / "reference"
    root.mkdir()
    for name, values in (("conv1", X), ("conv1_relu", RELU), ("fc", X.sum(1))):
        np.save(root / f"{name}.0.1610000000000000.npy", values)
    return root


@pytest.fixture
def ascend(tmp_path: Path) -> Path:
    """The same network compiled: the convolution and the ReLU are one operator, which is a little off."""
    place = tmp_path / "ascend/20260101000000/0/net/1/0"
    place.mkdir(parents=True)
    fused = dump_data([], [output(RELU + np.float32(1e-3), (b"conv1_relu", 0))], op_name=b"conv1conv1_relu")
    (place / "Conv2D.conv1conv1_relu.2.7.1610000000000001").write_bytes(fused)
    fc = dump_data([Tensor(X.tobytes(), 1, X.shape)], [output(X.sum(1), (b"", 0))], op_name=b"fc")
    (place / "MatMul.fc.3.7.1610000000000002").write_bytes(fc)
    return tmp_path / "ascend"


@pytest.mark.parametrize("is_swapped", [False, True])
def test_outputs_are_compared_with_those_of_the_operators_made_of_them(
    reference: Path, ascend: Path, tmp_path: Path, is_swapped: bool
) -> None:
    """One side is a store, the other a dump: the model is known of both."""
    ingest_directly(ascend, tmp_path / "ascend.zarr")
    sides = [reference, tmp_path / "ascend.zarr"]
    comparison = ingest.compare(*(sides[::-1] if is_swapped else sides))
    # `fc` is equal; `conv1` is no output of the compiled model.
    (different,) = (tensor for tensor in comparison.tensors if tensor.verdict == "different")
    names = {different.name_a, different.name_b}
    assert names == {"Reference.conv1_relu.output.0", "Conv2D.conv1conv1_relu.output.0"}
    assert (different.matched, different.guessed) == ("reference", False)
    (only,) = (
        tensor for tensor in comparison.tensors if tensor.verdict.startswith("only") and tensor.io == "output"
    )
    assert "Reference.conv1.output.0" in (only.name_a, only.name_b)


def test_both_halves_of_a_quantised_pair_have_one_name(tmp_path: Path) -> None:
    for kind, values in (("pb", X), ("quant", np.round(X))):
        content = version_1([], [output(values, (b"", 0))], op_name=b"conv1")
        (tmp_path / f"conv1.0.1610000000000000.{kind}").write_bytes(content)
    ingest_directly(tmp_path, tmp_path / "s.zarr")
    tensors = ingest.open_store(tmp_path / "s.zarr").tensors()
    assert [(tensor.graph, tensor.name) for tensor in tensors] == [
        ("", "Reference.conv1.output.0"),
        ("quantized", "Reference.conv1.output.0"),
    ]


def test_steps_may_be_directories(tmp_path: Path) -> None:
    for step in (3, 8):
        (tmp_path / f"run_step{step}").mkdir()
        np.save(tmp_path / f"run_step{step}" / "conv1.1.1610000000000000.npy", X)
    scan = find_dump(tmp_path).scan({})
    assert sorted(listing.key.step for listing in scan.listings if listing.key.step is not None) == [3, 8]
    tensor = parse_reference_name("conv1.1.1610000000000000.npy")
    assert tensor is not None
    assert tensor.name is not None
    assert (tensor.name.slot, tensor.container) == (1, Container.NPY)
