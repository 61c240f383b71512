"""Comparing stores, ranks, steps and dumps, as they are in real dumps and made by hand."""

import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ingest
from ingest.questions.compare import run
from ingest.questions.compare.html import to_html
from ingest.questions.compare.result import FirstDifference, Verdict
from ingest.questions.compare.run import compare
from ingest.questions.compare.runner import PairRunner
from ingest.questions.compare.selection import Selection, pair_steps
from ingest.questions.compare.thresholds import Thresholds
from ingest.reader.snapshot import LeftOut
from ingest.reader.tensor_filter import FilterFields
from ingest.reader.text import MAX_NBYTES
from tests.damages import flip, only
from tests.replicas import ADD, TIME, two_ranks
from tests.stores import (
    SMALL_GRID,
    DumpLibrary,
    MadeDump,
    Values,
    asked_dump,
    ingest_directly,
    npy_header,
    store_of,
    tensor_name,
    unpack,
)
from workers.arrays.comparison import METRICS
from workers.arrays.dtypes import from_name
from workers.errors import ClusterError, DamagedStore, SourceChanged, UsageError
from workers.model import MIB, StepKey
from workers.store import commit
from workers.store.model import StoreAddress
from workers.store.opening import open_objects
from workers.store.record import WithoutTensors
from workers.tasks import compare as task
from workers.tasks.compare import Pair, compare_pairs
from workers.tasks.operands import Operand


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
    assert any(
        "of these steps, only parameters and their gradients are compared" in note for note in found.notes
    )


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


# Which step is compared with which, and what only one side has.


def side(
    ranks: range | list[int],
    steps: range | list[int],
    *,
    rank: int | None = None,
    step: int | None = None,
    left_out: list[StepKey] | None = None,
) -> Any:
    """Return a side with these steps on each of these ranks; `rank` and `step` are what the user named."""
    return whole([StepKey(n, number) for number in steps for n in ranks], left_out or (), rank, step)


def whole(
    keys: Iterable[StepKey],
    left_out: Iterable[StepKey] = (),
    rank: int | None = None,
    step: int | None = None,
) -> Any:
    selection = Selection("run.zarr", rank, step)
    left = [LeftOut(key, "partial") for key in left_out]
    return SimpleNamespace(label=str(selection), selection=selection, keys=list(keys), left_out=left)


@pytest.mark.parametrize(
    ("a", "b", "compared", "only_a", "only_b", "notes"),
    [
        (
            side([0, 1], [3, 4]),
            side([1, 2], [4, 5]),
            [((1, 4), (1, 4))],
            [(0, 3), (1, 3), (0, 4)],
            [(2, 4), (1, 5), (2, 5)],
            [],
        ),
        (
            side([3], [1, 2]),
            side([7], [2, 3]),
            [((3, 2), (7, 2))],
            [(3, 1)],
            [(7, 3)],
            ["rank 3 of A is compared with rank 7 of B"],
        ),
        (side([0], [1], rank=0, step=1), side([0], [5], rank=0, step=5), [((0, 1), (0, 5))], [], [], None),
        (
            side([0, 1], [2], step=2),
            side([0, 1], range(5)),
            [((0, 2), (0, 2)), ((1, 2), (1, 2))],
            [],
            [],
            None,
        ),
        (side([0, 1], [2]), side([0], [2], step=2), [((0, 2), (0, 2))], [], [], None),
        (side([0, 1], [2], step=2), side([0], [2]), [((0, 2), (0, 2))], [(1, 2)], [], None),
        (side([1], [2, 3], rank=1), side([0, 1], [3, 4]), [((1, 3), (1, 3))], [(1, 2)], [(1, 4)], None),
    ],
    ids=[
        "several ranks and steps by number",
        "a single rank whatever the number",
        "another step if both are named",
        "who names a step does not miss others",
        "as B",
        "and misses other ranks of the step",
        "who names a rank does not miss others",
    ],
)
def test_which_steps_are_compared(  # noqa: PLR0917
    a: Any, b: Any, compared: list[Any], only_a: list[Any], only_b: list[Any], notes: list[str] | None
) -> None:
    pairing = pair_steps(a, b)
    assert pairing.groups == tuple(((StepKey(*x),), (StepKey(*y),)) for x, y in compared)
    assert (pairing.only_a, pairing.only_b) == (
        tuple(StepKey(*key) for key in only_a),
        tuple(StepKey(*key) for key in only_b),
    )
    assert pairing.half_complete == ()
    assert notes is None or pairing.notes == notes


def test_a_step_that_is_named_on_one_side_alone_is_compared_with_no_other() -> None:
    with pytest.raises(UsageError, match="no rank and step in common"):
        pair_steps(side([0], [1], rank=0, step=1), side([0], [5]))


def test_a_step_that_is_complete_on_one_side_alone_is_not_missing() -> None:
    pairing = pair_steps(side([3], [1, 2, 3]), side([7], [1], left_out=[StepKey(7, 2)]))
    assert pairing.only_a == (StepKey(3, 3),)
    assert pairing.half_complete == (StepKey(3, 2),)
    turned = pair_steps(side([7], [1], left_out=[StepKey(7, 2)]), side([3], [1, 2, 3]))
    assert (turned.only_b, turned.half_complete) == ((StepKey(3, 3),), (StepKey(3, 2),))


def test_what_has_nothing_in_common_is_refused_with_what_there_is() -> None:
    with pytest.raises(UsageError, match=r"run\.zarr@step=1 and run\.zarr have no rank") as refusal:
        pair_steps(side([0, 1], [1], step=1), side([0, 1], [5, 6, 7]))
    assert refusal.value.hint == (
        "A has ranks 0-1 and step 1, B has ranks 0-1 and steps 5-7. Name what to compare: STORE@RANK,STEP."
    )


_KEYS = st.sets(st.builds(StepKey, st.integers(0, 2), st.integers(0, 3)), min_size=1)


@given(_KEYS, _KEYS, _KEYS)
def test_without_a_selection_every_step_is_compared_or_named_once(
    a: set[StepKey], b: set[StepKey], left_out: set[StepKey]
) -> None:
    in_order = [sorted(keys, key=lambda key: key.order) for keys in (a, b)]
    ours, theirs = whole(in_order[0]), whole(in_order[1], left_out - b)
    try:
        pairing = pair_steps(ours, theirs)
    except UsageError:
        assert not a & b
        return
    compared_a, compared_b = ([group[n][0] for group in pairing.groups] for n in (0, 1))
    assert (
        sorted([*compared_a, *pairing.only_a, *pairing.half_complete], key=lambda key: key.order) == ours.keys
    )
    assert sorted([*compared_b, *pairing.only_b], key=lambda key: key.order) == theirs.keys
    assert pair_steps(theirs, ours).groups == tuple(
        sorted(((y, x) for x, y in pairing.groups), key=lambda group: group[0][0].order)
    )


# One step against another: what digests decide, what elements decide, and what is not compared.


def test_equal_digests_are_decided_without_reading_a_payload(nan_log: str, tmp_path: Path) -> None:
    bare = tmp_path / "bare.zarr"
    shutil.copytree(nan_log, bare, ignore=shutil.ignore_patterns("tensors"))
    found = compare(bare, nan_log, keep_equal=True)
    assert found.counts == {Verdict.EQUAL: 1458}
    assert {tensor.basis for tensor in found.tensors} == {"digest"}


ONES = np.ones(4, np.float32)
RISING = np.linspace(0, 1, 50, dtype=np.float32)
GRID = np.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize(
    ("a", "b", "verdict", "reason"),
    [
        (np.ones((2, 3)), np.ones((3, 2)), Verdict.SHAPE, "2x3 and 3x2"),
        (RISING.astype(ml_dtypes.bfloat16), RISING, Verdict.CLOSE, ""),
        (ONES, ONES.view(np.int32), Verdict.DIFFERENT, ""),
        (np.asfortranarray(GRID), GRID, Verdict.EQUAL, ""),
        (np.zeros(()), np.ones(()), Verdict.DIFFERENT, ""),
        (np.zeros(0), np.ones(0), Verdict.EQUAL, ""),
        (np.zeros((2, 0, 3)), np.ones((2, 0, 3)), Verdict.EQUAL, ""),
    ],
    ids=[
        "shapes",
        "types",
        "bytes of another type",
        "order of axes",
        "scalars",
        "empty",
        "empty along an axis",
    ],
)
def test_shapes_types_and_orders_of_axes(  # noqa: PLR0917
    made: MadeDump, store: Path, a: Values, b: Values, verdict: Verdict, reason: str
) -> None:
    found = compare(f"{two_ranks(made, store, a, b)}@0", f"{store}@1", keep_equal=True)
    (tensor,) = found.tensors
    assert tensor.verdict is verdict
    assert tensor.reason.startswith(reason)
    assert (tensor.dtype_a, tensor.dtype_b) == (a.dtype.name, b.dtype.name)
    assert (tensor.metrics is None) == (verdict is Verdict.SHAPE or tensor.basis == "digest")
    assert (found.first is None) == (verdict in {Verdict.EQUAL, Verdict.CLOSE})
    if verdict is Verdict.EQUAL and tensor.metrics is not None:
        assert tensor.metrics.max_abs == 0


@pytest.mark.parametrize("descr", ["<U3", "|V12", "<M8[s]"])
def test_what_is_no_number_is_compared_by_its_bytes(made: MadeDump, store: Path, descr: str) -> None:
    a = np.frombuffer(np.array(["abc", "def", "ghi", "jkl"]).tobytes(), descr)
    b = a.copy()
    b[1] = a[0]
    found = compare(f"{two_ranks(made, store, a, b)}@0", f"{store}@1")
    (tensor,) = found.tensors
    assert tensor.verdict is Verdict.DIFFERENT
    assert tensor.metrics is not None
    assert (tensor.metrics.unequal, math.isnan(tensor.metrics.max_abs)) == (1, True)


@pytest.mark.parametrize("dtype", ["f4", ">f4", "f2", "i4", "i8", "?", "c8", "bfloat16"])
def test_pieces_of_a_large_tensor_make_the_same_figures(
    made: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    rng = np.random.default_rng(0)
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    b = (rng.standard_normal(4000) * 10).round(2 if kind.kind in "fc" else 0).astype(kind)
    a = b.copy()
    a[::7] = a[3]
    two_ranks(made, store, a, b, SMALL_GRID)
    (whole,) = compare(f"{store}@0", f"{store}@1").tensors
    monkeypatch.setattr(task, "WHOLE_NBYTES", 0)
    monkeypatch.setattr(task, "_PIECE", 64)
    (pieces,) = compare(f"{store}@0", f"{store}@1").tensors
    (of_dump,) = compare(f"{made.root}@0", f"{store}@1").tensors
    assert whole.metrics is not None
    for found in (pieces, of_dump):
        assert found.metrics is not None
        for name in METRICS:
            assert getattr(found.metrics, name) == pytest.approx(getattr(whole.metrics, name), rel=1e-9), name
    assert compare(f"{made.root}@1", f"{store}@1").verdict == "equal"


def test_statistics_are_compared_where_only_these_were_dumped(dumps: DumpLibrary, tmp_path: Path) -> None:
    of_probe = dumps["msprobe-26.2.0-pytorch-cpu"]
    ingest_directly(of_probe / "tensor-mix", tmp_path / "run.zarr")
    found = compare(tmp_path / "run.zarr", of_probe / "statistics", keep_equal=True)
    # Where there are infinities, msProbe's numbers are of these, and not comparable with ours.
    assert found.counts == {Verdict.CLOSE: 136, Verdict.UNKNOWN: 2}
    assert {tensor.op_type for tensor in found.tensors if tensor.verdict is Verdict.UNKNOWN} == {
        "Torch.where"
    }
    assert all(tensor.dtype_a == tensor.dtype_b for tensor in found.tensors)
    assert {tensor.basis for tensor in found.tensors} == {"statistics", ""}
    assert not found.is_within


def test_statistics_that_both_dumps_call_infinite_or_nan_are_alike(tmp_path: Path) -> None:
    """A store of statistics alone does not differ from itself, only from one that says something else."""
    unpack("pt/pytorch-logs", tmp_path)
    dump = tmp_path / "pytorch-logs" / "nvdlfw-stats" / "dump"
    ingest_directly(dump, tmp_path / "a.zarr")
    itself = compare(tmp_path / "a.zarr", tmp_path / "a.zarr", keep_equal=True)
    assert itself.counts == {Verdict.CLOSE: 48}
    assert [tensor.reason for tensor in itself.tensors].count("both dumps say l1_norm inf") == 2
    logs = dump.rglob("nvdlfw_inspect_globalrank-0.log")
    (log,) = (path for path in logs if "inf" in path.read_text())
    log.write_text(re.sub(r"\binf\b", "nan", log.read_text()))
    ingest_directly(dump, tmp_path / "b.zarr")
    assert compare(tmp_path / "a.zarr", tmp_path / "b.zarr").counts[Verdict.UNKNOWN] == 2


def test_rules_say_what_is_looked_at(made: MadeDump, store: Path) -> None:
    two_ranks(made, store, np.array([1.0, 2.0]), np.array([1.0, 2.1]))
    for limits, verdict in (
        ({"max_abs": 0.2}, Verdict.CLOSE),
        ({"max_abs": 0.01}, Verdict.DIFFERENT),
        ({"ignore": True}, Verdict.IGNORED),
    ):
        thresholds = Thresholds.model_validate({"rules": [{"name": "Add.*", **limits}]})
        found = compare(f"{store}@0", f"{store}@1", thresholds=thresholds)
        assert found.counts[verdict] == 1
        assert found.is_within == (verdict is not Verdict.DIFFERENT)


def test_without_elements_statistics_decide_what_digests_do_not(made: MadeDump, store: Path) -> None:
    values = np.linspace(-1, 1, 50, dtype=np.float32)
    two_ranks(made, store, values, values[::-1].copy())
    swapped = compare(f"{store}@0", f"{store}@1", elements=False)
    (row,) = swapped.tensors
    assert (row.verdict, row.basis, row.metrics) == (Verdict.CLOSE, "statistics", None)
    assert row.reason == "statistics agree; elements were not read"
    assert compare(f"{store}@0", f"{store}@1").counts == {Verdict.DIFFERENT: 1}
    with pytest.raises(UsageError, match="by elements"):
        compare(store, store, elements=False, across_layouts=True)


# The first difference names the cause, and not what an operator wrote in place.


MOMENTUM = "ApplyMomentum.opt-Momentum_ApplyMomentum-op0"


@pytest.fixture
def two_rates(made: MadeDump, store: Path) -> str:
    """A store of two ranks whose optimizer had different rates, and wrote weight and accumulator in place."""
    for rank, rate in enumerate((0.055, 0.05)):
        weight = np.ones((2, 3), np.float32) * np.float32(1 - rate)
        inputs = [weight, weight * 2, np.float32(rate), np.ones((2, 3), np.float32), np.float32(0.9)]
        for slot, values in enumerate(inputs):
            made.add(np.asarray(values), tensor_name(MOMENTUM, "input", slot, time=TIME), rank=rank)
        made.add(weight, tensor_name(MOMENTUM, "output", time=TIME + 1), rank=rank)
    ingest_directly(made.root, store)
    return str(store)


def check_the_rate_is_named(first: FirstDifference | None) -> None:
    assert first is not None
    assert first.tensor.name == f"{MOMENTUM}.input.2"
    assert first.reason == "0.055 instead of 0.05"
    assert first.says == "2 of the other 4 inputs differ or could not be compared"
    assert [(known.name[-1], known.differs, known.written_in_place) for known in first.inputs] == [
        ("2", True, False),
        ("0", True, True),
        ("1", True, True),
        ("3", False, False),
        ("4", False, False),
    ]
    assert first.others[0].says.endswith("(written in place)")


def test_the_cause_comes_before_what_an_optimizer_wrote_in_place(two_rates: str, made: MadeDump) -> None:
    check_the_rate_is_named(compare(f"{two_rates}@0", f"{two_rates}@1").first)
    check_the_rate_is_named(compare(f"{made.root}@0", f"{made.root}@1").first)


def test_the_cause_is_in_the_page_and_in_plain_values(two_rates: str) -> None:
    comparison = compare(f"{two_rates}@0", f"{two_rates}@1")
    assert "0.055 instead of 0.05" in to_html(comparison)
    first = json.loads(json.dumps(comparison.to_dict()["first"]))
    assert (first["reason"], first["name_a"]) == ("0.055 instead of 0.05", f"{MOMENTUM}.input.2")
    assert first["inputs"][0] == {
        "name": f"{MOMENTUM}.input.2",
        "verdict": "different",
        "reason": first["inputs"][0]["reason"],
        "written_in_place": False,
        "value_a": "0.055",
        "value_b": "0.05",
    }


def test_the_inputs_of_the_first_operator_that_differs_are_told(made: MadeDump, store: Path) -> None:
    for rank in (0, 1):
        made.add(np.ones(3), tensor_name(ADD, "input", time=TIME), rank=rank)
        made.add(np.full(3, rank + 1.0), tensor_name(ADD, "output", time=TIME + 1), rank=rank)
    ingest_directly(made.root, store)
    first = compare(f"{store}@0", f"{store}@1").first
    assert first is not None
    assert (first.tensor.io, first.says) == ("output", "its inputs are equal")
    assert [(known.name, known.verdict) for known in first.inputs] == [("Add.net_Add-op0.input.0", "equal")]


def test_a_value_whose_element_was_removed_is_told_by_its_statistics(two_rates: str) -> None:
    objects = open_objects(StoreAddress(two_rates))
    committed = commit.read(objects, StepKey(0, 0))
    assert committed is not None
    commit.drop_tensors(objects, committed, WithoutTensors("2026-01-02T03:04:05+00:00", "gc", "old"))
    first = compare(f"{two_rates}@0", f"{two_rates}@1").first
    assert first is not None
    assert first.reason == "0.055 instead of 0.05"


def test_statistics_without_type_and_shape_do_not_tell_an_element(tmp_path: Path) -> None:
    for name, least in (("a", 1.5), ("b", 2.5)):
        log = tmp_path / name / "nvdlfw_inspect_statistics_logs/nvdlfw_inspect_globalrank-0.log"
        log.parent.mkdir(parents=True)
        line = "2026-11-22 00:32:33,556 - INFO - fc1_activation_min \t iteration=000000 \t value="
        log.write_text(f"{line}{least}\n")
    first = compare(tmp_path / "a", tmp_path / "b").first
    assert first is not None
    assert first.reason == "min 1.5 and 2.5"


# Pairs are compared in batches, in threads or tasks.


def pair(nbytes: int) -> Pair:
    """Return two tensors of which nothing is known but their digest, which is the same."""
    side = Operand("rank 0 step 0", from_name("uint8"), (nbytes // 2,), nbytes // 2, None, digest=b"x" * 16)
    return Pair(side, side)


class FailingClient:
    """A cluster of which every task fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def nthreads(self) -> dict[str, int]:
        return {"a": 1}

    def submit(self, *_: Any, **__: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(self._error)
        return future


@pytest.mark.parametrize(
    ("raised", "expected"),
    [(SourceChanged("it changed"), SourceChanged), (ValueError("broken"), ClusterError)],
)
def test_an_error_of_a_worker_is_one_of_ours(raised: Exception, expected: type[Exception]) -> None:
    client: Any = FailingClient(raised)
    with pytest.raises(expected):
        list(PairRunner(client).map(compare_pairs, [[pair(2)]]))


# The answer as a page.


@pytest.fixture
def hostile(made: MadeDump, store: Path) -> Callable[[], str]:
    """A store of two ranks whose only operator has a name that a page would execute."""

    def build() -> str:
        name = tensor_name("Add.<script>alert(1)<!--&quot;'\"--op0", time=TIME)
        for rank in (0, 1):
            made.add(np.array([float(rank + 1)]), name, rank=rank)
        ingest_directly(made.root, store)
        return str(store)

    return build


def test_names_are_escaped_on_the_page(hostile: Callable[[], str]) -> None:
    store = hostile()
    page = to_html(compare(f"{store}@0", f"{store}@1"))
    assert "<script>alert" not in page
    assert page.count("&lt;script&gt;alert(1)") == 2
    assert page.count("<script>") == 1


def test_a_page_needs_nothing_else_and_begins_with_the_first_difference(nan_log: str) -> None:
    page = to_html(compare(f"{nan_log}@0,2", f"{nan_log}@1,2"))
    assert "http" not in page.replace("http-equiv", "")
    assert page.index("First difference") < page.index("<table")
    assert page.count('<td class="bad">different</td>') == 113
    equal = to_html(compare(nan_log, nan_log))
    assert "First difference" not in equal


def test_a_notebook_shows_the_worst_in_small(hostile: Callable[[], str]) -> None:
    store = hostile()
    shown = compare(f"{store}@0", f"{store}@1")._repr_html_()
    assert "<script" not in shown
    assert "1 different" in shown
    assert len(shown.encode()) <= MAX_NBYTES
