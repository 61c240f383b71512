"""What casts lose, predicted from histograms, against casts by ml_dtypes of the tensors of real dumps."""

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ingest.api import open_store
from tests.dumps import DumpLibrary
from tests.pipeline import ingest_directly
from tests.unit.workers.arrays.sketches.test_histogram import histogram_of
from workers.arrays.dtypes import NAMED, NumberFormat
from workers.arrays.histogram import Bounds, losses, power_below

FORMATS = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3", "float8_e4m3fnuz")
Array = np.ndarray[Any, Any]


def cast_losses(values: Array, target: NumberFormat, scale: float) -> tuple[int, int]:
    """Return how many finite elements overflow in a cast, and how many others than zero vanish."""
    finite = values[np.isfinite(values)]
    dtype = np.dtype(target.name if target.name == "float16" else getattr(ml_dtypes, target.name))
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = (finite * np.float32(scale)).astype(dtype).astype(np.float32)
    return int((~np.isfinite(rounded)).sum()), int(((rounded == 0) & (finite != 0)).sum())


def lies_in(count: int, bounds: Bounds) -> bool:
    return bounds.low <= count <= bounds.high


@pytest.fixture(scope="module")
def tensors(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> list[Array]:
    """The distinct tensors of real dumps, as float32."""
    root = tmp_path_factory.mktemp("rounding")

    def of(name: str) -> Iterator[Array]:
        ingest_directly(dumps[name] / "dump", root / name)
        known = {tensor.digest: tensor for tensor in open_store(root / name).tensors() if tensor.is_dumped}
        for tensor in known.values():
            values = tensor.read().reshape(-1)
            if values.dtype.name in ("float16", "float32", "bfloat16"):
                yield values.astype(np.float32)

    return [array for name in ("dtypes-1rank", "inf-explode-1rank", "lenet-1rank") for array in of(name)]


@pytest.mark.parametrize("name", FORMATS)
def test_casts_of_real_tensors_lose_what_is_predicted(tensors: list[Array], name: str) -> None:
    target = NAMED[name]
    for values in tensors:
        histogram = histogram_of(values)
        for scale in (1.0, 2.0**7, 2.0**-9, 3.7):
            overflow, underflow = cast_losses(values, target, scale)
            predicted = losses(histogram, target, scale)
            assert lies_in(overflow, predicted.overflow)
            assert lies_in(underflow, predicted.underflow)
            if power_below(scale) == scale and name != "bfloat16":  # that vanishes within the lowest bin
                assert predicted.underflow.is_exact
            if not overflow:
                assert predicted.overflow == Bounds(0, 0)


@pytest.mark.parametrize("name", ["mxfp8_e4m3", "mxfp8_e5m2", "mxfp4", "nvfp4"])
def test_underflow_in_blocks_is_bounded(tensors: list[Array], name: str) -> None:
    target = NAMED[name]
    for values in tensors:
        finite = values[np.isfinite(values)]
        blocks = np.pad(finite, (0, -finite.size % target.block)).reshape(-1, target.block)
        largest = np.abs(blocks).max(axis=1, initial=0, keepdims=True).astype(np.float64)
        unit = np.where(largest > 0, largest / target.largest, 1)
        if target.has_power_scales:
            unit = 2.0 ** np.ceil(np.log2(unit))
        vanish = int(((np.abs(blocks) <= target.vanishing * unit) & (blocks != 0)).sum())
        predicted = losses(histogram_of(values), target)
        assert lies_in(vanish, predicted.underflow)
        assert predicted.overflow == Bounds(0, 0)
