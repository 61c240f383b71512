"""Where ranks that should agree do not, since when, and which of them is off."""

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import ingest
from ingest.api import open_store
from ingest.questions.divergence import divergence
from ingest.questions.divergence.agreement import ABSENT, labels_of, telling
from ingest.questions.placement.slot_kinds import SlotKind, slot_kind_of
from tests.cli import run
from tests.flips import flip
from tests.replicas import (
    ACTIVATION,
    NORM,
    REDUCED,
    STATE,
    WEIGHT,
    Replicas,
    absent,
    on_a_mesh,
    replicas,
    summary,
)
from tests.sharded_net import LAYOUT, Config, simulate, write
from tests.stores import DumpLibrary, MadeDump, ingest_and_open, ingest_directly, tensor_name
from workers.arrays.statistics import FIELDS, summarise
from workers.errors import UsageError
from workers.store.consolidated.blocks import Block, TensorKey

# Replicas that do not agree, in real dumps: which rank, since when, in which tensor.


def flip_one(directory: Path, pattern: str) -> None:
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
    flip_one(dump / "rank_2/LeNet/0/1", "ApplyMomentum.*-op3.*.input.0.*")
    flip_one(dump / "rank_0/LeNet/0/0", "Conv2D.*conv2-*.input.1.*")
    flip_one(dump / "rank_3/LeNet/0/1", "Parameter.conv1_weight.*")
    shutil.rmtree(dump / "rank_1/LeNet/0/2")
    for path in (dump / "rank_3/LeNet/0/1").glob("MaxPool.*"):
        path.unlink()
    ingest_directly(dump, directory / "run.zarr")
    return directory / "run.zarr"


@pytest.mark.parametrize("name", ["lenet-4rank", "tinybert-2rank", "nan-log-2rank"])
def test_replicas_agree_on_what_the_files_agree_on(dumps: DumpLibrary, tmp_path: Path, name: str) -> None:
    """Optimizer inputs and reduced gradients are equal, byte for byte; Adam leaves its outputs alone."""
    store = ingest_and_open(dumps[name] / "dump", tmp_path / "run.zarr")
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


# Who agrees with whom, and on what agreeing tells nothing.


@settings(max_examples=60, deadline=None)
@given(
    codes=arrays.arrays(
        np.uint8, st.tuples(st.integers(1, 6), st.integers(1, 12)), elements=st.integers(0, 3)
    ),
    data=st.data(),
)
def test_a_pattern_is_who_agrees_with_whom(codes: np.ndarray, data: st.DataObject) -> None:
    """Against the obvious way to say it."""
    present = data.draw(arrays.arrays(np.bool_, codes.shape))
    digest = np.zeros((*codes.shape, 16), np.uint8)
    digest[:, :, 7] = codes + 1
    digest[:, :, 9] = 5
    digest[~present] = 0
    statistics = np.full((*codes.shape, len(FIELDS)), np.nan)
    ranks = tuple(range(10, 10 + len(codes)))
    row = np.where(present, 0, -1).astype(np.int32)
    found = labels_of(Block(3, ranks, row, statistics, digest), ranks)
    for tensor in range(codes.shape[1]):
        expected = [
            min(j for j in range(len(codes)) if present[j, tensor] and codes[j, tensor] == codes[i, tensor])
            if present[i, tensor]
            else ABSENT
            for i in range(len(codes))
        ]
        assert found[:, tensor].tolist() == expected


@settings(max_examples=100, deadline=None)
@given(value=st.floats(-1e3, 1e3), other=st.floats(-1e3, 1e3), size=st.integers(3, 50), data=st.data())
def test_what_holds_two_values_tells_nothing(
    value: float, other: float, size: int, data: st.DataObject
) -> None:
    """A mask agrees by accident; what holds three values that are far apart does not."""
    which = data.draw(arrays.arrays(np.bool_, size))
    two = np.where(which, value, other)
    three = np.concatenate([[-3.0, 0.5, 3.0], two])
    statistics = np.array([[summarise(two).as_row(), summarise(three).as_row()]])
    block = Block(0, (0,), np.zeros((1, 2), np.int32), statistics, np.ones((1, 2, 16), np.uint8))
    assert not telling(block)[0]


def test_inputs_that_hold_a_weight_are_weights() -> None:
    made = Replicas()
    for step in range(2):
        for rank in range(2):
            contents = {"MatMul.fc.input.1": 5 + step, WEIGHT: 5 + step}
            made.put(rank, step, contents | ({"MatMul.fc.input.1": 9} if rank and step else {}))
    found = divergence(made.store)
    assert summary(found) == [((0, 1), 1, "MatMul.fc.input.1")]
    assert found.odd[0].first.why == "parameter"


def test_what_is_only_reported_is_compared_by_statistics() -> None:
    made = Replicas()
    for step in range(3):
        for rank in range(3):
            made.put(rank, step, {WEIGHT: step + 1 + 50 * (rank == 2 and step == 1)}, reported=True)
    (found,) = divergence(made.store).differences
    assert (found.ranks, found.first_step, found.by) == ((2,), 1, "statistics")


def _trained(parts: dict[int, bool], gradients: int, since: int = 0) -> Replicas:
    """Return two ranks with three parameters: by step, whether they are apart.

    Their gradients differ by `gradients` from a step on.
    """
    made = Replicas()
    for step, is_apart in parts.items():
        for rank in range(2):
            contents = {
                f"Parameter.l{layer}.output.0": 100 * step + layer + 10 * is_apart * rank
                for layer in range(3)
            }
            own = {f"Gradient.l{layer}.output.0": 5000 + 100 * step + layer for layer in range(3)}
            off = gradients * rank * (step >= since)
            made.put(rank, step, contents | {name: each + off for name, each in own.items()})
    return made


@pytest.mark.parametrize("warm_up", [0, 2])
def test_ranks_that_train_apart_and_meet_are_compared_where_they_meet(warm_up: int) -> None:
    """Some begin with steps whose gradients are shared."""
    parts = {step: bool(step % 2) and step > warm_up for step in range(6)}
    found = divergence(_trained(parts, gradients=10, since=warm_up).store)
    assert found.agree
    assert found.apart == tuple(step for step, is_apart in parts.items() if is_apart)
    assert any("local SGD" in note for note in found.notes)


def test_ranks_that_part_for_good_or_share_gradients_do_not_train_apart() -> None:
    for parts, gradients in (
        ({0: False, 1: False, 2: True, 3: True}, 10),
        ({0: False, 1: True, 2: False}, 0),
    ):
        found = divergence(_trained(parts, gradients).store)
        assert not found.apart
        assert found.is_alarm


# What some replicas have and others do not.


EXPERT, OUTPUT = "Module.Expert.expert1.output.0", "Module.Net.model.output.0"


def test_a_rank_of_a_given_group_that_is_not_there_is_missed() -> None:
    found = divergence(replicas().store, [range(6)])
    assert absent(found) == [("missing", "rank", (4,), ""), ("missing", "rank", (5,), "")]


def test_a_tensor_an_operator_and_a_step_are_missed() -> None:
    made = replicas(steps=range(2))
    contents = {WEIGHT: 1, STATE: 2, REDUCED: 3, NORM: 4, ACTIVATION: 5}
    for rank in range(3):
        without = {1: [STATE], 2: [NORM]}.get(rank, [])
        made.put(rank, 2, {name: value for name, value in contents.items() if name not in without})
    found = divergence(made.store)
    assert sorted(absent(found)) == [
        ("missing", "operator", (2,), "Adam.norm"),
        ("missing", "step", (3,), ""),
        ("missing", "tensor", (1,), STATE),
    ]
    assert {(missing.first_step, missing.last_step, missing.steps) for missing in found.missing} == {
        (2, 2, 1)
    }


def test_what_one_rank_alone_has_is_extra() -> None:
    made = replicas(steps=range(2))
    for rank in range(4):
        more = {"Print.log.output.0": 1} if rank == 0 else {}
        made.put(rank, 2, {WEIGHT: 1, STATE: 2, REDUCED: 3, NORM: 4, ACTIVATION: rank, **more})
    assert absent(divergence(made.store)) == [("extra", "operator", (0,), "Print.log")]


def test_ranks_that_number_operators_otherwise_are_said() -> None:
    made = Replicas()
    for step in range(3):
        for rank in range(2):
            named = {f"ReLU.op{number + 20 * rank}.output.0": number + 1 for number in range(20)}
            made.put(rank, step, {WEIGHT: step + 1, **named})
    found = divergence(made.store)
    assert found.agree
    assert any("names of tensors in common" in note for note in found.notes)


def test_tensors_of_which_each_rank_has_its_own_are_not_missed() -> None:
    made = Replicas()
    for step in range(3):
        for rank in range(2):
            shared = {WEIGHT: step, NORM: 10 + step, STATE: 20 + step}
            made.put(rank, step, shared | {f"Parameter.tables.{rank}.output.0": 50 + rank})
    found = divergence(made.store)
    assert found.agree
    assert any("each its own" in note for note in found.notes)


@pytest.mark.parametrize(
    ("samples", "lost", "names"),
    [
        ((1, 2), {EXPERT}, []),
        ((1, 1), {EXPERT}, ["Module.Expert.expert1"]),
        ((1, 2), {EXPERT, "Gradient.weight1.output.0"}, ["Gradient.weight1"]),
        ((1, 2), {EXPERT, OUTPUT}, ["Module.Expert.expert1", OUTPUT]),
    ],
)
def test_calls_that_depend_on_samples_are_not_missed(
    samples: tuple[int, int], lost: set[str], names: list[str]
) -> None:
    made = Replicas()
    for step in range(3):
        for rank in range(2):
            contents = {"Module.Net.model.input.0": 100 * step + samples[rank], EXPERT: 900 + rank}
            contents |= {f"Parameter.{name}.output.0": 300 + step for name in ("weight1", "head", "norm")}
            contents |= {"Gradient.weight1.output.0": 500 + step, OUTPUT: 700 + rank}
            made.put(rank, step, {name: each for name, each in contents.items() if rank or name not in lost})
    found = divergence(made.store)
    assert sorted(row.name for row in found.missing) == names
    assert any("no token chose" in note for note in found.notes) == ("Module.Expert.expert1" not in names)


# Which rank is off: the one that a majority is against, or that values show; since when, and in what.


def test_of_two_ranks_no_majority_says_which() -> None:
    found = divergence(replicas(range(2), off=[(1, 2, STATE), (1, 3, STATE)]).store)
    assert summary(found) == [((0, 1), 2, STATE)]
    assert not found.odd[0].has_majority
    assert found.odd[0].others == ()


def test_a_tie_is_settled_by_the_majority_of_other_steps() -> None:
    made = replicas(range(3), off=[(2, 2, WEIGHT), (2, 3, WEIGHT)])
    for rank in (1, 2):
        made.put(rank, 4, {WEIGHT: 9 + rank, STATE: 2, REDUCED: 3, NORM: 4})
    found = divergence(made.store)
    assert summary(found) == [((2,), 2, WEIGHT)]
    assert (found.odd[0].steps, found.odd[0].last_step) == (3, 4)


def test_two_odd_ranks_are_told_apart() -> None:
    found = divergence(replicas(range(5), off=[(1, 1, REDUCED), (4, 2, WEIGHT), (4, 3, WEIGHT)]).store)
    assert summary(found) == [((1,), 1, REDUCED), ((4,), 2, WEIGHT)]
    assert [odd.healed for odd in found.odd] == [True, False]


def test_bits_that_no_statistic_sees_are_said() -> None:
    made = replicas(steps=range(3))
    contents = {WEIGHT: 1, STATE: 2, REDUCED: 3, NORM: 4}
    for rank in range(4):
        made.put(rank, 3, contents | {REDUCED: 3 + (rank == 1)}, statistics=contents)
    (found,) = divergence(made.store).differences
    assert found.same_statistics
    assert found.ranks == (1,)


def test_the_onset_names_the_values_of_the_odd_rank_and_of_the_others() -> None:
    found = divergence(replicas(off=[(2, 1, WEIGHT), (2, 2, WEIGHT), (2, 2, STATE)]).store)
    (odd,) = found.odd
    assert (odd.first_step, odd.last_step, odd.steps, odd.tensors) == (1, 2, 2, 2)
    assert odd.first == found.differences[0]
    assert all(ours != theirs for ours, theirs in odd.values.values())
    assert "nan_count" not in odd.values


# Which ranks must agree, judged by what they did agree on.


def test_each_tensor_has_its_own_replicas() -> None:
    """Parts of a matrix are held by some ranks, normalisation by all, activations by the others."""
    found = divergence(on_a_mesh().store)
    assert found.agree
    assert {group.ranks for group in found.groups} == {
        (0, 1, 2, 3, 4, 5),
        (0, 2, 4),
        (1, 3, 5),
        (0, 1),
        (2, 3),
        (4, 5),
    }


def test_parts_that_begin_equal_are_no_replicas() -> None:
    """Zeros agree whatever the ranks do."""
    made = Replicas()
    for rank in range(4):
        made.put(rank, 0, {WEIGHT: 1, STATE: 2}, constant=True)
        for step in (1, 2):
            made.put(rank, step, {WEIGHT: 10 * step + rank % 2, STATE: 100 * step + rank % 2})
    found = divergence(made.store)
    assert found.agree
    assert {group.ranks for group in found.groups} == {(0, 2), (1, 3)}


def test_batches_that_are_dumped_as_parameters_are_not_compared() -> None:
    made = replicas()
    for step in range(4, 8):
        for rank in range(4):
            made.put(rank, step, {WEIGHT: step, "Parameter.x.output.0": 100 * step + rank})
    found = divergence(made.store)
    assert not found.differences
    assert any("Parameter.x.output.0" in note for note in found.notes)


def test_a_weight_that_never_agreed_is_off_where_its_gradient_agrees() -> None:
    """As where ranks began with other weights. Without a common gradient, each has its own part."""
    made = Replicas()
    for step in range(3):
        for rank in range(2):
            parts = {f"Adam.part.input.{slot}": 10 * step + 5 * rank + slot + 1 for slot in range(3)}
            made.put(rank, step, {WEIGHT: 100 + step + 50 * rank, STATE: 200 + step, **parts})
    found = divergence(made.store)
    assert summary(found) == [((0, 1), 0, WEIGHT)]
    assert len(found.differences) == 1
    assert "Adam.part.input.0" in found.notes[0]


def test_a_parameter_is_off_if_ranks_part_that_shared_it_and_its_gradient() -> None:
    """One step is enough: the next value follows from both. With other gradients, each may have its part."""
    made = Replicas()
    for step in range(4):
        for rank in range(2):
            apart = 50 * (rank and step > 0)
            made.put(
                rank,
                step,
                {
                    "Parameter.shared.output.0": 10 * step + apart + 1,
                    "Gradient.shared.output.0": 10 * step + 2 + 500 * (rank and step > 0),
                    "Parameter.part.output.0": 10 * step + apart + 3,
                    "Gradient.part.output.0": 10 * step + 4 + 500 * rank,
                    "Parameter.norm.output.0": 10 * step + 5,
                },
            )
    found = divergence(made.store)
    assert summary(found) == [((0, 1), 1, "Parameter.shared.output.0")]
    assert len(found.differences) == 1


def test_a_parameter_of_ranks_that_read_other_batches_is_one_as_long_as_the_run_is() -> None:
    """They hold the same in the first step alone, and each steps with a gradient of its own."""
    made = Replicas()
    for step in range(8):
        for rank in range(2):
            apart = 500 * rank * (step > 0)
            made.put(
                rank,
                step,
                {
                    "Parameter.weight.output.0": 10 * step + apart + 1,
                    "Module.Net.net.input.0": 10 * step + 500 * rank + 2,
                    "Gradient.weight.output.0": 10 * step + 500 * rank + 3,
                },
            )
    assert summary(divergence(made.store))[:1] == [((0, 1), 1, "Parameter.weight.output.0")]


def test_a_parameter_is_off_if_ranks_began_with_it_as_with_most_others() -> None:
    """Of a gradient that was dumped before it was reduced, nothing follows."""
    made = Replicas()
    for step in range(4):
        for rank in range(2):
            names = {"Parameter.odd.output.0": 10 * step + 1 + 50 * (rank and step > 0)}
            names |= {f"Parameter.{name}.output.0": 10 * step + value for name, value in (("a", 2), ("b", 3))}
            gradients = {name.replace("Parameter", "Gradient"): 500 * rank + at for name, at in names.items()}
            made.put(rank, step, names | gradients)
    assert summary(divergence(made.store)) == [((0, 1), 1, "Parameter.odd.output.0")]


def test_parameters_that_step_with_one_gradient_are_one() -> None:
    made = Replicas()
    for step in range(3):
        for rank in range(2):
            names = {"Parameter.w.output.0": 10 * step + rank + 1, "Gradient.w.output.0": 10 * step + 5}
            made.put(rank, step, names | {"Parameter.norm.output.0": 10 * step + 7})
    assert summary(divergence(made.store)) == [((0, 1), 0, "Parameter.w.output.0")]


@pytest.mark.parametrize("parts", [True, False])
def test_a_gradient_that_is_not_reduced_in_one_step_is_where_ranks_part(parts: bool) -> None:
    """It was shared before; where the parameter stays one, as where several steps are added up, it is not."""
    made = Replicas()
    for step in range(5):
        for rank in range(2):
            names = {
                "Parameter.weight.output.0": 10 * step + 1 + 500 * (rank and step > 2 and parts),
                "Gradient.weight.output.0": 10 * step + 2 + 500 * (rank and step == 2),
            }
            made.put(rank, step, names)
    assert summary(divergence(made.store)) == [((0, 1), 2, "Gradient.weight.output.0")] * parts


def test_any_tensor_that_agreed_long_enough_is_missed() -> None:
    made = Replicas()
    for step in range(5):
        for rank in range(2):
            made.put(rank, step, {"Mul.scale.output.0": step + 1 + 100 * (rank and step == 4), WEIGHT: step})
    found = divergence(made.store)
    assert summary(found) == [((0, 1), 4, "Mul.scale.output.0")]
    assert found.odd[0].first.why == "agreed before"


# An answer about replicas may be limited to some tensors.


def diverging() -> Replicas:
    made = Replicas()
    for step in range(3):
        for rank in range(3):
            odd = int(rank == 2 and step > 0)
            made.put(rank, step, {"Adam.w.input.0": step + odd, "Parameter.lr.output.0": 7 + step + odd})
    return made


def test_conditions_limit_the_differences() -> None:
    store = diverging().store
    both = {row.name for row in divergence(store).differences}
    assert both == {"Adam.w.input.0", "Parameter.lr.output.0"}
    for conditions in ({"name": "Adam.*"}, {"role": "weight"}, {"where": "slot == 0 and io == 'input'"}):
        answer = divergence(store, **conditions)  # type: ignore[arg-type]  # mypy knows no literal keys here
        assert {row.name for row in answer.differences} == {"Adam.w.input.0"}


def test_conditions_that_nothing_fulfils_are_refused() -> None:
    with pytest.raises(UsageError, match="no tensor fulfils --role 'loss'"):
        divergence(diverging().store, role="loss")


# Groups of replicas from the layout of a run.


def test_divergence_takes_the_groups_of_the_layout(tmp_path: Path) -> None:
    """Two dimensions of a mesh that nothing tells: a rank that drifts is held against its replica alone."""
    steps = simulate(Config(2, 2, frozenset(), 4))
    drifting = "param.layers.1.fc1.weight"
    steps[3][3][drifting] = steps[3][3][drifting] + np.float32(1e-3)
    write(tmp_path / "dump", steps)
    store = ingest_and_open(tmp_path / "dump", tmp_path / "store", layout=LAYOUT)
    answer = ingest.divergence(store)
    assert ingest.layout(store).replicas == ((0, 2), (1, 3))
    assert {(group.ranks, group.how) for group in answer.groups} == {((0, 2), "layout"), ((1, 3), "layout")}
    assert [(odd.ranks, odd.first_step) for odd in answer.odd] == [((1, 3), 3)]


def test_layers_that_stages_number_from_0_are_not_held_against_each_other(tmp_path: Path) -> None:
    """Norms of all stages begin with ones; then ranks of one gradient part, as if each clipped by itself."""
    rng = np.random.default_rng(5)
    gradients = [rng.normal(size=12).astype(np.float32) for _ in range(2)]
    steps = [
        [
            {"grad.param.layers.0.norm.weight": gradients[rank // 2], "param.layers.0.norm.weight": norm}
            for rank, norm in enumerate(norms)
        ]
        for norms in (np.ones((4, 12), np.float32), rng.normal(size=(4, 12)).astype(np.float32))
    ]
    store = ingest_and_open(write(tmp_path / "dump", steps), tmp_path / "store", layout=LAYOUT)
    assert [odd.ranks for odd in ingest.divergence(store).odd] == [(0, 1, 2, 3)]
    in_stages = ingest.open_store(tmp_path / "store", mesh="pp=2,tp=2")
    assert [odd.ranks for odd in ingest.divergence(in_stages).odd] == [(0, 1), (2, 3)]


# An operator that broke is named with two ranks, and no operator of a healthy run is.


@pytest.mark.parametrize("name", ["lenet-4rank", "nan-log-2rank", "nan-sqrt-2rank", "tinybert-2rank"])
def test_no_operator_of_a_healthy_run_is_named(name: str, dumps: DumpLibrary, store: Path) -> None:
    ingest_directly(dumps[name] / "dump", store)
    answer = divergence(open_store(store))
    assert (answer.broken, answer.agree) == ((), True)


def test_a_flipped_bit_names_the_operator(dump_copy: Callable[[str], Path], store: Path) -> None:
    """What read the output has unequal inputs, so it is not named."""
    dump = dump_copy("tinybert-2rank") / "dump"
    flip(dump, "Mul.Expand__Muls_Mul-op4.*.output.0.*", rank=1, step=1, element=3, bit=20)
    flip(dump, "Adam.Default_opt-Adam_Adam-op5.*.input.9.*", rank=1, step=1, element=3, bit=20)
    ingest_directly(dump, store)
    answer = divergence(open_store(store))
    (broken,) = answer.broken
    assert (broken.op_type, broken.op_name, broken.step) == ("Mul", "Expand__Muls_Mul-op4", 1)
    assert (broken.ranks, broken.has_majority, broken.inputs) == ((0, 1), False, 2)
    assert broken.bits is not None
    assert (broken.bits.elements, broken.bits.bits, broken.bits.first[0].bits) == (1, 1, (20,))
    assert not answer.agree
    assert answer.to_dict()["broken"][0]["bits"]["elements"] == 1


def test_with_three_ranks_a_majority_says_which(made: MadeDump, store: Path) -> None:
    for rank in range(3):
        for slot in range(2):
            made.add(np.arange(4.0), tensor_name("Mul.m", io="input", slot=slot), rank=rank)
        made.add(np.arange(4.0) + (rank == 1), tensor_name("Mul.m"), rank=rank)
    ingest_directly(made.root, store)
    (broken,) = divergence(open_store(store)).broken
    assert (broken.ranks, broken.others, broken.outputs) == ((1,), (0, 2), ("Mul.m.output.0",))


def test_what_differs_in_every_step_depends_on_more_than_its_inputs(made: MadeDump, store: Path) -> None:
    for step in range(3):
        for rank in range(2):
            made.add(np.arange(4.0), tensor_name("Stateful.s", io="input"), rank=rank, step=step)
            made.add(np.arange(4.0) + rank + step, tensor_name("Stateful.s"), rank=rank, step=step)
    ingest_directly(made.root, store)
    answer = divergence(open_store(store))
    assert answer.broken == ()
    assert any("they depend on more than their inputs (Stateful)" in note for note in answer.notes)


@pytest.mark.parametrize("op", ["Dropout.d", "AllReduce.a", "ApplyMomentum.m", "Parameter.p", "lt.mask"])
def test_what_may_differ_is_not_named(made: MadeDump, store: Path, op: str) -> None:
    for rank in range(2):
        made.add(np.arange(4.0), tensor_name(op, io="input"), rank=rank)
        made.add(np.arange(4.0) + rank, tensor_name(op), rank=rank)
    ingest_directly(made.root, store)
    assert divergence(open_store(store)).broken == ()
