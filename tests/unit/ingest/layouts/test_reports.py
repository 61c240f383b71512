"""Statistics in the CSV files of a place, under the names of their tensors."""

from ingest.layouts.cann import read_reports
from workers.dump.model import TensorName

HEADER = b"Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,Max Value\n"
ROW = b'Add,Default_Add-op1,0,1,17,output,0,24,float32,"(2,3)",1.5,\n'
CANN = b"Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value\nInput,2,4,DT_FLOAT,ND,-,0.5\n"
PLACE = TensorName(net="Net", graph="1")


def test_table_of_many_operators_names_them_itself() -> None:
    reports = read_reports("d/statistic.csv", lambda _: HEADER + ROW, PLACE)
    (report,) = reports.reported
    assert report.name == TensorName(
        "Net", "1", "Add", "Default_Add-op1", io="output", slot=0, task=0, stream=1, timestamp=17
    )
    assert (report.source, report.shape, report.statistics.max, report.digits) == (
        "d/statistic.csv",
        (2, 3),
        1.5,
        6,
    )
    assert (reports.problems, reports.unfinished) == ((), False)


def test_table_of_one_operator_takes_the_name_of_its_file() -> None:
    name = PLACE._replace(op_type="Mul", op_name="Mul_1", task=4)
    (report,) = read_reports("d/Mul.Mul_1.4.7.17.csv", lambda _: CANN, name).reported
    assert report.name == name._replace(io="input", slot=2, format="ND")
    assert report.shape == ()


def test_row_that_is_not_complete_is_left_out_and_named() -> None:
    reports = read_reports("d/statistic.csv", lambda _: HEADER + ROW + ROW[:20], PLACE)
    assert (len(reports.reported), reports.unfinished) == (1, True)
    assert [str(problem) for problem in reports.problems] == [
        "d/statistic.csv: ends within a line, which is left out"
    ]


def test_file_that_cannot_be_read_is_a_problem() -> None:
    reports = read_reports("d/statistic.csv", lambda _: None, PLACE)
    assert reports.reported == ()
    assert "cannot be read" in reports.problems[0].reason
