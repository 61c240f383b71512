"""Which rank a place belongs to, and who says so."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.layouts.base import PathRank
from ingest.layouts.places import Ranks
from tests.dumps import DumpLibrary

DEVICE_3, RANK_3, PID_3 = (PathRank(kind, 3) for kind in ("device", "rank", "pid"))


def table(*devices: tuple[object, object]) -> bytes:
    listed = [{"device_id": device, "rank_id": rank} for device, rank in devices]
    return json.dumps({"server_list": [{"device": listed}]}).encode()


@pytest.mark.parametrize(
    ("fields", "path_rank"),
    [
        ({"rank": "1", "device": "3", "pid": "9"}, PathRank("rank", 1)),
        ({"device": "3", "pid": "9"}, PathRank("device", 3)),
        ({"pid": "9"}, PathRank("pid", 9)),
        ({"rank": "1", "tensor_parallel": "3"}, PathRank("rank", 1)),
        ({"pipeline_parallel": "2", "tensor_parallel": "03"}, PathRank("mesh", 0, (2, 0, 0, 3))),
        ({"step": "1"}, None),
    ],
)
def test_rank_in_a_path_counts_before_device_and_process(
    fields: dict[str, str], path_rank: PathRank | None
) -> None:
    assert PathRank.of(fields) == path_rank


def test_ranks_are_counted_over_the_places_in_the_mesh() -> None:
    places = [
        PathRank("mesh", 0, (stage, 0, data, tensor))
        for stage in range(2)
        for data in range(3)
        for tensor in range(4)
    ]
    ranks = Ranks(places[::-1], {}, [])
    assert [ranks.resolve(place) for place in places] == [(rank, "path") for rank in range(24)]
    assert ranks.lowest == 0


def test_user_comes_before_the_table_and_the_table_before_the_device() -> None:
    tables = [table(("3", "11"), ("4", "12"))]
    assert Ranks([DEVICE_3], {3: 7}, tables).resolve(DEVICE_3) == (7, "rank map")
    assert Ranks([DEVICE_3], {4: 7}, tables).resolve(DEVICE_3) == (11, "rank table")
    assert Ranks([DEVICE_3], {}, []).resolve(DEVICE_3) == (3, "device id")


def test_tables_tell_how_many_ranks_there_are_on_all_hosts() -> None:
    tables = [table(("0", "0"), ("1", "1")), table(("0", "2"), ("1", "3"))]
    assert Ranks([DEVICE_3], {}, tables).expected == 4
    assert Ranks([DEVICE_3], {}, [b"{}"]).expected is None


def test_table_of_several_hosts_is_no_answer_but_a_problem() -> None:
    ranks = Ranks([DEVICE_3], {}, [table(("3", "11"), ("4", "1")), table(("3", "19"))])
    assert ranks.resolve(DEVICE_3) == (3, "device id")
    assert ranks.resolve(PathRank("device", 4)) == (1, "rank table")
    (problem,) = ranks.problems
    assert "several ranks for device 3" in problem.reason
    assert "--rank-map" in problem.hint


def test_table_of_a_cluster_is_read(dumps: DumpLibrary) -> None:
    content = (dumps["synthetic-text"] / "hccl/hccl.json").read_bytes()
    resolved = [Ranks([], {}, [content]).resolve(PathRank("device", device)) for device in (0, 1)]
    assert {source for _, source in resolved} == {"rank table"}


@pytest.mark.parametrize("number", [0.5, float("inf"), float("nan"), True, None, [1], "one", "9" * 5000])
def test_what_is_not_a_whole_number_makes_no_table(number: object) -> None:
    assert Ranks([], {}, [table((number, 0))]).expected is None
    assert Ranks([], {}, [table((0, number))]).expected is None


@given(
    st.binary(max_size=60) | st.builds(table, st.tuples(st.integers() | st.text(), st.integers() | st.text()))
)
def test_any_content_is_a_table_or_not(content: bytes) -> None:
    rank, _ = Ranks([DEVICE_3], {}, [content]).resolve(DEVICE_3)
    assert 0 <= rank < 1_000_000
