"""The commit record: the bytes that every version writes, and what of them is damage."""

import json
from typing import Any

import google_crc32c
import pytest
from msgspec import structs

from workers.errors import DamagedStore, StoreFormatError
from workers.model import StepKey
from workers.store import commit, metadata
from workers.store.model import Origin, Totals
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
