"""What was asked for and is not in the store, and why."""

import shutil
from pathlib import Path

import pytest

import ingest
from ingest.questions.compare.run import compare
from ingest.questions.missing import MissingItem, MissingItems, why_never_dumped
from ingest.reader.catalog import Damage, DamagedStepWarning
from tests.damages import only
from tests.stores import DumpLibrary, asked_dump, ingest_directly, store_of

LOG = "Default/net-LogLoss/Log-op0"


@pytest.fixture
def dump(dumps: DumpLibrary, tmp_path: Path) -> Path:
    return asked_dump(dumps, tmp_path / "dump")


def rows(items: ingest.MissingItems) -> list[tuple[str, str, int | None]]:
    return [(item.what, item.name, item.rank) for item in items]


def test_a_dump_that_has_what_was_asked_for_misses_nothing(dump: Path, tmp_path: Path) -> None:
    assert ingest.missing(store_of(dump, tmp_path / "s", iteration="2")) == []


def test_steps_that_never_came_are_said_once_for_all_ranks(dump: Path, tmp_path: Path) -> None:
    items = ingest.missing(store_of(dump, tmp_path / "s", iteration="0|2|5-8"))
    assert rows(items) == [("step", "5-8", None), ("step", "0", None)]
    assert items[0].reason == "the newest step is 2: the job has ended, or has not got that far"


def test_a_damaged_step_does_not_prevent_the_answer(dump: Path, tmp_path: Path) -> None:
    store = store_of(dump, tmp_path / "s", iteration="0|2")
    shutil.rmtree(only(tmp_path / "s", "rank_1/step_2/*/index"))
    with pytest.warns(DamagedStepWarning, match="rank 1 step 2: index/"):
        assert rows(ingest.missing(store)) == [("step", "0", 0)]
    damages: list[Damage] = []
    ingest.missing(ingest.open_store(tmp_path / "s"), damages=damages)
    assert [str(damage.key) for damage in damages] == ["rank 1 step 2"]


def test_operators_are_named_with_what_the_graph_tells(dump: Path, tmp_path: Path) -> None:
    kernels = [LOG, "Default/net-LogLoss/Exp-op7", "name-regex(Default/nothing.+)", "While"]
    items = ingest.missing(store_of(dump, tmp_path / "s", iteration="2", dump_mode=1, kernels=kernels))
    assert [item.name for item in items] == kernels[1:]
    assert "fused, renamed or optimised away" in items[0].reason
    assert items[2].reason == "control flow has no tensors of its own"


def test_what_is_in_the_graph_and_was_not_dumped_is_told_apart(dump: Path, tmp_path: Path) -> None:
    for path in dump.rglob("Log.*"):
        path.unlink()
    items = ingest.missing(store_of(dump, tmp_path / "s", iteration="2", dump_mode=1, kernels=[LOG]))
    assert rows(items) == [("operator", LOG, None)]
    assert items[0].reason == f"{LOG} is in the graph, but was not dumped"


def test_statistics_and_devices_that_were_asked_for_are_missed(dump: Path, tmp_path: Path) -> None:
    store = store_of(
        dump, tmp_path / "s", device="Ascend", iteration="2", saved_data="full", support_device=[0, 1, 5]
    )
    assert rows(ingest.missing(store)) == [
        ("rank", "5", None),
        ("statistics", "statistics of the dump system", None),
    ]


def test_both_sides_of_a_comparison_may_be_samples(dump: Path, tmp_path: Path) -> None:
    """Otherwise the statistics of 200 elements would pass for those of a tensor."""
    store_of(dump, tmp_path / "s", iteration="2", e2e={"sample_mode": 1, "sample_num": 100})
    notes = compare(tmp_path / "s", dump).notes
    assert [note[:13] for note in notes if "sample" in note] == ["A is a sample", "B is a sample"]


def test_a_dump_without_a_configuration_says_nothing(dumps: DumpLibrary, tmp_path: Path) -> None:
    ingest_directly(dumps["synthetic-text"] / "torchair-eager", tmp_path / "s")
    assert ingest.missing(ingest.open_store(tmp_path / "s")) == []


ITEMS = MissingItems([MissingItem("step", "4-7", None, ""), MissingItem("operator", "Log", 1, "fused")])


def test_a_part_is_still_a_table_and_so_is_none() -> None:
    assert isinstance(ITEMS[1:], MissingItems)
    assert MissingItems().to_pandas().columns.tolist() == list(MissingItems.columns)


@pytest.mark.parametrize(
    ("op_type", "why"),
    [
        ("While", "control flow"),
        ("Partitioned_Call", "control flow"),
        ("NetOutput", "runs as no task"),
        ("UpdateState", "in the graph alone"),
        ("Reshape", "renames memory"),
        ("ExpandDims", "renames memory"),
    ],
)
def test_the_reason_follows_from_the_type(op_type: str, why: str) -> None:
    assert why in why_never_dumped(op_type)
    assert why_never_dumped(op_type.upper()) == why_never_dumped(op_type)


@pytest.mark.parametrize("op_type", ["MatMul", "", "ReshapeGrad", "WhileLoop", "DataFormatVecPermute"])
def test_nothing_is_said_of_others_with_similar_names(op_type: str) -> None:
    assert why_never_dumped(op_type) == ""
