"""By how much quantisation changed a tensor, from pairs that a dump has."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingest
from ingest.reader.shown import quantization_of, shown_tensor
from tests.dump_data_writer import Tensor, dump_data
from tests.made_runs import MadeRun
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly

X = np.linspace(-1, 2, 3000, dtype=np.float32).reshape(30, 100)
#: Affine, as of activations: 0 is an integer.
SCALE, ZERO = 3 / 250, -41
Q = np.clip(np.round(X / SCALE) + ZERO, -128, 127).astype(np.int8)
#: Noise of rounding: scale^2 / 12.
SQNR_DB = 10 * math.log10(float(np.square(X, dtype=np.float64).mean()) / (SCALE**2 / 12))


@pytest.fixture
def quantized(made: MadeDump, store: Path) -> ingest.DumpStore:
    run = MadeRun(made)
    run.op("AscendQuant.quant", [X], [Q])
    run.op("MatMul.m", [Q], [X])
    run.op("AscendDequant.back", [Q], [X])
    ingest_directly(made.root, store)
    return ingest.open_store(store)


@pytest.mark.parametrize("io", ["input", "output"])
def test_scale_and_noise_of_an_operator_that_quantises(quantized: ingest.DumpStore, io: str) -> None:
    (tensor,) = quantized.tensors(f"AscendQuant.*.{io}.0")
    error = quantization_of(quantized, tensor)
    assert error is not None
    assert (error.before, error.after) == ("AscendQuant.quant.input.0", "AscendQuant.quant.output.0")
    assert error.scale == pytest.approx(SCALE, rel=1e-2)
    assert error.offset == pytest.approx(-ZERO * SCALE, rel=1e-2)
    assert error.sqnr_db == pytest.approx(SQNR_DB, abs=0.05)
    assert error.largest_error == pytest.approx(0.5, abs=0.06)
    assert (error.saturated, error.elements) == (0, 3000)


def store_of_reference(directory: Path, after: np.ndarray[Any, Any]) -> ingest.DumpStore:
    """Return a store of a reference that holds X, and this after quantisation."""
    root = directory / "reference"
    root.mkdir()
    for name, values in (("conv.0.1610000000000000.pb", X), ("conv.0.1610000000000000.quant", after)):
        (root / name).write_bytes(dump_data([], [Tensor(values.tobytes(), 1, values.shape)], op_name=b"conv"))
    ingest_directly(root, directory / "run.zarr")
    return ingest.open_store(directory / "run.zarr")


def test_a_reference_before_and_after_quantisation(tmp_path: Path) -> None:
    store = store_of_reference(tmp_path, (np.round(X / SCALE) * SCALE).astype(np.float32))
    (tensor,) = (tensor for tensor in store.tensors() if tensor.graph == "quantized")
    row = shown_tensor(store, tensor)["quantization"]
    assert (row["before_graph"], row["after_graph"]) == ("", "quantized")
    assert row["scale"] == pytest.approx(SCALE, rel=1e-3)
    assert row["largest_error"] == pytest.approx(0.5, abs=0.06)
    assert row["sqnr_db"] == pytest.approx(SQNR_DB, abs=0.1)
    json.dumps(row, allow_nan=False)


@pytest.mark.parametrize("level", [0, 2.5])
def test_nobody_can_tell_what_equal_integers_stand_for(made: MadeDump, store: Path, level: float) -> None:
    MadeRun(made).op("AscendQuant.q", [np.full(8, level, np.float32)], [np.full(8, round(level), np.int8)])
    ingest_directly(made.root, store)
    opened = ingest.open_store(store)
    error = quantization_of(opened, opened.tensors("*.output.0")[0])
    assert error is not None
    assert math.isnan(error.sqnr_db)
    assert "SQNR unknown" in str(error)
    assert error.to_dict()["sqnr_db"] is None


@pytest.mark.parametrize(
    ("values", "written"),
    [
        (Q[:30, :30], X[:30, :30].astype(np.float16)),  # calculates with integers
        (X, X),
        (X.astype(np.complex64), Q),
        (np.array(["a", "b"]), np.array(["a", "b"])),
    ],
)
def test_what_does_not_turn_numbers_into_integers_has_no_pair(
    made: MadeDump, store: Path, values: np.ndarray[Any, Any], written: np.ndarray[Any, Any]
) -> None:
    MadeRun(made).op("QuantBatchMatmulV3.m", [values], [written])
    ingest_directly(made.root, store)
    opened = ingest.open_store(store)
    assert [quantization_of(opened, tensor) for tensor in opened.tensors()] == [None, None]


def test_a_reference_that_became_infinite_has_lost_everything(tmp_path: Path) -> None:
    store = store_of_reference(tmp_path, np.where(X > 1, np.inf, X).astype(np.float32))
    error = quantization_of(store, store.tensors()[0])
    assert error is not None
    assert error.sqnr_db == -math.inf
