"""Attributes are plain JSON that no reader takes for instructions."""

import json
from pathlib import Path
from typing import Any

import zarr

import ingest
from tests.dumps import DumpLibrary
from tests.pipeline import ingest_directly
from tests.zarr_views import read_object, view_of

LOG = "rank_1/step_2/Log.Default_net-LogLoss_Log-op0"


def strict(text: bytes) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(text, parse_constant=refuse)


def test_the_attributes_are_strict_json_without_words_that_xarray_obeys(nan_log: Path) -> None:
    attributes = strict(read_object(view_of(nan_log), f"{LOG}/output.0/zarr.json") or b"")["attributes"]
    assert attributes["op_type"] == "Log"
    assert attributes["nan_count"] == 2
    assert attributes["source"].endswith(".npy")
    decoded = {"_FillValue", "missing_value", "scale_factor", "add_offset", "units", "dtype", "coordinates"}
    assert not decoded & set(attributes)


def test_tensors_of_which_only_statistics_were_dumped_are_told_by_their_operator(
    dumps: DumpLibrary, store: Path
) -> None:
    ingest_directly(next(dumps["msprobe-26.2.0-pytorch-cpu"].glob("*statistics*")), store)
    opened = ingest.open_store(store)
    tensor = next(t for t in opened.tensors() if not t.is_dumped)
    path = f"rank_{tensor.rank}/step_{tensor.step}/{tensor.op_type}.{tensor.op_name}"
    group = zarr.open_group(opened.as_zarr(include_partial=True), path=path, mode="r")
    told = group.attrs["statistics_only"]
    assert isinstance(told, dict)
    assert told[f"{tensor.io}.{tensor.slot}"]["source"] == tensor.source
    assert not list(group.array_keys())
