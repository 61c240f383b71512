"""What is printed of a tensor."""

from pathlib import Path

import numpy as np
import pytest

from ingest.api import open_store
from ingest.cli.show_report import (
    preview,
    print_anatomy,
    print_field,
    print_fields,
    print_neighbours,
    print_slice,
)
from ingest.reader.tensor import Tensor
from tests.made_runs import Values
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly, plan_all, run
from workers.errors import UsageError

Printed = pytest.CaptureFixture[str]


def tensor_with(made: MadeDump, store: Path, values: Values) -> Tensor:
    made.add(values)
    ingest_directly(made.root, store)
    (tensor,) = open_store(store).tensors()
    return tensor


def test_markup_and_control_characters_are_only_text(capsys: Printed) -> None:
    print_field("name", "[red]a[/] \x1b[31m")
    printed = capsys.readouterr().out
    assert printed.startswith("name             [red]a[/] ")
    assert "\x1b" not in printed


def test_what_is_not_known_has_no_line(nan_store: Path, capsys: Printed) -> None:
    tensor = open_store(nan_store).tensors("Log.*output*", rank=1, step=2)[0]
    print_fields(tensor, 0)
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (lines["dtype"], lines["nan_count"]) == ("float32", "2")
    assert not {"nan", "None", "", "0"} & {value for name, value in lines.items() if name != "graph"}
    assert not {"op_type", "timestamp", "declared_dtype", "pos_inf_count"} & lines.keys()
    print_fields(tensor, 100)
    assert capsys.readouterr().out.startswith("sample           the first and the last 100 elements")


def test_neighbours_beyond_eight_are_counted(nan_store: Path, capsys: Printed) -> None:
    store = open_store(nan_store)
    tensor = max(store.step(1, 2).tensors(), key=lambda tensor: len(tensor.consumers))
    print_neighbours(tensor)
    lines = capsys.readouterr().out.splitlines()
    readers = [line for line in lines if line.startswith("read_by")]
    assert len(readers) == min(len(tensor.consumers), 9)
    if len(tensor.consumers) > 8:
        assert readers[-1].split(maxsplit=1)[1] == f"... and {len(tensor.consumers) - 8} more (--json: all)"


def test_places_percentiles_and_histogram_are_printed_if_there_are_any(
    made: MadeDump, store: Path, capsys: Printed
) -> None:
    values = np.arange(12, dtype="<f4").reshape(3, 4)
    values[1, 2] = np.nan
    tensor = tensor_with(made, store, values)
    print_anatomy(tensor.examine(bins=4))
    printed = capsys.readouterr().out
    assert "not finite       1 of 12: [1, 2] NaN" in printed
    assert "  axis 1         1 of 4 positions: 2 (1)" in printed
    assert "percentiles" in printed
    assert "█" in printed
    print_anatomy(tensor_with(MadeDump(made.root / "all"), store.with_name("b"), values[:0]).examine(bins=4))
    assert capsys.readouterr().out == ""


def test_small_tensors_are_shown_and_others_say_why_not(made: MadeDump, store: Path) -> None:
    assert preview(tensor_with(made, store, np.arange(3, dtype="<i4"))) == "[0 1 2]"
    for plan in plan_all(made.root, store.with_name("left.zarr"), leave_out_tensors="disk is full"):
        run(plan)
    (left,) = open_store(store.with_name("left.zarr")).tensors()
    assert "disk is full" in preview(left)


def test_a_slice_is_printed_whole_or_refused(capsys: Printed) -> None:
    print_slice(np.arange(6).reshape(2, 3), "0:2,:")
    assert capsys.readouterr().out.splitlines() == ["[0:2,:]  2x3", "[[0 1 2]", " [3 4 5]]"]
    with pytest.raises(UsageError):
        print_slice(np.zeros(10_000_000, np.int8), ":")
