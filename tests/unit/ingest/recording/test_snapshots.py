"""Every element type and kind of tensor is recorded as it is, bit for bit."""

import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import ingest
from ingest.recording.snapshots import Camera
from tests.stores import ingest_directly
from workers.arrays.statistics import FIELDS, summarise

NUMBERS = (
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"),
    *("float8_e4m3fnuz", "float8_e5m2fnuz", "complex64", "complex128", "int8", "uint8", "int16", "uint16"),
    *("int32", "uint32", "int64", "uint64", "bool", "complex32"),
)


def of_type(name: str, torch: Any) -> Any:
    """Return 24 elements of a type, with NaN and infinities where it has them."""
    bits = torch.arange(24, dtype=torch.uint8).repeat(16)
    dtype = getattr(torch, name)
    if name == "bool":
        return (bits[:24] % 3 == 0).reshape(2, 3, 4)
    if name.startswith("float8") or "int" in name:
        return bits[: 24 * dtype.itemsize].view(dtype).reshape(2, 3, 4)
    values = torch.linspace(-3, 3, 24, dtype=torch.float64)
    values[3], values[7], values[9], values[11] = torch.nan, torch.inf, -torch.inf, 0
    return (values * (1 + 2j) if "complex" in name else values).to(dtype).reshape(2, 3, 4)


@pytest.fixture(scope="module")
def recorded(torch: Any, nets: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The tensors that a module returned, and the store of what was recorded."""
    root = tmp_path_factory.mktemp("types")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls some types and layouts experimental
        return record_all(root, torch, nets)


def record_all(root: Path, torch: Any, nets: ModuleType) -> Any:
    made = {name: of_type(name, torch) for name in NUMBERS}
    base = made["float32"]
    made |= {
        "strided": base[:, ::2].transpose(0, 2),
        "expanded": base[:1].expand(5, 3, 4),
        "conjugated": made["complex64"].conj(),
        "zero_axes": base[0, 0, 0],
        "empty": base[:0],
    }
    composite = {
        "coo": torch.eye(3).to_sparse(),
        "csr": torch.eye(3).to_sparse_csr(),
        "quantised": torch.quantize_per_tensor(torch.ones(4), 0.5, 2, torch.qint8),
        "meta": torch.ones(3, device="meta"),
        "inference": made["float32"],
    }
    with ingest.record(
        nets.Returns(lambda _: made | composite), root / "dump", what="tensors", of="outputs"
    ) as r:
        r._model(None)
    (summary,) = ingest_directly(root / "dump", root / "run.zarr")
    assert summary.status == "complete"
    store = ingest.open_store(root / "run.zarr")
    assert list(store.verify()) == []
    return made, {tensor.io.removeprefix("output."): tensor for tensor in store.tensors()}


@pytest.mark.parametrize("name", [*NUMBERS, "strided", "expanded", "conjugated", "zero_axes", "empty"])
def test_elements_come_back_bit_for_bit(name: str, recorded: Any, torch: Any) -> None:
    made, stored = recorded
    tensor, expected = stored[name], made[name].resolve_conj().contiguous()
    assert tensor.shape == tuple(expected.shape)
    assert tensor.dtype == str(expected.dtype).removeprefix("torch.")
    flat = torch.view_as_real(expected.reshape(-1)) if expected.is_complex() else expected.reshape(-1)
    expected_bytes = flat.reshape(-1).view(torch.uint8).numpy().tobytes()
    assert np.ascontiguousarray(tensor.read()).tobytes() == expected_bytes


def test_a_composite_tensor_is_recorded_in_its_parts(recorded: Any) -> None:
    _, stored = recorded
    assert {name for name in stored if "." in name} == {
        *("coo.0.indices", "coo.0.values", "csr.0.compressed", "csr.0.plain", "csr.0.values"),
    }
    assert stored["quantised"].read().tolist() == [4, 4, 4, 4]
    assert stored["coo.0.values"].read().tolist() == [1, 1, 1]
    assert "meta" not in stored


@pytest.mark.parametrize("name", NUMBERS)
def test_statistics_without_elements_are_those_of_the_elements(name: str, torch: Any) -> None:
    camera, tensor = Camera(torch), of_type(name, torch)
    with_elements, without = (camera.take(tensor, elements=elements) for elements in (True, False))
    assert (with_elements.has_elements, without.has_elements, without.nbytes) == (True, False, 0)
    np.testing.assert_array_equal(with_elements.statistics(), without.statistics())
    np.testing.assert_array_equal(without.statistics(), summarise(with_elements.elements()).as_row())
    assert len(without.statistics() or ()) == len(FIELDS)


@pytest.mark.parametrize("view", ["column", "diagonal", "every second", "expanded", "transposed"])
def test_statistics_of_a_view_are_those_of_its_elements(view: str, torch: Any) -> None:
    whole = torch.arange(20.0).reshape(4, 5)
    views = {
        "column": whole[:, 0],
        "diagonal": whole.diagonal(),
        "every second": whole.flatten()[::2],
        "expanded": whole[3, 3].expand(16),
        "transposed": whole.t()[::2],
    }
    tensor = views[view]
    expected = summarise(tensor.contiguous().reshape(-1).numpy()).as_row()
    assert Camera(torch).take(tensor, elements=False).statistics() == expected
    assert summarise(tensor.reshape(-1).numpy()).as_row() == expected


def test_a_tensor_whose_memory_was_freed_has_nothing_to_record(torch: Any) -> None:
    tensor = torch.ones(4, 4)
    tensor.untyped_storage().resize_(0)  # as FSDP does between layers
    assert list(Camera(torch).parts(tensor)) == []
    assert list(Camera(torch).parts(tensor[:0])) != []


@pytest.mark.parametrize("elements", [False, True])
@pytest.mark.parametrize("name", ["float4_e2m1fn_x2", "uint4", "int4", "uint1"])
def test_bytes_that_several_elements_share_are_recorded_as_bytes(
    name: str, elements: bool, torch: Any
) -> None:
    stored = torch.arange(6, dtype=torch.uint8).reshape(2, 3)
    (part,) = (part for _, part in Camera(torch).parts(stored.view(getattr(torch, name)).t()))
    snapshot = Camera(torch).take(part, elements=elements)
    assert (snapshot.dtype, snapshot.shape) == ("uint8", (3, 2))
    assert snapshot.statistics() == summarise(np.arange(6, dtype=np.uint8)).as_row()
    assert snapshot.elements().tolist() == ([0, 3, 1, 4, 2, 5] if elements else [])


def test_tensor_in_a_layout_of_its_own_is_named(torch: Any, nets: ModuleType, tmp_path: Path) -> None:
    if not torch.backends.mkldnn.is_available():
        pytest.skip("torch was built without MKL-DNN")
    opaque = torch.ones(2, 2).to_mkldnn()
    with (
        pytest.warns(RuntimeWarning, match=r"output: ValueError: tensors of the layout torch\._mkldnn"),
        ingest.record(nets.Returns(lambda _: opaque), tmp_path / "dump", of="outputs") as recorder,
    ):
        recorder._model(None)
