"""What the tensors of a step have in common, wherever they are."""

from pathlib import Path

from ingest.questions.compare.selection import Selection
from ingest.questions.compare.sources import open_source
from ingest.questions.compare.step_tensors import StepTensors
from tests.dumps import DumpLibrary


def first_step(where: Path | str) -> StepTensors:
    source = open_source(Selection(str(where)))
    return source.load(source.keys[0])


def test_each_shape_that_occurs_is_given_at_least_once_and_few_twice(
    dumps: DumpLibrary, nan_log: str
) -> None:
    stored, dumped = first_step(nan_log), first_step(dumps["nan-log-2rank"])
    assert set(stored.different_shapes) == set(stored.shapes)
    assert sorted(dumped.different_shapes) == sorted(set(dumped.shapes))
    assert len(stored.different_shapes) < len(stored.shapes)
