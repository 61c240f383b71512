"""Overflow records say which task failed, and come out as the vendor's converter writes them."""

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dump_data_writer import DATA_TYPES, Tensor, dump_data
from tests.stores import DumpLibrary
from workers.dump.formats.dump_data import read_headers
from workers.dump.formats.overflow import (
    MAX_RECORD_BYTES,
    Failure,
    OverflowRecord,
    parse,
    parse_json,
)
from workers.errors import UnreadableTensor

WORDS = st.integers(0, 2**64 - 1)
HALF_WORDS = st.integers(0, 2**32 - 1)
UNITS = {"AIC": 11, "AIV": 11, "AICPU": 8, "SDMA": 10}


def old_record(
    dha: tuple[int, ...] = (),
    l2: tuple[int, ...] = (),
    core: tuple[int, ...] = (),
    core_more: tuple[int, ...] = (),
) -> bytes:
    record = bytearray(2048)
    for offset, words in ((0, dha), (128, l2), (256, core), (1024, core_more)):
        struct.pack_into(f"<{len(words)}Q", record, offset, *words)
    return bytes(record)


def magic_record(
    code: int, words: list[int], *, version: int = 0, valid: int = 1, rsv: int = 0, size: int = 2048
) -> bytes:
    start = struct.pack("<6I", 0x5A5A5A5A, version, valid, code, rsv, 8 * len(words))
    return (start + struct.pack(f"<{len(words)}Q", *words)).ljust(size, b"\0")


def record_file(payload: bytes) -> bytes:
    return dump_data([], [Tensor(payload, DATA_TYPES["uint8"], (len(payload),))], op_name=b"Node_OpDebug")


def read(content: bytes) -> OverflowRecord:
    header = next(iter(read_headers(lambda offset, nbytes: content[offset : offset + nbytes], len(content))))
    return parse(content[header.offset : header.offset + header.nbytes])


def test_samples_come_out_as_the_vendor_converts_them(dumps: DumpLibrary) -> None:
    root = dumps["cann-bin-synthetic"]
    paths = [path for path in root.rglob("Opdebug*") if path.suffix != ".json"]
    assert len(paths) == 2
    for path in paths:
        expected = (root / "expected" / f"{path.name}.output.0.json").read_text()
        record = read(path.read_bytes())
        assert json.dumps(record.to_json(), indent=4) == expected.rstrip()
        assert parse_json(expected.encode()) == record
        assert len(record.failures()) == 1


def test_old_record_names_the_task_of_each_unit_that_overflowed() -> None:
    record = parse(old_record(dha=(1, 2, 3, 0, 4096, 8192), core=(514, 563, 59), core_more=(0x8C, 3, 32)))
    assert record.failures() == (
        Failure("DHA Atomic Add", 1, 2, 3, (0,)),
        Failure("AI Core", 514, 563, 59, (32,)),
    )
    assert record.to_json()["AI Core"] == {
        "model_id": 514,
        "stream_id": 563,
        "task_id": 59,
        "task_type": 0,
        "pc_start": "0x0",
        "para_base": "0x0",
        "kernel_code": "0x8c",
        "block_idx": 3,
        "status": 32,
    }
    assert list(record.to_json()) == ["DHA Atomic Add", "L2 Atomic Add", "AI Core"]


@pytest.mark.parametrize("code", [0, 1])
def test_cores_have_four_status_words_in_version_1(code: int) -> None:
    record = parse(magic_record(code, [9, 3, 34, 0, 1, 2, 3, 4, 5, 6, 10, 11, 12, 13], version=1))
    assert record.failures()[0].status == (10, 11, 12, 13)
    assert record.to_json()["acc_list"]["data"]["status"] == [10, 11, 12, 13]
    assert parse(magic_record(2, [0] * 7 + [5], version=1)).failures()[0].status == (5,)


@given(st.sampled_from(list(UNITS)), st.sampled_from([0, 1, 2]), st.data())
def test_magic_record_survives_json(unit: str, version: int, data: st.DataObject) -> None:
    count = UNITS[unit] + 3 * (version == 1 and unit in {"AIC", "AIV"})
    words = data.draw(st.lists(WORDS, min_size=count, max_size=count))
    numbers = {"valid": data.draw(HALF_WORDS), "rsv": data.draw(HALF_WORDS)}
    record = parse(magic_record(list(UNITS).index(unit), words, version=version, **numbers))
    assert parse_json(json.dumps(record.to_json()).encode()) == record
    # As MindSpore writes it.
    compact = json.dumps(record.to_json(), sort_keys=True, separators=(",", ":"))
    assert parse_json(compact.encode()) == record
    assert read(record_file(magic_record(0, [0] * 11))).accelerator is not None


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        bytes(2047),
        bytes(4096),
        magic_record(4, [0] * 11),
        magic_record(2**32 - 1, [0] * 11),
        magic_record(0, [0] * 11)[:111],
        magic_record(0, [0] * 11, version=1, size=112),
        magic_record(0, [], size=24),
        magic_record(0, [], size=23),
    ],
)
def test_record_of_neither_layout_is_unreadable(payload: bytes) -> None:
    with pytest.raises(UnreadableTensor):
        parse(payload)


BLOCK: dict[str, Any] = {"model_id": 1, "stream_id": 2, "task_id": 3, "status": 0}


@pytest.mark.parametrize(
    "content",
    [
        [],
        {},
        7,
        {"other": BLOCK},
        {"AI Core": 7},
        {"AI Core": {}},
        {"AI Core": {"stream_id": 1}},
        {"AI Core": BLOCK | {"task_id": -1}},
        {"AI Core": BLOCK | {"task_id": 2**64}},
        {"AI Core": BLOCK | {"task_id": 1.0}},
        {"AI Core": BLOCK | {"task_id": True}},
        {"AI Core": BLOCK | {"task_id": None}},
        {"AI Core": BLOCK | {"pc_start": "zzz"}},
        {"AI Core": BLOCK | {"pc_start": "f" * 5000}},
        {"AI Core": BLOCK | {"status": [[1]]}},
        {"AI Core": BLOCK | {"status": float("nan")}},
        {"acc_list": []},
        {"acc_list": {"acc_type": "GPU"}},
        {"acc_list": {"acc_type": ["AIC"]}},
        {"acc_list": {"acc_type": {}}},
        {"version": 0, "acc_list": {"acc_type": "AIC", "valid": 1, "rsv": 0, "data_len": 88}},
        {"acc_list": {"acc_type": "AIC", "valid": 1, "rsv": 0, "data_len": 88, "data": BLOCK}},
    ],
)
def test_json_of_something_else_is_unreadable(content: Any) -> None:
    with pytest.raises(UnreadableTensor):
        parse_json(json.dumps(content).encode())


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b'{"AI Core": {"model_id": 1,',
        b"\xff\xfe\x00",
        b"[" * 60_000,
        b'{"AI Core":' * 5000,
        b'{"AI Core": {"task_id": ' + b"9" * 6000 + b"}}",
        b" " * (MAX_RECORD_BYTES + 1),
    ],
)
def test_text_that_is_no_json_is_unreadable(text: bytes) -> None:
    with pytest.raises(UnreadableTensor):
        parse_json(text)


@given(st.binary(max_size=200), st.sampled_from([24, 112, 136, 2048]))
def test_any_bytes_are_a_record_or_refused(start: bytes, size: int) -> None:
    for content in (start, start.ljust(size, b"\0"), b"\x5a\x5a\x5a\x5a" + start.ljust(size, b"\0")):
        try:
            record = parse(content)
        except UnreadableTensor:
            continue
        assert parse_json(json.dumps(record.to_json()).encode()) == record


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["AI Core", "acc_list", "acc_type", "data", "stream_id", "task_id", "status"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_any_json_is_a_record_or_refused(content: Any) -> None:
    try:
        record = parse_json(json.dumps(content).encode())
    except UnreadableTensor:
        return
    assert all(len(found.status) >= 0 for found in record.failures())
