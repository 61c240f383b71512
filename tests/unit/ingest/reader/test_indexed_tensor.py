"""What the index has about a tensor."""

import json
import math
from pathlib import Path

import pytest

from ingest.api import open_store
from ingest.reader.indexed_tensor import IndexedTensor
from tests.made_runs import MadeRun, numbers
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly, plan_all, run


@pytest.fixture
def repeated(made: MadeDump, store: Path) -> list[IndexedTensor]:
    """Two calls of one operator in a step."""
    for values in (numbers(1, math.nan), numbers(3, 4)):
        MadeRun(made, {0: 1_795_220_037_870_000 + int(values[0])}).op("Mul.m_x", [values], rank=0, step=3)
    ingest_directly(made.root, store)
    return list(open_store(store).tensors())


def test_a_name_says_which_call_it_is_from_the_second_on(repeated: list[IndexedTensor]) -> None:
    first, second = repeated
    assert second.name.startswith(first.name)
    assert second.name != first.name
    assert [tensor.occurrence for tensor in repeated] == [0, 1]
    assert (first.rank, first.step, first.net, first.graph, first.io, first.slot) == (
        0,
        3,
        "Net",
        "0",
        "input",
        0,
    )


def test_statistics_and_digest_are_those_of_the_elements(repeated: list[IndexedTensor]) -> None:
    first, second = repeated
    assert (first.statistics.nan_count, first.statistics.max, second.statistics.mean) == (1, 1.0, 3.5)
    assert len(first.digest) == 32
    assert first.digest != second.digest
    assert (first.dtype, first.shape, first.nbytes, first.device_shape) == ("float32", (2,), 8, None)


def test_a_tensor_is_json_with_everything_that_it_is_asked_for(repeated: list[IndexedTensor]) -> None:
    row = json.loads(json.dumps(repeated[0].to_dict()))
    for field in ("rank", "step", "name", "op_type", "io", "slot", "dtype", "source", "digest"):
        assert row[field] == getattr(repeated[0], field)
    assert row["shape"] == [2]


def test_elements_that_were_left_out_are_said_to_be(made: MadeDump, store: Path) -> None:
    made.add(numbers(1, 2))
    for plan in plan_all(made.root, store, leave_out_tensors="disk is full"):
        run(plan)
    (tensor,) = open_store(store).tensors()
    assert tensor.is_dumped
    assert "disk is full" in tensor.removed
    assert tensor.statistics.max == 2
