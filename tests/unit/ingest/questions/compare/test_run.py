"""Comparing stores, ranks, steps and dumps, as they are in real dumps and made by hand."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingest
from ingest.questions.compare import run
from ingest.questions.compare.result import Verdict
from ingest.questions.compare.run import compare
from ingest.reader.tensor_filter import FilterFields
from tests.asked_dumps import asked_dump, store_of
from tests.damages import flip, only
from tests.dumps import DumpLibrary
from tests.npy_files import MadeDump, npy_header, tensor_name
from tests.pipeline import ingest_directly
from tests.two_ranks import ADD, TIME
from workers.errors import DamagedStore, UsageError
from workers.model import MIB, StepKey


def test_two_ranks_of_a_real_run(nan_log: str) -> None:
    found = compare(f"{nan_log}@0,2", f"{nan_log}@1,2")
    assert found.counts == {Verdict.EQUAL: 130, Verdict.DIFFERENT: 113}
    assert (found.verdict, found.is_within) == ("different", False)
    log = next(tensor for tensor in found.tensors if tensor.op_type == "Log" and tensor.io == "output")
    assert log.metrics is not None
    assert (log.verdict, log.metrics.nan_mismatch) == (Verdict.DIFFERENT, 2)
    values = [
        ingest.open_store(nan_log).tensors(log.name, rank=rank, step=2)[0].read().astype(float).ravel()
        for rank in (0, 1)
    ]
    keep = ~np.isnan(values[1])
    assert log.metrics.max_abs == pytest.approx(np.abs(values[0] - values[1])[keep].max())
    assert found.worst(1)[0].name == log.name
    assert [tensor.number for tensor in found.tensors] == sorted(tensor.number for tensor in found.tensors)
    assert found.first is not None
    assert found.first.tensor.number == min(tensor.number for tensor in found.tensors)


@pytest.mark.parametrize(
    "name",
    [
        "nan-log-2rank",
        "dtypes-1rank",
        "mindspore-2.7.1-cpu-sync/types",
        "msprobe-26.2.0-mindspore-cpu",
        "longnames-1rank",
    ],
)
def test_a_store_is_equal_to_the_dump_it_was_made_from(dumps: DumpLibrary, tmp_path: Path, name: str) -> None:
    """Nothing is written into the dump, which is read-only here."""
    corpus, _, part = name.partition("/")
    dump = dumps[corpus] / part
    ingest_directly(dump, tmp_path / "run.zarr")
    for a, b in ((tmp_path / "run.zarr", dump), (dump, tmp_path / "run.zarr")):
        found = compare(a, b, include_partial=True)
        assert set(found.counts) <= {Verdict.EQUAL}
        assert found.verdict == "equal"


def test_a_whole_run_is_compared_step_by_step(nan_log: str) -> None:
    found = compare(nan_log, nan_log)
    assert [(step.key_a, step.key_b) for step in found.steps] == [
        (StepKey(rank, step), StepKey(rank, step)) for step in (1, 2, 3) for rank in (0, 1)
    ]
    assert (found.verdict, found.first, found.tensors) == ("equal", None, ())


def test_steps_that_only_one_has_are_differences(nan_log: str, tmp_path: Path) -> None:
    shorter = tmp_path / "run.zarr"
    shutil.copytree(nan_log, shorter, ignore=shutil.ignore_patterns("step_3"))
    found = compare(nan_log, shorter)
    assert (found.only_a, found.only_b) == ((StepKey(0, 3), StepKey(1, 3)), ())
    assert (found.verdict, len(found.steps)) == ("different", 4)
    assert compare(nan_log, shorter, ignore_unmatched=True).verdict == "equal"
    assert compare(shorter, nan_log).only_b == (StepKey(0, 3), StepKey(1, 3))
    assert compare(f"{nan_log}@0,2", shorter).verdict == "equal"


def test_stores_and_steps_that_are_open_are_taken_too(nan_log: str) -> None:
    store = ingest.open_store(nan_log)
    assert compare(store, nan_log).verdict == "equal"
    found = compare(store.step(0, 2), store.step(1, 2))
    assert found.notes == ("rank 0 of A is compared with rank 1 of B",)
    assert found.counts[Verdict.DIFFERENT] == 113
    assert compare(store.step(1, 2), nan_log).verdict == "equal"


def test_partial_steps_are_left_out_and_named(made: MadeDump, tmp_path: Path) -> None:
    for step in (0, 1):
        made.add(np.ones(3), tensor_name(ADD, time=TIME), step=step)
    made.add(b"not npy", tensor_name("Bad.op-op1"), step=1)
    ingest_directly(made.root, tmp_path / "run.zarr")
    for a in (tmp_path / "run.zarr", made.root):
        found = compare(a, tmp_path / "run.zarr")
        assert len(found.steps) == 1
        assert {left.key for _, left in found.left_out} == {StepKey(0, 1)}
        whole = compare(a, tmp_path / "run.zarr", include_partial=True)
        assert (len(whole.steps), whole.left_out) == (2, ())
    with pytest.raises(UsageError, match="no complete step"):
        compare(f"{made.root}@step=1", made.root)


def test_a_step_that_is_complete_on_one_side_alone_is_a_difference_and_not_missing(
    made: MadeDump, tmp_path: Path
) -> None:
    for step in (0, 1):
        made.add(np.ones(3), tensor_name(ADD, time=TIME), step=step)
    ingest_directly(made.root, tmp_path / "whole.zarr")
    made.add(b"not npy", tensor_name("Bad.op-op1"), step=1)
    ingest_directly(made.root, tmp_path / "partial.zarr")
    for partial in (tmp_path / "partial.zarr", made.root):
        for a, b in ((partial, tmp_path / "whole.zarr"), (tmp_path / "whole.zarr", partial)):
            found = compare(a, b)
            assert (found.only_a, found.only_b, found.incomplete) == ((), (), 1)
            assert [left.key for _, left in found.left_out] == [StepKey(0, 1)]
            assert found.verdict == "different"
            assert compare(a, b, ignore_unmatched=True).verdict == "equal"


_PEAK = """
import sys
from ingest.questions.compare.run import compare
from workers.arrays.compiled import kernels

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

kernels.warm_up()
before = peak()
found = compare(sys.argv[1], sys.argv[2])
assert found.tensors[0].metrics.unequal == 1000, found
print((peak() - before) // 1024)
"""


def test_memory_does_not_depend_on_the_size_of_a_tensor(made: MadeDump, store: Path, tmp_path: Path) -> None:
    """Two of 512 MiB take less than one of them; two of 8 GiB have been seen to take as much."""
    nbytes = 512 * MIB
    other = MadeDump(tmp_path / "other")
    for rank, dump in enumerate((made, other)):
        path = dump.add(npy_header("<f4", (nbytes // 4,)), tensor_name(ADD, time=TIME))
        with path.open("r+b") as file:
            header = file.seek(0, 2)
            file.truncate(header + nbytes)
            file.seek(header + nbytes // 2)
            file.write(np.full(1000, 1 + rank, np.float32).tobytes())
    ingest_directly(made.root, store)
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, str(store), str(other.root)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 480


def test_damage_is_named_and_the_rest_compared(nan_log: str, tmp_path: Path) -> None:
    damaged = tmp_path / "run.zarr"
    shutil.copytree(nan_log, damaged)
    for shard in damaged.glob("rank_1/step_2/*/tensors/float32/c/0"):
        data = bytearray(shard.read_bytes())
        data[40:60] = bytes(20)
        shard.write_bytes(data)
    found = compare(f"{damaged}@0,2", f"{damaged}@1,2")
    assert found.damaged == found.counts[Verdict.UNKNOWN] > 0
    assert found.counts[Verdict.EQUAL] == 130


def test_a_step_whose_index_is_damaged_is_left_out(nan_log: str, tmp_path: Path) -> None:
    damaged = tmp_path / "run.zarr"
    shutil.copytree(nan_log, damaged)
    flip(only(damaged, "rank_0/step_2/*/statistics/c/0/0"))
    comparison = compare(damaged, nan_log)
    ((side, left_out),) = comparison.left_out
    assert (side, left_out.key, left_out.is_damaged) == ("A", StepKey(0, 2), True)
    assert [step.key_a for step in comparison.steps] == [
        key for key in (StepKey(rank, step) for step in (1, 2, 3) for rank in (0, 1)) if key != left_out.key
    ]
    assert comparison.counts.keys() == {Verdict.EQUAL}
    assert (comparison.verdict, comparison.incomplete) == ("different", 1)
    with pytest.raises(DamagedStore, match=r"no step of .* can be compared"):
        compare(f"{damaged}@0,2", f"{nan_log}@0,2")


def test_where_the_order_is_not_told_what_was_made_of_equal_operands_is_named(tmp_path: Path) -> None:
    """Files stand in the order of their paths: the last module is called first, and all follow from it."""
    layout = "step{step}/{module}.{io}.{slot}.npy"
    for side, spoilt in (("a", 0.0), ("b", 1.0)):
        directory = tmp_path / side / "step0"
        directory.mkdir(parents=True)
        values = np.arange(64, dtype=np.float32).reshape(8, 8)
        for module in "zyxw":
            np.save(directory / f"{module}.input.0.npy", values)
            values = values * 1.5 + 1
            values[3, 5] += spoilt * (module == "y")
            np.save(directory / f"{module}.output.0.npy", values)
        ingest_directly(tmp_path / side, tmp_path / f"{side}.zarr", layout=layout)
    first = compare(tmp_path / "a.zarr", tmp_path / "b.zarr").first
    assert first is not None
    assert first.tensor.name.endswith("y.output.0")
    assert "the dump does not tell the order of execution" in first.reason


def test_without_gradients_other_micro_batches_leave_the_parameters_to_be_compared(
    torch: Any, tmp_path: Path
) -> None:
    tokens = torch.arange(32).reshape(4, 8) % 11
    for name, size in (("two", 2), ("one", 4)):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Embedding(11, 4), torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        of = ("inputs", "outputs", "parameters")
        with ingest.record(net, tmp_path / name, what="tensors", of=of, advance="optimizer"):
            for _ in range(2):
                optimizer.zero_grad()
                for part in tokens.split(size):
                    (net(part).square().mean() * size / 4).backward()
                optimizer.step()
        ingest_directly(tmp_path / name, tmp_path / f"{name}.zarr")
    found = compare(tmp_path / "two.zarr", tmp_path / "one.zarr")
    assert found.verdict == "close"
    assert any("of these steps, only parameters are compared" in note for note in found.notes)


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
    monkeypatch.setattr(run, "MAX_LISTED", 3)
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


@pytest.mark.parametrize(
    ("chosen", "count"),
    [
        ({"role": "loss"}, 1),
        ({"role": "weight", "io": "input"}, 6),
        ({"name": "Log.*"}, 2),
        ({"where": "dtype == 'int32' and step == 1"}, 4),
        ({"where": "max > 1e30"}, 0),
    ],
)
def test_only_chosen_tensors_are_compared(nan_log: str, chosen: FilterFields, count: int) -> None:
    if not count:
        with pytest.raises(UsageError, match="fulfils --where 'max > 1e30'"):
            compare(f"{nan_log}@0,1", f"{nan_log}@1,1", **chosen)
        return
    comparison = compare(f"{nan_log}@0,1", f"{nan_log}@1,1", keep_equal=True, **chosen)
    assert len(comparison.tensors) == count


def test_conditions_name_what_both_kinds_of_sides_have(nan_log: str) -> None:
    with pytest.raises(UsageError, match="'source', which is not a column"):
        compare(nan_log, nan_log, where="source == 'x'")


def test_it_is_a_table_of_pandas(nan_log: str) -> None:
    table = compare(f"{nan_log}@0,2", f"{nan_log}@1,2", keep_equal=True).to_pandas()
    assert len(table) == 243
    assert table.groupby("verdict").size().to_dict() == {"different": 113, "equal": 130}
    assert table["max_abs"].dtype == float
