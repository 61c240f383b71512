"""bfloat16 in zarr-python: an ordinary data type."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorstore
import zarr
from zarr.core.dtype import get_data_type_from_json, get_data_type_from_native_dtype

from workers.store.zarr_dtypes import BFloat16, DataTypeValidationError

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
ALL = np.arange(2**16, dtype=np.uint16).view(BFLOAT16)


@pytest.mark.skipif(
    zarr.__version__.startswith("3.1."), reason="zarr 3.1 loads no entry points of data types"
)
def test_zarr_finds_the_type_by_the_entry_point_alone() -> None:
    """Whoever has only zarr and this package installed reads bfloat16 without knowing of it."""
    code = (
        "import numpy, ml_dtypes; from zarr.core.dtype import get_data_type_from_native_dtype as find;"
        "print(type(find(numpy.dtype(ml_dtypes.bfloat16))).__name__)"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout == "BFloat16\n"


def test_type_is_found_by_its_name_and_by_its_dtype() -> None:
    assert type(get_data_type_from_json("bfloat16", zarr_format=3)) is BFloat16
    assert type(get_data_type_from_native_dtype(BFLOAT16)) is BFloat16


@pytest.mark.parametrize(
    "dtype", ["float16", "<f4", "U5", "V4", "M8[ns]", [("a", "<f4")], np.dtypes.StringDType()]
)
def test_other_types_are_left_to_zarr(dtype: Any) -> None:
    """All registered types are asked in turn: an exception here would break every array of the process."""
    assert type(get_data_type_from_native_dtype(np.dtype(dtype))) is not BFloat16


def test_array_written_by_zarr_is_read_by_tensorstore(tmp_path: Path) -> None:
    # Without `write_empty_chunks`, zarr compares all elements with the fill value, and numpy warns of NaNs.
    array = zarr.create_array(
        tmp_path / "a", shape=ALL.shape, dtype=BFLOAT16, chunks=(1000,), config={"write_empty_chunks": True}
    )
    array[:] = ALL
    assert np.asarray(zarr.open_array(tmp_path / "a")[:]).tobytes() == ALL.tobytes()
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(tmp_path / "a")}}
    assert tensorstore.open(spec).result().read().result().tobytes() == ALL.tobytes()


def test_array_written_by_tensorstore_is_read_by_zarr(tmp_path: Path) -> None:
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": str(tmp_path / "a")},
        "metadata": {"shape": list(ALL.shape), "data_type": "bfloat16"},
    }
    tensorstore.open(spec, create=True).result().write(ALL).result()
    found = zarr.open_array(tmp_path / "a")
    assert found.dtype == BFLOAT16
    assert np.asarray(found[:]).tobytes() == ALL.tobytes()


@pytest.mark.parametrize(
    ("json", "value"),
    [
        (1.5, 1.5),
        (0, 0.0),
        ("NaN", math.nan),
        ("Infinity", math.inf),
        ("-Infinity", -math.inf),
        ("0x7fc0", math.nan),
        ("0x3fc0", 1.5),
    ],
)
def test_fill_values(json: Any, value: float, tmp_path: Path) -> None:
    found = BFloat16().from_json_scalar(json, zarr_format=3)
    assert found.dtype == BFLOAT16
    assert float(found) == pytest.approx(value, nan_ok=True)
    array = zarr.create_array(tmp_path / "a", shape=(2,), dtype=BFLOAT16, fill_value=value)
    assert np.asarray(array[:]).astype(float).tolist() == pytest.approx([value] * 2, nan_ok=True)
    again = zarr.open_array(tmp_path / "a")
    assert float(again.fill_value) == pytest.approx(value, nan_ok=True)


def test_big_endian_array_is_read(tmp_path: Path) -> None:
    values = ALL[:64]
    array = zarr.create_array(
        tmp_path / "a",
        shape=(64,),
        dtype=BFLOAT16,
        serializer={"name": "bytes", "configuration": {"endian": "big"}},
    )
    array[:] = values
    assert np.asarray(zarr.open_array(tmp_path / "a")[:]).tobytes() == values.tobytes()
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(tmp_path / "a")}}
    assert tensorstore.open(spec).result().read().result().tobytes() == values.tobytes()


def test_format_2_has_no_bfloat16() -> None:
    with pytest.raises(DataTypeValidationError):
        BFloat16().to_json(zarr_format=2)
    with pytest.raises(ValueError, match="bfloat16"):
        get_data_type_from_json("bfloat16", zarr_format=2)


def test_no_number_is_no_fill_value() -> None:
    with pytest.raises(TypeError):
        BFloat16().cast_scalar([1])
