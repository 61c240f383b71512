"""msProbe's native dumps: names, elements without a header, and statistics."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.layouts.base import Description, Place, TensorFile
from ingest.layouts.msprobe import MsProbeNative
from ingest.layouts.msprobe import parse_native_name as parse_tensor_name
from workers.arrays.dtypes import from_name
from workers.dump.formats import npy
from workers.dump.formats.header import Container
from workers.dump.model import TensorName
from workers.model import SourceFile

STEP = "rank_0/20240801120000/step_3"
STEM = "MatMul.Default_net_MatMul-op0.2.7.1722484800151657"
NUMBER = "12345678901234567890123456789012"


def describe(files: Mapping[str, bytes]) -> Description:
    """Describe a step that has these files, by their names in it."""
    content = {f"{STEP}/{name}": data for name, data in files.items()}
    listed = [SourceFile(path, len(data), 0) for path, data in sorted(content.items())]
    place = Place(MsProbeNative(), STEP, {"rank": "0", "time": "20240801120000", "step": "3"})
    return MsProbeNative().describe(place, listed, content.get)


def only(files: Mapping[str, bytes]) -> TensorFile:
    (named,) = describe(files).named.values()
    return named


def name_of(type_name: str, layout: str = "NCHW") -> TensorName:
    return TensorName(
        op_type="MatMul",
        op_name="Default_net_MatMul-op0",
        io="output",
        slot=1,
        task=2,
        stream=7,
        timestamp=1722484800151657,
        format=layout,
        declared_dtype=type_name,
    )


def test_directory_is_that_of_a_rank_a_time_and_a_step() -> None:
    (pattern,) = MsProbeNative.patterns
    fields: dict[str, str] = {}
    for level, name in enumerate(STEP.split("/")):
        fields |= pattern.match(level, name) or {}
    assert fields == {"rank": "0", "time": "20240801120000", "step": "3"}
    assert pattern.match(1, "net") is None
    assert pattern.proof == 2


def test_npy_has_the_type_before_it_was_converted_in_its_name() -> None:
    assert parse_tensor_name(f"{STEM}.output.1.NCHW.BF16.npy") == TensorFile(name_of("BF16"), Container.NPY)


@pytest.mark.parametrize(
    ("type_name", "dtype"),
    [
        ("FLOAT", "float32"),
        ("DOUBLE", "float64"),
        ("BF16", "bfloat16"),
        ("UINT16", "uint16"),
        ("HIFLOAT8", "hifloat8"),
        ("FLOAT8_E8M0", "float8_e8m0fnu"),
        ("COMPLEX64", "complex64"),
        ("STRING", "|V1"),
        ("UNDEFINED", "|V1"),
    ],
)
def test_file_of_elements_has_their_type_and_no_shape(type_name: str, dtype: str) -> None:
    found = parse_tensor_name(f"{STEM}.output.1.FRACTAL_NZ.{type_name}")
    assert found == TensorFile(name_of(type_name, "FRACTAL_NZ"), Container.RAW, dtype=dtype)
    assert from_name(dtype).itemsize
    assert npy.raw_header(dtype, None, 48).shape == (48 // from_name(dtype).itemsize,)


@pytest.mark.parametrize(
    "name", ["mapping.csv", "acl.json", "notes.txt", "Opdebug.Node_OpDebug.1.2.3.output.0.json"]
)
def test_other_files_are_kept_as_files(name: str) -> None:
    assert describe({name: b""}).named == {}


@pytest.mark.parametrize(
    ("long", "real", "container"),
    [
        (f"{NUMBER}.npy", f"{STEM}.output.1.NCHW.FLOAT.npy", Container.NPY),
        (f"{NUMBER}.FLOAT", f"{STEM}.output.1.NCHW.FLOAT", Container.RAW),
        (NUMBER, f"{STEM}.output.1.NCHW.FLOAT", Container.RAW),
    ],
)
def test_long_name_is_looked_up(long: str, real: str, container: Container) -> None:
    found = only({long: b"", "mapping.csv": f"0.npy,x\n{long},{real}\n".encode()})
    assert (found.name, found.container, found.settled) == (name_of("FLOAT"), container, True)


def test_long_name_without_its_row_keeps_its_number_and_may_still_be_told() -> None:
    found = only({f"{NUMBER}.BF16": b"", "mapping.csv": b""})
    assert found.name == TensorName(op_name=NUMBER, declared_dtype="BF16")
    assert (found.container, found.dtype, found.settled) == (Container.RAW, "bfloat16", False)
    assert only({f"{NUMBER}.npy": b""}).settled is False


def test_row_that_is_cut_off_may_go_on() -> None:
    real = f"{STEM}.output.1.NCHW.FLOAT.npy"
    assert only({f"{NUMBER}.npy": b"", "mapping.csv": f"{NUMBER}.npy,{real}".encode()}).settled is False


HEADER = "Op Type,Op Name,Task ID,Stream ID,Timestamp,Input/Output,Slot,Data Size,Data Type,Format,Shape"
ROW = "MatMul,Default_net_MatMul-op0,2,7,1722484800151657,output,1,24,FLOAT,NCHW,(2,3)"


def test_statistics_are_reported_under_the_name_of_their_tensor() -> None:
    """In MD5 mode the shape has no quotes."""
    md5 = "0123456789abcdef0123456789abcdef"
    found = describe({"statistic.csv": f"{HEADER},MD5 Value\n{ROW},{md5}\n".encode()})
    (reported,) = found.reported
    assert (reported.shape, reported.checksum, reported.dtype) == ((2, 3), f"md5:{md5}", "FLOAT")
    assert (reported.name.op_name, reported.name.io, reported.name.slot) == (
        "Default_net_MatMul-op0",
        "output",
        1,
    )
    assert (found.problems, found.unfinished) == ([], "")


def test_statistics_that_end_within_a_row_keep_the_step_open() -> None:
    found = describe({"statistic.csv": f"{HEADER},MD5 Value\n{ROW[:30]}".encode()})
    assert found.unfinished == f"{STEP}/statistic.csv"


@given(
    st.text(max_size=60)
    | st.from_regex(
        r"[A-Z]{1,3}\.[a-z]{1,3}(\.\d{1,20}){0,4}\.(input|output)\.\d{1,12}\.[A-Z]{2}\.[A-Z0-9_]{0,5}(\.npy)?",
        fullmatch=True,
    )
    | st.from_regex(r"\d{31,33}(\.[a-zA-Z0-9]{1,6})?", fullmatch=True),
    st.binary(max_size=40),
)
def test_any_name_is_understood_or_not(name: str, mapping: bytes) -> None:
    describe({name: b"", "mapping.csv": mapping, "statistic.csv": mapping})
