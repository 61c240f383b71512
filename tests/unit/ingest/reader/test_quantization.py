"""By how much quantisation changed a tensor, from pairs that a dump has."""

import json
import math
from pathlib import Path

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


def test_other_operators_have_no_pair(quantized: ingest.DumpStore) -> None:
    for name in ("MatMul.*", "AscendDequant.*"):
        assert all(quantization_of(quantized, tensor) is None for tensor in quantized.tensors(name))


def test_saturation_shows_in_the_largest_error(made: MadeDump, store: Path) -> None:
    clipped = np.clip(np.round(X / (SCALE / 2)), -128, 127).astype(np.int8)
    MadeRun(made).op("QuantizeV2.q", [X], [clipped])
    ingest_directly(made.root, store)
    opened = ingest.open_store(store)
    error = quantization_of(opened, opened.tensors("*.output.0")[0])
    assert error is not None
    assert error.saturated == np.count_nonzero(np.abs(clipped.astype(int) + 0.5) > 127)
    assert error.scale == pytest.approx(SCALE / 2, rel=1e-2)
    assert error.largest_error > 100
    assert f"{error.saturated} of 3000 elements saturated" in str(error)


def test_a_reference_before_and_after_quantisation(tmp_path: Path) -> None:
    after = (np.round(X / SCALE) * SCALE).astype(np.float32)
    root = tmp_path / "reference"
    root.mkdir()
    for name, values in (("conv.0.1610000000000000.pb", X), ("conv.0.1610000000000000.quant", after)):
        (root / name).write_bytes(dump_data([], [Tensor(values.tobytes(), 1, values.shape)], op_name=b"conv"))
    ingest_directly(root, tmp_path / "run.zarr")
    store = ingest.open_store(tmp_path / "run.zarr")
    (tensor,) = (tensor for tensor in store.tensors() if tensor.graph == "quantized")
    row = shown_tensor(store, tensor)["quantization"]
    assert (row["before_graph"], row["after_graph"]) == ("", "quantized")
    assert row["scale"] == pytest.approx(SCALE, rel=1e-3)
    assert row["largest_error"] == pytest.approx(0.5, abs=0.06)
    assert row["sqnr_db"] == pytest.approx(SQNR_DB, abs=0.1)
    json.dumps(row, allow_nan=False)
