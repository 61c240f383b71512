"""Windows on values."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingest.page import sheet as module
from ingest.page.sheet import parse_window, window
from ingest.reader.dump_store import open_store
from ingest.reader.tensor import Tensor
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from workers.errors import UsageError


def stored(made: MadeDump, store: Path, values: np.ndarray[Any, Any]) -> Tensor:
    made.add(values, tensor_name())
    ingest_directly(made.root, store)
    return open_store(store).tensors()[0]


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_window_is_a_part_of_the_last_axis_and_of_the_others(
    made: MadeDump, store: Path, order: str
) -> None:
    values = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    tensor = stored(made, store, np.asarray(values, order=order))  # type: ignore[call-overload]
    shown = window(tensor, 5, 1, 4, 3)
    assert shown["rows"] == ["1, 1", "1, 2", "1, 3", "2, 0"]
    assert shown["columns"] == ["1", "2", "3"]
    expected = values.reshape(12, 5)[5:9, 1:4]
    assert [[float(word) for word in line] for line in shown["values"]] == expected.tolist()


@pytest.mark.parametrize(
    ("at_once", "most"),
    [
        (10**6, 20),  # neighbouring rows together, and not all of the first axis
        (12, 10),  # a few rows at once
        (4, 2),  # of long rows, the columns alone
    ],
)
def test_no_more_is_read_than_what_is_shown(
    made: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch, at_once: int, most: int
) -> None:
    values = np.arange(300, dtype=np.float32).reshape(1, 60, 5)
    tensor = stored(made, store, values)
    asked = []
    elements = Tensor.elements

    def counted(self: Tensor, start: int, stop: int) -> np.ndarray[Any, Any]:
        asked.append(stop - start)
        return elements(self, start, stop)

    monkeypatch.setattr(Tensor, "elements", counted)
    monkeypatch.setattr(module, "_READ_AT_ONCE", at_once)
    shown = window(tensor, 7, 1, 4, 2)
    assert [[float(word) for word in line] for line in shown["values"]] == values[0, 7:11, 1:3].tolist()
    assert max(asked) == most


@pytest.mark.parametrize("text", ["", "3", "1,2,3", "-1,0", "a,b", "1:2:3,0", "20 40,1"])
def test_what_is_not_a_window_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="is not a window") as refused:
        parse_window(text, (3, 4, 5))
    assert "20:40,:10" in refused.value.hint
