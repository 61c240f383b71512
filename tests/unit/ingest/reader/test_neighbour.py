"""What is told of a tensor to which content passed."""

from pathlib import Path

import ingest
from tests.made_runs import MadeRun, numbers
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly


def test_a_neighbour_is_told_with_its_operator_and_what_shows_it(made: MadeDump, store: Path) -> None:
    run = MadeRun(made)
    run.op("Mul.m", [numbers(1)], [numbers(3, 4)])
    run.op("Add.a", [numbers(3, 4)], [numbers(5, 6)])
    ingest_directly(made.root, store)
    (read,) = ingest.open_store(store).tensors("Add.*.input.0")
    (producer,) = read.producers
    assert producer.to_dict() == {
        "name": "Mul.m.output.0",
        "graph": read.graph,
        "op_type": "Mul",
        "op_name": "m",
        "fused_from": [],
        "by": "content",
        "is_certain": True,
    }
