"""Tables of statistics of every kind and version, whole, cut and broken."""

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stores import DumpLibrary
from workers.arrays.statistics import FIELDS, Statistics
from workers.dump.formats.statistic_csv import MAX_ROWS, StatisticRow, checksum, parse, statistics

PLACE = "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape"
OLD = f"{PLACE},Max Value,Min Value,Avg Value,Count,Negative Zero Count,Positive Zero Count,NaN Count,"
OLD += "Negative Inf Count,Positive Inf Count,Zero Count"
CANN = "Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value,Min Value,Avg Value,Count,Nan Count,"
CANN += "Negative Inf Count,Positive Inf Count"
NATIVE = "Op Type,Op Name,Task ID,Stream ID,Timestamp,Input/Output,Slot,Data Size,Data Type,Format,Shape"
ADD = "Add,Default_Add-op1,0,0,1700000000000001,output,0,12,float32"


def rows(*lines: str) -> tuple[StatisticRow, ...]:
    table = parse("".join(f"{line}\n" for line in lines).encode())
    assert table.problems == ()
    assert not table.unfinished
    return table.rows


def known(found: Statistics) -> dict[str, float]:
    return {field: value for field in FIELDS if not math.isnan(value := getattr(found, field))}


def test_table_of_too_many_columns_is_refused() -> None:
    """A file of 64 MiB took two gigabytes."""
    names = ",".join(map(str, range(253)))
    table = parse(f"IO,Slot,Data Type,Shape,{names}\ninput,0,float32,(),{',' * 252}\n".encode())
    assert table.rows == ()
    assert table.problems == ("line 1: 257 columns; a table of statistics has at most 256",)


def test_mindspore_up_to_2_2_tells_every_count() -> None:
    conv, total = rows(
        OLD,
        'Conv2D,Conv2D-op12,0,0,1672531200123456,input,0,384,float32,"(2,3,4,4)",2.41503,-3.01,0.0123457,96,47,49,0,0,0,0',
        'ReduceSum,ReduceSum-op3,65535,1,16,output,1,4,float32,"()",1.23457e+06,1.23457e+06,-1e-05,1,0,1,0,0,0,0',
    )
    assert (conv.op_type, conv.op_name, conv.io, conv.slot) == ("Conv2D", "Conv2D-op12", "input", 0)
    assert (conv.task, conv.stream, conv.timestamp, conv.nbytes) == (0, 0, 1672531200123456, 384)
    assert (conv.dtype, conv.shape, conv.line) == ("float32", (2, 3, 4, 4), 2)
    assert conv.columns["Negative Zero Count"] == "47"
    assert known(statistics(conv)) == {
        "count": 96,
        "negative_count": 47,
        "positive_count": 49,
        "nan_count": 0,
        "pos_inf_count": 0,
        "neg_inf_count": 0,
        "zero_count": 0,
        "max": 2.41503,
        "min": -3.01,
        "mean": 0.0123457,
    }
    assert (total.task, total.stream, total.shape) == (-1, 1, ())
    assert (statistics(total).max, statistics(total).mean) == (1234570, -1e-05)


def test_rows_of_2_3_and_later_end_with_a_comma_that_the_header_lacks() -> None:
    (row,) = rows(f"{PLACE},Max Value,L2Norm Value", f'{ADD},"(3,)",3,3.5,')
    assert row.shape == (3,)
    assert known(statistics(row)) == {"max": 3, "l2_norm": 3.5}


@pytest.mark.parametrize("text", ["null", "nan", "-nan", "inf", "-inf", "", "NA"])
def test_what_is_no_finite_number_is_unknown(text: str) -> None:
    (row,) = rows(
        f"{PLACE},Max Value,Min Value,Avg Value,L2Norm Value", f'{ADD},"(3)",{text},1,{text},{text},'
    )
    assert known(statistics(row)) == {"min": 1}


@pytest.mark.parametrize(
    ("counts", "negative", "positive"),
    [
        # count, below, above, NaN, -Inf, +Inf, zero
        ("10,2,3,1,1,2,1", 3, 5),  # up to 2.2 infinities are counted apart
        ("10,3,5,1,1,2,1", 3, 5),  # later they are below and above zero too
        ("10,4,6,0,0,0,0", 4, 6),
    ],
)
def test_infinities_are_below_and_above_zero_in_every_version(
    counts: str, negative: float, positive: float
) -> None:
    (row,) = rows(OLD, f'{ADD},"(10)",1,-1,0,{counts}')
    found = statistics(row)
    assert (found.negative_count, found.positive_count) == (negative, positive)


def test_the_limits_where_a_search_began_are_no_values() -> None:
    (row,) = rows(f"{PLACE},Max Value,Min Value,NaN Count", f'{ADD},"(3)",-1.79769e+308,1.79769e+308,3')
    assert known(statistics(row)) == {"nan_count": 3}


def test_zero_may_mean_unasked_only_in_the_fixed_device_columns() -> None:
    (row,) = rows(f"{PLACE},Max Value,Min Value,Avg Value,L2Norm Value,Count", f'{ADD},"(3)",1,0,0,2,0')
    assert known(statistics(row)) == {"max": 1, "l2_norm": 2}
    (row,) = rows(f"{PLACE},Max Value,Min Value,L2Norm Value", f'{ADD},"(3)",1,0,2,')
    assert known(statistics(row)) == {"max": 1, "min": 0, "l2_norm": 2}


def test_no_elements_are_believed_only_of_a_shape_without_any() -> None:
    full, empty = rows(f"{PLACE},Count,Max Value", f'{ADD},"(3)",0,1,', f'{ADD},"(0)",0,null,')
    assert known(statistics(full)) == {"max": 1}
    assert known(statistics(empty)) == {"count": 0}


def test_cann_writes_one_file_per_operator() -> None:
    table = rows(
        CANN,
        "Input,0,24,DT_FLOAT,ND,2x3,1.5,-2.25,0.0416667,6,0,0,0",
        "Input,1,8,DT_COMPLEX64,ND,-,,,,,,,",
        "Output,0,640000,DT_FLOAT,NHWC,4x50x50x16,1.99999,1,1.50004,160000,0,0,0",
        "Output,1,8,DT_BF16,UNKNOW,4,NA,NA,NA,4,NA,NA,NA",
    )
    assert [(row.io, row.slot, row.format, row.shape) for row in table] == [
        ("input", 0, "ND", (2, 3)),
        ("input", 1, "ND", ()),
        ("output", 0, "NHWC", (4, 50, 50, 16)),
        ("output", 1, "UNKNOW", (4,)),
    ]
    assert (table[0].op_name, table[0].timestamp, table[0].dtype) == ("", -1, "DT_FLOAT")
    assert statistics(table[2]).count == 160000
    assert statistics(table[0]).mean == 0.0416667
    assert known(statistics(table[1])) == {}
    assert known(statistics(table[3])) == {"count": 4}


def test_cann_moves_the_count_with_chosen_statistics_and_may_leave_it_out() -> None:
    table = rows(
        "Input/Output,Index,Data Size,Data Type,Format,Shape,Count,Max Value,l2norm",
        "Output,0,24,DT_FLOAT,ND,2x3,6,1.5,3",
        "Output,1,24,DT_STRING,ND,2x3,NA,NA",
    )
    assert known(statistics(table[0])) == {"count": 6, "max": 1.5, "l2_norm": 3}
    assert known(statistics(table[1])) == {}


def test_msprobe_native_writes_shapes_without_quotes_in_its_md5_mode() -> None:
    digest = "0CC175B9C0F1B6A831C399E269772661"
    place = "Add,Add_1,1,2,3,input,0,24,FLOAT,ND"
    table = rows(
        f"{NATIVE},MD5 Value", f"{place},(2,3),{digest}", f"{place},(),{digest}", f"{place},(6),{digest}"
    )
    assert [row.shape for row in table] == [(2, 3), (), (6,)]
    assert {checksum(row) for row in table} == {f"md5:{digest.lower()}"}
    (row,) = rows(f"{NATIVE},Max Value,NaN Count", "Add,Add_1,1,2,3,Output,0,24,FLOAT,ND,2x3,1.5,0")
    assert (row.io, row.shape, known(statistics(row))) == ("output", (2, 3), {"max": 1.5, "nan_count": 0})


def test_only_whole_digests_are_digests() -> None:
    table = rows(f"{PLACE},MD5,Max Value", *(f'{ADD},"(3)",{text},1' for text in ("0cc175b9", "", "x" * 32)))
    assert [checksum(row) for row in table] == ["", "", ""]


def test_a_row_that_is_still_being_written_is_unfinished_and_no_problem() -> None:
    text = f'{PLACE},Max Value\n{ADD},"(3)",1,\n{ADD},"(3)",1.2'
    table = parse(text.encode())
    assert (len(table.rows), table.problems, table.unfinished) == (1, (), True)


@given(st.integers(0, 2000))
def test_a_table_cut_anywhere_keeps_its_whole_rows(length: int) -> None:
    text = f"{PLACE},Max Value\n" + "".join(f'{ADD},"(3)",{n}.5,\n' for n in range(20))
    data = text.encode()[:length]
    table = parse(data)
    assert table.problems == ()
    assert len(table.rows) == max(data.count(b"\n") - 1, 0)
    assert table.unfinished == (not data.endswith(b"\n"))


@pytest.mark.parametrize(
    "line",
    [
        f'{ADD},"(3)"',
        f'{ADD},"(3)",1,2',
        f'{ADD},"(3)",one,',
        f'{ADD},"(3',
        f'{ADD},"3)",1',
        f'{ADD},"(-1)",1',
        ADD.replace("output", "inout") + ',"(3)",1',
        ADD.replace(",0,12", ",x,12") + ',"(3)",1',
        ADD.replace("1700000000000001", "9" * 40) + ',"(3)",1',
        f'{ADD},"({"1," * 1000}1)",1',
        '"',
    ],
)
def test_a_malformed_row_is_named_and_the_rest_is_used(line: str) -> None:
    good = f'{ADD},"(3)",1,'
    table = parse(f"{PLACE},Max Value\n{good}\n{line}\n{good}\n".encode())
    assert [row.line for row in table.rows] == [2, 4]
    (problem,) = table.problems
    assert problem.startswith("line 3: ")
    assert len(problem) < 200


def test_names_keep_their_bytes_and_nothing_else_may_hold_any() -> None:
    row = ADD.encode().replace(b"Default", b"\xff\xfe") + b',"(3)",1\n'
    table = parse(f"{PLACE},Max Value\n".encode() + row + row.replace(b"float32", b"\xff"))
    assert [row.op_name.encode("utf-8", "surrogateescape") for row in table.rows] == [b"\xff\xfe_Add-op1"]
    assert table.problems == (r"line 3: not a type or format: '\udcff'",)


@given(st.binary(max_size=300), st.sampled_from([PLACE, OLD, CANN, f"{NATIVE},MD5 Value"]))
def test_no_bytes_raise_anything(data: bytes, header: str) -> None:
    for content in (data, header.encode() + b"\n" + data, header.encode() + b"\n" + data + b"\n"):
        for row in parse(content).rows:
            statistics(row)
            checksum(row)


TEXT = st.text(st.sampled_from('0123456789.,"()xe+-naifult'), max_size=60)


@given(st.lists(TEXT, max_size=8))
def test_no_rows_raise_anything(lines: list[str]) -> None:
    for prefix in ("", f"{ADD},", "Output,0,24,DT_FLOAT,ND,"):
        for header in (PLACE, OLD, CANN, f"{NATIVE},MD5 Value"):
            content = "\n".join([header, *(prefix + line for line in lines), ""])
            for row in parse(content.encode()).rows:
                statistics(row)
                checksum(row)


def test_time_and_memory_grow_with_the_file_alone() -> None:
    """A megabyte of quotes, of brackets or of commas in one line; and twenty thousand rows."""
    for text in (
        '"' * 1_000_000,
        "(," * 500_000,
        "," * 1_000_000,
        "9" * 1_000_000,
        f'{ADD},"(' + "1," * 500_000,
    ):
        assert len(parse(f"{NATIVE}\n{text}\n".encode()).problems) == 1
    line = f'{ADD},"(2,3)",1.5,-2.25,0.5,\n'
    data = f"{PLACE},Max Value,Min Value,L2Norm Value\n{line * 20_000}".encode()
    begin = time.process_time()
    assert len(parse(data).rows) == 20_000
    assert time.process_time() - begin < 3  # about 0.2 s on a slow core; nothing quadratic


def test_more_rows_than_a_step_can_have_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_ROWS == 1_000_000
    monkeypatch.setattr("workers.dump.formats.statistic_csv.MAX_ROWS", 3)
    table = parse(f"{PLACE},Max Value\n".encode() + f'{ADD},"(3)",1,\n'.encode() * 10)
    assert len(table.rows) == 3
    assert table.problems == ("line 5: more than 3 rows; the rest is ignored",)


@pytest.mark.parametrize(
    ("name", "path", "count"),
    [
        ("synthetic-text", "statistic-2.0/statistic.csv", 4),
        ("synthetic-text", "statistic-2.2.1-md5/statistic.csv", 1),
        ("synthetic-text", "statistic-2.5-categories/statistic.csv", 2),
        (
            "cann-bin-synthetic",
            "stats/20240802000000/0/graph_1/1/4/Add.Add_2.4.7.1722556800123456.csv",
            3,
        ),
    ],
)
def test_samples_read_to_the_last_row(name: str, path: str, count: int, dumps: DumpLibrary) -> None:
    table = parse((dumps[name] / path).read_bytes())
    assert (len(table.rows), table.problems, table.unfinished) == (count, (), False)
