"""Replicas that do not agree, in real dumps: which rank, since when, in which tensor."""

import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ingest
from ingest.questions.divergence import divergence
from ingest.questions.placement.slot_kinds import SlotKind, slot_kind_of
from tests.cli import run
from tests.diverging import NORM, REDUCED, STATE, WEIGHT, absent, on_a_mesh, replicas, summary
from tests.dumps import DumpLibrary
from tests.pipeline import ingest_directly
from tests.replicas import Replicas
from workers.errors import UsageError
from workers.store.consolidated.blocks import TensorKey


def flip(directory: Path, pattern: str) -> None:
    """Flip one bit of the one file that fits."""
    (path,) = directory.glob(pattern)
    data = bytearray(path.read_bytes())
    data[-2] ^= 0x10
    path.write_bytes(data)


@pytest.fixture(scope="module")
def damaged(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The four ranks with a bit flipped in three of them, two operators and a step deleted."""
    directory = tmp_path_factory.mktemp("damaged")
    dump = shutil.copytree(dumps["lenet-4rank"] / "dump", directory / "dump")
    for path in (dump, *dump.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    flip(dump / "rank_2/LeNet/0/1", "ApplyMomentum.*-op3.*.input.0.*")
    flip(dump / "rank_0/LeNet/0/0", "Conv2D.*conv2-*.input.1.*")
    flip(dump / "rank_3/LeNet/0/1", "Parameter.conv1_weight.*")
    shutil.rmtree(dump / "rank_1/LeNet/0/2")
    for path in (dump / "rank_3/LeNet/0/1").glob("MaxPool.*"):
        path.unlink()
    ingest_directly(dump, directory / "run.zarr")
    return directory / "run.zarr"


@pytest.mark.parametrize("name", ["lenet-4rank", "tinybert-2rank", "nan-log-2rank"])
def test_replicas_agree_on_what_the_files_agree_on(dumps: DumpLibrary, tmp_path: Path, name: str) -> None:
    """Optimizer inputs and reduced gradients are equal, byte for byte; Adam leaves its outputs alone."""
    ingest_directly(dumps[name] / "dump", tmp_path / "run.zarr")
    store = ingest.open_store(tmp_path / "run.zarr")
    found = divergence(store)
    assert found.agree
    assert found.groups[0].ranks == tuple(store.ranks)
    assert found.groups[0].agreed == found.groups[0].compared > 100
    root, differing = dumps[name] / "dump", set()
    by_key: dict[tuple[int | None, str], set[bytes]] = {}
    for tensor in store.tensors():
        kind = slot_kind_of(
            TensorKey(
                tensor.net,
                tensor.graph,
                tensor.op_type,
                tensor.op_name,
                tensor.io,
                tensor.slot,
                tensor.occurrence,
            )
        )
        if kind in (SlotKind.COLLECTIVE, SlotKind.OPTIMIZER, SlotKind.OPTIMIZER_OUTPUT):
            payload = np.load(root / tensor.source).tobytes()
            by_key.setdefault((tensor.step, tensor.name), set()).add(payload)
    differing = {tensor for (_, tensor), payloads in by_key.items() if len(payloads) > 1}
    assert all(tensor.startswith("Adam.") and ".output." in tensor for tensor in differing)
    said = [note for note in found.notes if "outputs of optimizers" in note]
    assert bool(said) == bool(differing)
    if differing:
        assert said[0].startswith(f"{len(differing)} output")


def test_a_flipped_bit_is_named_by_rank_step_and_tensor(damaged: Path) -> None:
    found = divergence(ingest.open_store(damaged))
    assert {
        odd.ranks: (odd.first_step, odd.first.name.split(".")[0], odd.has_majority) for odd in found.odd
    } == {
        (0,): (0, "Conv2D", True),
        (2,): (1, "ApplyMomentum", True),
        (3,): (1, "Parameter", True),
    }
    assert all(odd.tensors == odd.steps == 1 and odd.healed for odd in found.odd)
    assert found.odd[0].others == (1, 2, 3)
    assert "rank_0/LeNet/0/0/Conv2D." in found.odd[0].source
    assert found.odd[0].values["l2_norm"][0] != found.odd[0].values["l2_norm"][1]


def test_a_missing_step_and_operator_are_named(damaged: Path) -> None:
    assert [row[:3] for row in absent(divergence(ingest.open_store(damaged)))] == [
        ("missing", "step", (1,)),
        ("missing", "operator", (3,)),
        ("missing", "operator", (3,)),
    ]


def test_the_command_says_it_and_exits_with_five(damaged: Path) -> None:
    said = run("divergence", damaged, code=5).stdout
    assert "rank 2 is off since step 1 (ranks 0-1, 3 agree)" in said
    assert "values  " in said
    answer = run("divergence", damaged, "--json", code=5).json
    assert answer["odd"][0]["first"]["op_type"] == "Conv2D"
    assert [group["ranks"] for group in answer["groups"]] == [[0, 1, 2, 3]]
    assert {row["what"] for row in answer["missing"]} == {"step", "operator"}
    limited = run("divergence", damaged, "--limit", 1, code=5)
    assert "3 differences, the first 1 shown" in limited.stderr


def test_a_name_that_nothing_has_is_refused_and_near_ones_are_named(damaged: Path) -> None:
    assert "MaxPool" in run("divergence", damaged, "--name", "MaxPol*", code=2).stderr


def test_given_groups_are_believed() -> None:
    """Two ranks that never agree are replicas where it is said so."""
    made = replicas(
        range(2), off=[(1, step, name) for step in range(4) for name in (WEIGHT, STATE, NORM, REDUCED)]
    )
    assert not divergence(made.store).groups
    found = divergence(made.store, [[0, 1]])
    assert summary(found) == [((0, 1), 0, WEIGHT)]
    assert found.groups[0].how == "given"


@pytest.mark.parametrize("groups", [[[7, 8]], [[0]], [[0, 1], [1, 2]], [[3, 9]]])
def test_a_group_that_is_not_there_is_refused(groups: list[list[int]]) -> None:
    with pytest.raises(UsageError):
        divergence(replicas().store, groups)


def test_partial_steps_are_left_out_and_named() -> None:
    made = replicas(steps=range(3))
    contents = {WEIGHT: 1, STATE: 2, REDUCED: 3, NORM: 4}
    for rank in range(4):
        made.put(rank, 3, contents | {WEIGHT: 1 + (rank == 2)}, status="partial" if rank == 2 else "complete")
    found = divergence(made.store)
    assert found.agree
    assert [str(left.key) for left in found.left_out] == ["rank 2 step 3"]
    assert summary(divergence(made.store, include_partial=True)) == [((2,), 3, WEIGHT)]


@settings(max_examples=15, deadline=None)
@given(
    mesh=st.tuples(st.integers(1, 3), st.integers(3, 4)),
    rank=st.integers(0, 8),
    span=st.tuples(st.integers(0, 3), st.integers(1, 4)),
    name=st.sampled_from([WEIGHT, NORM]),
)
def test_a_planted_difference_is_found_and_nothing_else(
    mesh: tuple[int, int], rank: int, span: tuple[int, int], name: str
) -> None:
    (parts, copies), (first, length) = mesh, span
    rank %= parts * copies
    off = [(rank, step, name) for step in range(first, min(first + length, 4))]
    found = divergence(on_a_mesh(off, parts, copies).store)
    ranks = {row.ranks for row in found.differences}
    # Where a part agreed in no step, nothing shows who its replicas are.
    if len(off) < 4 or parts == 1 or name == NORM:
        assert summary(found) == [((rank,), first, name)]
        assert found.odd[0].steps == len(off)
        assert found.odd[0].healed == (off[-1][1] < 3)
    else:
        assert ranks <= {(rank,)}


def test_what_agreed_on_few_values_is_not_said_to_have_never_agreed() -> None:
    """Both are not compared; why differs."""
    made = Replicas()
    for step, rank in itertools.product(range(3), range(2)):
        off = 50 if (step, rank) == (2, 1) else 0
        contents = {"Parameter.bias.output.0": step + off, "Parameter.label.output.0": 100 + 10 * rank + step}
        made.put(rank, step, contents, constant=True)
    found = divergence(made.store)
    assert found.agree
    never, sometimes = found.notes
    assert never.startswith("1 tensor that replicas can share never agreed, and cannot be compared: batches")
    assert "(Parameter.label.output.0)" in never
    assert sometimes.startswith("1 tensor that replicas can share agreed in some steps and not in others")
    assert "(Parameter.bias.output.0)" in sometimes
