"""Documents of a store: commit records, metadata, tombstones and findings; what of them is damage."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from numcodecs import VLenUTF8, Zstd

from workers.arrays import dtypes
from workers.errors import DamagedStore, StoreFormatError
from workers.model import SourceFile, StepKey
from workers.store import commit, findings, metadata, tables, untrusted
from workers.store.commit import Tombstone, ensure_tombstones, read_tombstones, write_tombstone
from workers.store.findings import LABELS, NUMBERS
from workers.store.model import ArraySpec, Evaluated, Finding, Origin, Totals
from workers.store.objects import ObjectStore
from workers.store.opening import connect, resolve
from workers.store.record import (
    CommitRecord,
    CompactLeaf,
    PoisonedSource,
    WithoutTensors,
    decode_record,
    encode_leaf,
    totals_of,
    without_checksum,
)
from workers.store.zarr_dtypes import register

# The commit record: the bytes that every version writes, and what of them is damage.


KEY = StepKey(1, 2)
NODES = {"f0-_Z": metadata.group(), "f0-_Z/index": metadata.group({"a": 1})}
TOTALS = Totals(
    status="partial",
    tensors=1,
    files=2,
    quarantined=3,
    overflows=4,
    statistics_only=5,
    disagreements=6,
    unparsed=7,
    duplicates=8,
    raw_bytes=9,
    stored_bytes=10,
    objects=11,
    nan_count=12,
    pos_inf_count=13,
    neg_inf_count=14,
    nan_tensors=15,
    pos_inf_tensors=16,
    neg_inf_tensors=17,
    anomalous_tensors=18,
    rules="0123",
    findings={"nan": 2},
    severities={"nan": "critical"},
    failed_rules={"mine": "no"},
)
RECORD = CommitRecord(
    format_version=6,
    without_tensors=WithoutTensors("2026-01-02T03:04:05+00:00", "gc", "old"),
    rank=1,
    step=2,
    fingerprint="f0-_Z",
    committed_at="2026-01-02T03:04:05.678+00:00",
    source=Origin("msprobe", "höst", "/dumps/%FF", "user"),
    summary=TOTALS,
    software={"dump-ingest": "0.1.0"},
    previous=("old1", "old2"),
    nets=("Net",),
    graphs=("0", "1"),
    stored={"files/c/0": 7},
    problems=("a.npy: torn",),
    poison=(PoisonedSource("b.npy", 3, -1, bytes_kept=True),),
)
#: What is written for it.
WRITTEN = (
    b'{"format_version":6,"without_tensors":{"at":"2026-01-02T03:04:05+00:00","by":"gc","reason":"old"},'
    b'"rank":1,"step":2,"fingerprint":"f0-_Z","committed_at":"2026-01-02T03:04:05.678+00:00",'
    b'"source":{"layout":"msprobe","host":"h\\u00f6st","root":"/dumps/%FF","rank_from":"user"},'
    b'"summary":{"status":"partial","tensors":1,"files":2,"quarantined":3,"overflows":4,'
    b'"statistics_only":5,"disagreements":6,"unparsed":7,"duplicates":8,"raw_bytes":9,"stored_bytes":10,'
    b'"objects":11,"nan_count":12,"pos_inf_count":13,"neg_inf_count":14,"nan_tensors":15,'
    b'"pos_inf_tensors":16,"neg_inf_tensors":17,"anomalous_tensors":18,"rules":"0123",'
    b'"findings":{"nan":2},"severities":{"nan":"critical"},"failed_rules":{"mine":"no"},"skipped":0,"tensor_problems":0},'
    b'"software":{"dump-ingest":"0.1.0"},"previous":["old1","old2"],"nets":["Net"],"graphs":["0","1"],'
    b'"stored":{"files/c/0":7},"pool":{},"checksums":{},"problems":["a.npy: torn"],'
    b'"poison":[{"source":"b.npy","size":3,"mtime_ns":-1,"bytes_kept":true}]}'
)


def leaf_of(record: Any) -> bytes:
    return json.dumps(metadata.leaf(record, NODES)).encode()


def changed(**fields: Any) -> bytes:
    return leaf_of({**RECORD.to_dict(), **fields})


def without(name: str) -> bytes:
    return leaf_of({field: value for field, value in RECORD.to_dict().items() if field != name})


def test_the_bytes_of_a_record_never_change() -> None:
    assert metadata.encode(RECORD.to_dict()) == WRITTEN
    assert decode_record(leaf_of(json.loads(WRITTEN)), KEY) == RECORD


def test_totals_become_the_summary_of_the_step_and_back() -> None:
    summary = RECORD.commit_summary()
    assert (summary.key, summary.fingerprint, summary.first_findings) == (KEY, "f0-_Z", ())
    assert summary.anomalous_tensors == 18
    assert totals_of(summary) == TOTALS


def test_what_later_versions_add_is_passed_over() -> None:
    later = RECORD.to_dict()
    later["signed_by"] = ["later"]
    for name in ("summary", "source", "without_tensors"):
        later[name]["added"] = {"of": 1}
    later["poison"][0]["added"] = 1
    assert decode_record(leaf_of(later), KEY) == RECORD


def test_what_earlier_versions_did_not_write_has_a_default() -> None:
    """Rules came later than the first records of this format."""
    earlier = RECORD.to_dict()
    for name in ("nets", "graphs", "problems", "poison", "software", "without_tensors"):
        del earlier[name]
    for name in ("rules", "findings", "severities", "failed_rules"):
        del earlier["summary"][name]
    del earlier["source"]["rank_from"]
    record = decode_record(leaf_of(earlier), KEY)
    assert (record.nets, record.problems, record.source.rank_from) == ((), (), "path")
    assert (record.summary.rules, record.summary.findings) == ("", {})
    assert (record.summary.skipped, record.summary.problems) == (0, 3 + 6 + 7)


@pytest.mark.parametrize(
    "name",
    [
        "rank",
        "step",
        "fingerprint",
        "committed_at",
        "source",
        "summary",
        "previous",
        "stored",
        "format_version",
    ],
)
def test_a_missing_field_is_damage_and_is_named(name: str) -> None:
    with pytest.raises(DamagedStore, match=rf"rank_1/step_2/zarr\.json is not a commit record: .*`{name}`"):
        decode_record(without(name), KEY)


def with_total(**totals: Any) -> dict[str, Any]:
    return {"summary": {**RECORD.to_dict()["summary"], **totals}}


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"fingerprint": "../other"}, r"\$\.fingerprint"),
        ({"fingerprint": ""}, r"\$\.fingerprint"),
        ({"fingerprint": "new\n"}, r"\$\.fingerprint"),
        ({"fingerprint": 5}, r"\$\.fingerprint"),
        ({"previous": ["fine", "a/b"]}, r"\$\.previous\[1\]"),
        ({"previous": None}, r"\$\.previous"),
        ({"committed_at": "yesterday"}, "Invalid isoformat"),
        ({"committed_at": 5}, r"\$\.committed_at"),
        ({"stored": {"files/c/0": -1}}, r"\$\.stored"),
        ({"stored": {"files/c/0": True}}, r"\$\.stored"),
        ({"stored": []}, r"\$\.stored"),
        ({"problems": "all"}, r"\$\.problems"),
        ({"problems": [3]}, r"\$\.problems\[0\]"),
        ({"nets": [None]}, r"\$\.nets\[0\]"),
        ({"source": {"layout": "a", "host": "b"}}, r"`root` - at `\$\.source`"),
        ({"source": {"layout": "a", "host": "b", "root": 7}}, r"\$\.source\.root"),
        ({"without_tensors": {"at": "", "by": "gc"}}, r"`reason` - at `\$\.without_tensors`"),
        (
            {"poison": [{"source": "a", "size": "much", "mtime_ns": 0, "bytes_kept": True}]},
            r"poison\[0\]\.size",
        ),
        (with_total(status="done"), r"\$\.summary\.status"),
        (with_total(tensors=-1), r"\$\.summary\.tensors"),
        (with_total(tensors=2**63), r"\$\.summary\.tensors"),
        (with_total(nan_count=1.5), r"\$\.summary\.nan_count"),
        (with_total(objects=True), r"\$\.summary\.objects"),
        (with_total(findings={"nan": -1}), r"\$\.summary\.findings"),
        (with_total(severities={"nan": 3}), r"\$\.summary\.severities"),
        (with_total(failed_rules=[]), r"\$\.summary\.failed_rules"),
    ],
)
def test_a_wrong_field_is_damage_and_its_place_is_named(fields: dict[str, Any], place: str) -> None:
    """Readers print these values, add them up and build keys from them."""
    with pytest.raises(DamagedStore, match=rf"rank_1/step_2/zarr\.json is not a commit record: .*{place}"):
        decode_record(changed(**fields), KEY)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[" * 100_000,
        b"\xff",
        b"{}",
        json.dumps({"attributes": {"dump_ingest": None}, "consolidated_metadata": {"metadata": {}}}).encode(),
        json.dumps({"attributes": {"dump_ingest": RECORD.to_dict()}}).encode(),
        json.dumps(metadata.leaf(RECORD.to_dict(), {"a": 5})).encode(),  # type: ignore[dict-item]
        leaf_of(RECORD.to_dict())[:-1],
        leaf_of(RECORD.to_dict()).replace(b"torn", b"\xff"),
    ],
)
def test_other_bytes_are_damage(data: bytes) -> None:
    with pytest.raises(DamagedStore, match="is not a commit record"):
        decode_record(data, KEY)


@pytest.mark.parametrize("version", [7, 99])
def test_a_later_format_is_refused_before_anything_else_is_read(version: int) -> None:
    with pytest.raises(StoreFormatError, match=f"store format {version}") as raised:
        decode_record(leaf_of({"format_version": version, "rank": "another kind"}), KEY)
    assert raised.value.hint == "Upgrade dump-ingest on this machine."


def test_an_earlier_format_was_never_released() -> None:
    with pytest.raises(StoreFormatError, match="store format 5") as raised:
        decode_record(changed(format_version=5), KEY)
    assert "new store" in raised.value.hint


@pytest.mark.parametrize("key", [StepKey(1, 3), StepKey(0, 2), StepKey(1, None)])
def test_the_record_of_another_step_is_damage(key: StepKey) -> None:
    with pytest.raises(DamagedStore, match="is the commit of rank 1 step 2"):
        decode_record(leaf_of(RECORD.to_dict()), key)


def step_leaf(name: str = "ab12" * 8, rows: int = 3) -> bytes:
    record = structs.replace(RECORD, fingerprint=name)
    labels = {"shape": [rows, 19], "attributes": {"of": name}}
    return encode_leaf(record, {"": {"shape": []}, "index/labels": labels})


def test_each_byte_that_is_wrong_is_noticed_or_does_not_matter() -> None:
    data = step_leaf()
    plain = without_checksum(data)
    assert json.loads(data)["attributes"]["dump_ingest_crc32c"] == f"{google_crc32c.value(plain):08x}"
    expected = commit.parse(data, KEY)
    assert commit.parse(plain, KEY).record == expected.record
    for at in range(len(data)):
        damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        try:
            parsed = commit.parse(damaged, KEY)
        except DamagedStore:
            continue
        assert (parsed.record, parsed.nodes) == (expected.record, expected.nodes)


@pytest.mark.parametrize(
    "data",
    [
        step_leaf(),
        b" " + step_leaf() + b"\n\n",
        step_leaf().replace(b'"consolidated_metadata"', b'"consolidated\\u005fmetadata"'),
        step_leaf().replace(b'"kind"', b'"ki\0nd"'),
        step_leaf().replace(b"ab12" * 8, b"x"),
        b"",
    ],
)
def test_a_leaf_in_memory_is_what_was_read(data: bytes) -> None:
    """A later version may write other bytes, and damage may be anything."""
    assert CompactLeaf.of(data, "ab12" * 8).data == data


# Metadata documents: strict JSON that Zarr readers take, and packed grids that come back.


register()
SPEC = ArraySpec("tensors/float32", "float32", 4, big_endian=True, chunk=8, chunks_per_shard=4)


@pytest.mark.parametrize(
    "data_type", ["bool", "int8", "uint64", "float16", "bfloat16", "float8_e8m0fnu", "complex64", "float64"]
)
def test_zarr_python_reads_zero_bits_where_nothing_was_written(data_type: str, tmp_path: Path) -> None:
    itemsize = dtypes.from_name(data_type).itemsize
    spec = ArraySpec("tensors/x", data_type, itemsize, big_endian=False, chunk=8, chunks_per_shard=4)
    (tmp_path / "zarr.json").write_bytes(metadata.encode(metadata.packed_array(spec, 5)))
    array: Any = zarr.open_array(tmp_path, mode="r")
    assert array.metadata.dimension_names == ("x_element",)
    values = array[:]
    assert values.shape == (5,)
    assert values.tobytes() == bytes(values.nbytes)


@pytest.mark.parametrize(
    "spec", [SPEC, replace(SPEC, sparse="zstd"), replace(SPEC, dense="shuffle", sparse="zstd_quick")]
)
def test_a_packed_grid_comes_back(spec: ArraySpec) -> None:
    assert metadata.packed_spec("tensors/float32", metadata.packed_array(spec, 100)) == spec


@pytest.mark.parametrize(
    ("chunk", "shard"), [(0, 32), (8, 33), (8.0, 32), (True, 32), (8, 2**62), (2**31, 2**31)]
)
def test_an_impossible_grid_is_refused(chunk: Any, shard: Any) -> None:
    document = metadata.packed_array(SPEC, 100)
    document["codecs"][0]["configuration"]["chunk_shape"] = [chunk]
    document["chunk_grid"]["configuration"]["chunk_shape"] = [shard]
    with pytest.raises(ValueError, match="an impossible"):
        metadata.packed_spec("tensors/float32", document)


@pytest.mark.parametrize("document", [{}, {"attributes": []}, {"attributes": {}}, [], None])
def test_a_document_without_our_attributes_is_refused(document: object) -> None:
    with pytest.raises(ValueError, match=r"Expected|missing"):
        metadata.own_attributes(json.dumps(document).encode())


# Tombstones: one listing tells what was removed, and they cover what is left of it.


TOMBSTONE = Tombstone(3, 7, "abc-_Z", 1_795_000_000_123)


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    return connect(resolve(tmp_path / "run.zarr"))


def test_the_bytes_of_a_tombstone_are_those_of_earlier_versions(objects: ObjectStore) -> None:
    write_tombstone(objects, TOMBSTONE, removed_at="2026-01-02T03:04:05+00:00", why="older than 30 d")
    assert objects.get("rank_3/removed/7.1795000000123.abc-_Z") == (
        b'{"rank": 3, "step": 7, "fingerprint": "abc-_Z", "committed_ms": 1795000000123, '
        b'"removed_at": "2026-01-02T03:04:05+00:00", "why": "older than 30 d"}'
    )


def test_tombstones_are_read_from_their_names(objects: ObjectStore) -> None:
    again = Tombstone(3, 7, "def", 1_795_000_000_999)
    other = Tombstone(3, 70, "abc", 0)
    for tombstone in (TOMBSTONE, again, other, Tombstone(4, 7, "abc", 5)):
        write_tombstone(objects, tombstone, removed_at="", why="")
    ensure_tombstones(objects, 3)
    assert read_tombstones(objects, 3) == {7: [TOMBSTONE, again], 70: [other]}
    assert read_tombstones(objects, 5) == {}


def test_what_was_removed_is_covered_by_its_name_or_by_its_files() -> None:
    """A file that is younger than the removed commit is another dump of the step."""
    ms = TOMBSTONE.committed_ms
    older, younger = SourceFile("a", 1, (ms - 5) * 10**6), SourceFile("b", 1, (ms + 1) * 10**6)
    assert TOMBSTONE.covers("abc-_Z", [younger])
    assert TOMBSTONE.covers("other", [older])
    assert not TOMBSTONE.covers("other", [older, younger])
    assert not TOMBSTONE.covers("other")


def test_tombstones_are_not_part_of_the_hierarchy(objects: ObjectStore) -> None:
    """Readers of Zarr do not stumble over objects without metadata."""
    objects.put("rank_3/zarr.json", metadata.encode(metadata.group()))
    ensure_tombstones(objects, 3)
    write_tombstone(objects, TOMBSTONE, removed_at="", why="")
    group = zarr.open_group(f"{objects.address.url}/rank_3", mode="r")
    assert list(group["removed"].members()) == []  # type: ignore[union-attr]
    document = objects.get("rank_3/removed/zarr.json")
    assert document is not None
    assert json.loads(document)["consolidated_metadata"]["metadata"] == {}


# Findings come back from their tables, whatever numbers they hold; and damage is named.


FOUND_IN = StepKey(3, 7)
FINDINGS = (
    Finding("nan", "critical", 3, 7, 5, "0", "MatMul.op0.output.0", 2.0, 0.0, "2 NaN of 9 elements"),
    Finding("mine", "info", 3, 7, -1, "", "", math.nan, math.inf, "höher"),
)
EVALUATED = Evaluated("0123", FINDINGS, {"nan": 9, "mine": 1})
DEFINITIONS = {name: {"kind": name} for name in ("nan", "mine", "silent")}


def decoded(change: Callable[[dict[str, Any], dict[str, bytes]], object] = lambda *_: None) -> list[Finding]:
    documents, chunks = findings.encode(DEFINITIONS, EVALUATED)
    assert sorted(chunks) == sorted(findings.chunk_keys("0123", documents))
    change(documents, chunks)
    return findings.decode("0123", FOUND_IN, documents, chunks)


def test_columns_of_another_version_do_no_harm() -> None:
    def add_column(documents: dict[str, Any], chunks: dict[str, bytes]) -> None:
        document = documents["findings/0123/labels"]
        table = tables.decode_table(chunks["findings/0123/labels/c/0/0"], "string", (2, 5), "here")
        wider = np.insert(table, 0, "later", axis=1)
        chunks["findings/0123/labels/c/0/0"] = tables.encode_table(wider, "string")
        document["shape"] = [2, 6]
        document["attributes"]["fields"] = ["added", *LABELS]

    assert repr(decoded(add_column)) == repr(list(FINDINGS))


def with_first(name: str, value: object) -> Callable[[dict[str, Any], dict[str, bytes]], None]:
    """Return a change that puts a value into the first row of a column."""
    return lambda documents, chunks: write(documents, chunks, name, value)


def write(documents: dict[str, Any], chunks: dict[str, bytes], name: str, value: object) -> None:
    is_label = name in LABELS
    columns, kind = (LABELS, "string") if is_label else (NUMBERS, "float64")
    path = f"findings/0123/{'labels' if is_label else 'numbers'}"
    shape = documents[path]["shape"]
    table = tables.decode_table(chunks[f"{path}/c/0/0"], kind, (shape[0], shape[1]), "here").copy()
    table[0, columns.index(name)] = value
    chunks[f"{path}/c/0/0"] = tables.encode_table(table, kind)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda _, chunks: chunks.popitem(), "numbers is missing"),
        (lambda documents, _: documents.pop("findings/0123/labels"), "labels is missing"),
        (lambda documents, _: documents["findings/0123/labels"].pop("shape"), "does not have a shape"),
        (lambda documents, _: documents["findings/0123/labels"].update(shape=[3, 5]), "cannot be decoded"),
        (lambda documents, _: documents["findings/0123/labels"].pop("attributes"), "not as many names"),
        (
            lambda documents, _: documents["findings/0123/labels"]["attributes"].update(fields=["x"] * 5),
            "does not have the columns rule",
        ),
        (
            lambda documents, _: documents["findings/0123/labels"]["attributes"].update(fields=[[]] * 5),
            "not as many names",
        ),
        (
            lambda documents, chunks: write(documents, chunks, "severity", "awful"),
            "'awful' is not a severity",
        ),
        (with_first("row", math.nan), "cannot convert float NaN"),
        (with_first("row", math.inf), "cannot convert float inf"),
    ],
)
def test_damage_is_named_with_the_step(change: Callable[..., object], what: str) -> None:
    with pytest.raises(DamagedStore, match=f"rank 3 step 7: findings/0123.*{what}"):
        decoded(change)


# Sizes that bytes state about themselves are compared before memory is taken.


#: A frame that states a terabyte: magic, a descriptor for eight bytes of size, the size.
TERABYTE = b"\x28\xb5\x2f\xfd" + bytes([0xE0]) + (1 << 40).to_bytes(8, "little")


@given(st.binary(min_size=1, max_size=70_000))
def test_a_frame_of_the_expected_size_is_decoded(content: bytes) -> None:
    """Of every width of the field that states the size."""
    frame = bytes(Zstd(level=1).encode(content))
    assert untrusted.zstd(frame, exactly=len(content)) == content
    assert untrusted.zstd(frame, at_most=len(content)) == content


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_791, 65_792, 70_000])
def test_a_frame_of_another_size_is_refused(size: int) -> None:
    frame = bytes(Zstd(level=1).encode(bytes(size)))
    for wrong in (size - 1, size + 1):
        with pytest.raises(ValueError, match=f"holds {size} bytes instead of {wrong}"):
            untrusted.zstd(frame, exactly=wrong)
    if size:
        with pytest.raises(ValueError, match="instead of at most"):
            untrusted.zstd(frame, at_most=size - 1)


def test_a_frame_of_a_terabyte_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(ValueError, match="1099511627776 bytes instead of at most 1073741824"):
        untrusted.zstd(TERABYTE)


@given(st.lists(st.text(st.characters(codec="utf-8")), max_size=9))
def test_texts_come_back_if_their_number_is_right(texts: list[str]) -> None:
    raw = bytes(VLenUTF8().encode(np.array(texts, object)))
    assert list(untrusted.texts(raw, len(texts))) == texts
    with pytest.raises(ValueError, match=f"does not hold {len(texts) + 1} texts"):
        untrusted.texts(raw, len(texts) + 1)


@pytest.mark.parametrize("length", [-1, 1000, 2**31 - 1])
def test_a_text_with_an_impossible_length_is_refused(length: int) -> None:
    raw = bytearray(VLenUTF8().encode(np.array(["four"], object)))
    raw[4:8] = length.to_bytes(4, "little", signed=True)
    with pytest.raises(ValueError, match=r"impossible|buffer|corrupt"):
        untrusted.texts(bytes(raw), 1)
