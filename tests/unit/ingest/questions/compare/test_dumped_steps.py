"""The steps of a dump are loaded from its files, in place."""

from pathlib import Path

import numpy as np

from ingest.layouts.detect import find_dump
from ingest.questions.compare.dumped_steps import DumpSource
from ingest.questions.compare.selection import Selection
from tests.dumps import DumpLibrary
from workers.tasks.operands import InFile, read_whole


def test_operands_lead_to_the_elements_of_the_files(dumps: DumpLibrary) -> None:
    dump = dumps["nan-log-2rank"]
    source = DumpSource(Selection(str(dump)), find_dump(dump))
    tensors = source.load(source.keys[0])
    for number in range(len(tensors.keys)):
        operand = tensors.operand(number)
        (payload,) = read_whole([operand])
        assert isinstance(payload, bytes)
        if isinstance(operand.place, InFile):
            saved = np.load(Path(operand.place.root, operand.place.source.path))
            assert operand.values(payload).tobytes() == saved.tobytes()
    assert not tensors.digests.any(), "nothing is known of elements that nobody has read"


def test_one_rank_and_step_are_chosen(dumps: DumpLibrary) -> None:
    dump = dumps["nan-log-2rank"]
    source = DumpSource(Selection(str(dump), rank=1), find_dump(dump))
    assert {key.rank for key in source.keys} == {1}
    assert source.label == f"{dump}@rank=1"
    assert not source.coordinates()
