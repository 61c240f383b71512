"""The comparisons of single steps become one answer, of bounded size."""

from pathlib import Path

import numpy as np
import pytest

from ingest.questions.compare import builder
from ingest.questions.compare.result import Verdict
from ingest.questions.compare.run import compare
from tests.asked_dumps import asked_dump, store_of
from tests.dumps import DumpLibrary
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from tests.two_ranks import ADD, TIME
from workers.errors import UsageError


@pytest.fixture
def many(made: MadeDump, store: Path) -> str:
    """Two ranks, three steps, five tensors: tensor `n` differs by `n` in each step."""
    for rank in (0, 1):
        for step in range(3):
            for slot in range(5):
                values = np.full(4, 10.0 + rank * slot)
                made.add(values, tensor_name(ADD, slot=slot, time=TIME + slot), rank=rank, step=step)
    ingest_directly(made.root, store)
    return str(store)


def test_of_many_differences_the_worst_are_listed_and_all_are_counted(
    many: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = compare(f"{many}@0", f"{many}@1")
    assert (whole.counts[Verdict.DIFFERENT], whole.counts[Verdict.EQUAL]) == (12, 3)
    assert len(whole.tensors) == 12
    monkeypatch.setattr(builder, "MAX_LISTED", 3)
    few = compare(f"{many}@0", f"{many}@1")
    assert few.counts == whole.counts
    assert few.first == whole.first
    assert [tensor.name for tensor in few.tensors] == [f"{ADD}.output.4"] * 3
    assert "only the 3 worst tensors are listed, 9 others are only counted" in few.notes


def test_tensors_are_in_order_of_step_rank_and_execution(many: str) -> None:
    tensors = compare(many, many, keep_equal=True).tensors
    places = [(tensor.key_a.order, tensor.number) for tensor in tensors]
    assert places == sorted(places)
    assert len(tensors) == 30


def test_an_answer_about_nothing_is_refused(made: MadeDump, tmp_path: Path) -> None:
    other = MadeDump(tmp_path / "other")
    other.root.mkdir()
    made.add(np.ones(3), tensor_name(ADD, time=TIME))
    other.add(np.ones(3), tensor_name("MatMul.other-op9", time=TIME))
    with pytest.raises(UsageError, match="has a counterpart in") as refusal:
        compare(made.root, other.root)
    assert f"('{ADD}.output.0' and 'MatMul.other-op9.output.0', for instance)" in refusal.value.message
    assert "--map" in refusal.value.hint


def test_a_comparison_of_samples_says_that_it_is_one(dumps: DumpLibrary, tmp_path: Path) -> None:
    """On both sides, of a store and of a dump where it lies: what is between was never compared."""
    dump = asked_dump(dumps, tmp_path / "dump")
    sampled = store_of(dump, tmp_path / "s", e2e={"sample_mode": 1, "sample_num": 100})
    told = compare(f"{sampled.url}@0,2", f"{dump}@1,2")
    about = "of each tensor, its dump has the first and the last 100 elements"
    assert [note.partition(". ")[0] for note in told.notes if "sample" in note] == [
        f"{side} is a sample: {about}" for side in "AB"
    ]
    whole = store_of(dump, tmp_path / "w", e2e={"sample_mode": 0})
    (note,) = (note for note in compare(f"{whole.url}@0,2", f"{sampled.url}@0,2").notes if "sample" in note)
    assert note.startswith("B is a sample")


def test_a_note_tells_how_to_compare_shards(made: MadeDump, store: Path) -> None:
    for rank, shape in enumerate(((2, 3), (4, 3))):
        made.add(np.ones(shape), tensor_name(ADD, time=TIME), rank=rank)
    ingest_directly(made.root, store)
    (note,) = compare(f"{store}@0", f"{store}@1").notes[-1:]
    assert note.startswith("the shapes of 1 tensor differ: if ranks hold shards of them, compare all ranks")
