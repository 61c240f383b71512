"""The calls that a step of a store or of a dump consists of."""

from pathlib import Path

import numpy as np

from ingest.questions.compare.alignment.step_calls import calls_of, with_contents
from ingest.questions.compare.runner import ThreadRunner
from ingest.questions.compare.selection import Selection
from ingest.questions.compare.sources import open_source
from ingest.questions.compare.step_tensors import StepTensors
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from workers.model import StepKey

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


def written(root: Path) -> MadeDump:
    """Write two operators: the second one reads what the first one writes."""
    made = MadeDump(root)
    made.add(VALUES, tensor_name("ReLU.net_relu-op0", "output", time=1))
    made.add(VALUES, tensor_name("Add.net_add-op1", "input", 0, time=2))
    made.add(np.ones(4, np.float16), tensor_name("Add.net_add-op1", "input", 1, time=2))
    made.add(VALUES + 1, tensor_name("Add.net_add-op1", "output", time=2))
    return made


def load(path: Path) -> StepTensors:
    return open_source(Selection(str(path))).load(StepKey(0, 0))


def test_each_operator_is_a_call_with_what_it_reads_and_writes(made: MadeDump, store: Path) -> None:
    ingest_directly(written(made.root).root, store)
    operators, calls, values = calls_of(load(store))
    assert [(key[2], call.op_type) for key, call in zip(operators, calls, strict=True)] == [
        ("ReLU", "ReLU"),
        ("Add", "Add"),
    ]
    relu, add = calls
    assert (len(relu.inputs), len(relu.outputs), len(add.inputs), len(add.outputs)) == (0, 1, 2, 1)
    assert relu.result is not None
    assert relu.result.identity == add.inputs[0].identity
    assert add.outputs[0].identity not in {relu.result.identity, None}
    assert [value.size for value in add.inputs] == [6, 4]
    assert [(value.is_weak, value.is_narrow) for value in add.inputs] == [(False, False), (True, True)]
    assert len(values) == 4


def test_contents_of_a_dump_are_read_where_they_are_not_known(made: MadeDump, store: Path) -> None:
    dump = written(made.root).root
    ingest_directly(dump, store)
    before = load(dump)
    assert not before.digests.any()
    with ThreadRunner(1) as runner:
        after = with_contents(before, range(len(before.keys)), runner)
        assert with_contents(after, range(len(after.keys)), runner) is after
    stored = load(store)
    assert after.keys == stored.keys
    np.testing.assert_array_equal(after.digests, stored.digests)
    np.testing.assert_array_equal(after.statistics, stored.statistics)
