"""What is printed of a tensor."""

from pathlib import Path

import numpy as np
import pytest

from ingest.api import open_store
from ingest.cli.show import (
    print_anatomy,
    print_field,
)
from ingest.reader.tensor import Tensor
from tests.made_runs import Values
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly

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
