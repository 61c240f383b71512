"""Replicas that do not agree: which rank, since when, in which tensor."""

import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import ingest
from ingest.questions.divergence import Divergence, divergence, parse_groups
from ingest.questions.divergence.kinds import SlotKind, kind_of
from ingest.questions.divergence.patterns import ABSENT, Patterns, patterns_of
from tests.cli import run
from tests.dumps import DumpLibrary
from tests.pipeline import ingest_directly
from tests.replicas import Replicas
from workers.arrays.statistics import FIELDS
from workers.errors import UsageError
from workers.store.blocks import Block, TensorKey

WEIGHT, STATE, REDUCED = "Adam.dense.input.0", "Adam.dense.input.1", "AllReduce.dense.output.0"
ACTIVATION, NORM = "ReLU.dense.output.0", "Adam.norm.input.0"


def summary(found: Divergence) -> list[tuple[tuple[int, ...], int, str]]:
    """Return who is off, since when, in what."""
    return [(odd.ranks, odd.first_step, odd.first.name) for odd in found.odd]


def absent(found: Divergence) -> list[tuple[str, str, tuple[int, ...], str]]:
    return [(one.state, one.what, one.ranks, one.name) for one in found.missing]


def replicas(
    ranks: Iterable[int] = range(4),
    steps: Iterable[int] = range(4),
    *,
    off: Iterable[tuple[int, int, str]] = (),
) -> Replicas:
    """Make data-parallel ranks, of which some are off in (rank, step, tensor)."""
    made = Replicas()
    wrong = set(off)
    for step in steps:
        for rank in ranks:
            contents = {ACTIVATION: 1000 * step + rank + 1}
            for number, name in enumerate((WEIGHT, STATE, REDUCED, NORM)):
                bad = 500 + rank if (rank, step, name) in wrong else 0
                contents[name] = 10_000 * (step + 1) + 1000 * number + bad
            made.put(rank, step, contents)
    return made


@pytest.mark.parametrize(
    ("op_type", "io", "kind"),
    [
        ("AllReduce", "output", SlotKind.COLLECTIVE),
        ("AllReduce", "input", SlotKind.OTHER),
        ("HcomAllReduce", "output", SlotKind.COLLECTIVE),
        ("hcom_all_reduce_", "output", SlotKind.COLLECTIVE),
        ("hcom_allReduce__428_1", "output", SlotKind.COLLECTIVE),
        ("allreduce", "output", SlotKind.COLLECTIVE),
        ("_c10d_functional.all_reduce", "output", SlotKind.COLLECTIVE),
        ("c10d::allgather_into_tensor_coalesced_", "output", SlotKind.COLLECTIVE),
        ("Distributed.all_gather_into_tensor", "output", SlotKind.COLLECTIVE),
        ("DistCommAllGatherIntoTensor", "output", SlotKind.COLLECTIVE),
        ("NcclBroadcast", "output", SlotKind.COLLECTIVE),
        ("Broadcast", "output", SlotKind.COLLECTIVE),
        ("BroadcastTo", "output", SlotKind.OTHER),
        ("BroadcastGradientArgs", "output", SlotKind.OTHER),
        ("DynamicBroadcastTo", "output", SlotKind.OTHER),
        ("ReduceScatter", "output", SlotKind.OTHER),
        ("AllToAll", "output", SlotKind.OTHER),
        ("AllGatherMatmul", "output", SlotKind.OTHER),
        ("ApplyMomentum", "input", SlotKind.OPTIMIZER),
        ("ApplyMomentum", "output", SlotKind.OPTIMIZER_OUTPUT),
        ("AdamWeightDecay", "input", SlotKind.OPTIMIZER),
        ("FusedCastAdamWeightDecay", "input", SlotKind.OPTIMIZER),
        ("SparseApplyFtrlV2", "input", SlotKind.OPTIMIZER),
        ("npu_apply_adam_w", "input", SlotKind.OPTIMIZER),
        ("AdaptiveAvgPool2D", "input", SlotKind.OTHER),
        ("Lambda", "input", SlotKind.OTHER),
        ("Parameter", "output", SlotKind.PARAMETER),
        ("Module.Linear", "parameters.weight", SlotKind.PARAMETER),
        ("Module.Linear", "parameters_grad.weight", SlotKind.OTHER),
    ],
)
def test_names_of_every_vendor_tell_what_replicas_share(op_type: str, io: str, kind: SlotKind) -> None:
    assert kind_of(TensorKey("", "0", op_type, "op", io, 0)) is kind


class TestRealDumps:
    @pytest.fixture(scope="class")
    @staticmethod
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
    def test_replicas_agree_on_what_the_files_agree_on(
        self, dumps: DumpLibrary, tmp_path: Path, name: str
    ) -> None:
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
            kind = kind_of(
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
            assert said[0].startswith(f"{len(differing)} outputs of optimizers differ")

    def test_a_flipped_bit_is_named_by_rank_step_and_tensor(self, damaged: Path) -> None:
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

    def test_a_missing_step_and_operator_are_named(self, damaged: Path) -> None:
        assert [row[:3] for row in absent(divergence(ingest.open_store(damaged)))] == [
            ("missing", "step", (1,)),
            ("missing", "operator", (3,)),
            ("missing", "operator", (3,)),
        ]

    def test_the_command_says_it_and_exits_with_five(self, damaged: Path) -> None:
        said = run("divergence", damaged, code=5).stdout
        assert "rank 2 is off since step 1 (ranks 0-1, 3 agree)" in said
        assert "values  " in said
        answer = run("divergence", damaged, "--json", code=5).json
        assert answer["odd"][0]["first"]["op_type"] == "Conv2D"
        assert [one["ranks"] for one in answer["groups"]] == [[0, 1, 2, 3]]
        assert {row["what"] for row in answer["missing"]} == {"step", "operator"}
        limited = run("divergence", damaged, "--limit", 1, code=5)
        assert "3 differences, the first 1 shown" in limited.stderr

    def test_a_name_that_nothing_has_is_refused_and_near_ones_are_named(self, damaged: Path) -> None:
        assert "MaxPool" in run("divergence", damaged, "--name", "MaxPol*", code=2).stderr


def flip(directory: Path, pattern: str) -> None:
    """Flip one bit of the one file that fits."""
    (path,) = directory.glob(pattern)
    data = bytearray(path.read_bytes())
    data[-2] ^= 0x10
    path.write_bytes(data)


class TestMajority:
    def test_replicas_agree_and_activations_are_not_compared(self) -> None:
        found = divergence(replicas().store)
        assert found.agree
        assert [(one.ranks, one.how, one.tensors) for one in found.groups] == [((0, 1, 2, 3), "inferred", 4)]

    def test_one_rank_that_is_off_in_every_step_is_off(self) -> None:
        """No step shows the group, but three ranks that agree do."""
        found = divergence(
            replicas(off=[(3, step, name) for step in range(4) for name in (WEIGHT, STATE)]).store
        )
        assert summary(found) == [((3,), 0, WEIGHT)]
        assert (found.odd[0].tensors, found.odd[0].steps, found.odd[0].healed) == (2, 4, False)

    def test_one_rank_that_is_off_in_everything_is_off(self) -> None:
        names = (WEIGHT, STATE, REDUCED, NORM)
        found = divergence(replicas(off=[(3, step, name) for step in range(4) for name in names]).store)
        assert summary(found) == [((3,), 0, WEIGHT)]

    def test_of_two_ranks_no_majority_says_which(self) -> None:
        found = divergence(replicas(range(2), off=[(1, 2, STATE), (1, 3, STATE)]).store)
        assert summary(found) == [((0, 1), 2, STATE)]
        assert not found.odd[0].has_majority
        assert found.odd[0].others == ()

    def test_a_tie_is_settled_by_the_majority_of_other_steps(self) -> None:
        made = replicas(range(3), off=[(2, 2, WEIGHT), (2, 3, WEIGHT)])
        for rank in (1, 2):
            made.put(rank, 4, {WEIGHT: 9 + rank, STATE: 2, REDUCED: 3, NORM: 4})
        found = divergence(made.store)
        assert summary(found) == [((2,), 2, WEIGHT)]
        assert (found.odd[0].steps, found.odd[0].last_step) == (3, 4)

    def test_two_against_two_is_a_tie(self) -> None:
        made = replicas(steps=range(3))
        for rank in range(4):
            contents = dict.fromkeys((WEIGHT, REDUCED, NORM), 7) | {ACTIVATION: 70 + rank}
            made.put(rank, 3, {**contents, STATE: 8 + rank // 2})
        found = divergence(made.store)
        assert summary(found) == [((0, 1, 2, 3), 3, STATE)]
        assert not found.odd[0].has_majority

    def test_a_weight_that_never_agreed_is_off_where_its_gradient_agrees(self) -> None:
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

    def test_a_learning_rate_that_is_another_is_off(self) -> None:
        made = Replicas()
        for step in range(2):
            for rank in range(3):
                made.put(rank, step, {"Adam.dense.input.2": 1 + (rank == 1)}, constant=True)
        for step in range(2, 4):
            for rank in range(3):
                made.put(rank, step, {WEIGHT: step, STATE: 9 * step, "Adam.dense.input.2": 1 + (rank == 1)})
        assert summary(divergence(made.store)) == [((1,), 0, "Adam.dense.input.2")]

    def test_two_odd_ranks_are_told_apart(self) -> None:
        found = divergence(replicas(range(5), off=[(1, 1, REDUCED), (4, 2, WEIGHT), (4, 3, WEIGHT)]).store)
        assert summary(found) == [((1,), 1, REDUCED), ((4,), 2, WEIGHT)]
        assert [odd.healed for odd in found.odd] == [True, False]

    def test_the_first_tensor_is_the_first_by_execution(self) -> None:
        made = replicas(steps=range(2))
        base = {WEIGHT: 1, STATE: 2, REDUCED: 3, NORM: 4}
        for rank in range(4):
            wrong = {NORM: 99, STATE: 98} if rank == 2 else {}
            contents = base | wrong
            # This rank ran its operators in another order.
            order = reversed(contents) if rank == 2 else iter(contents)
            made.put(rank, 2, {name: contents[name] for name in order})
        assert summary(divergence(made.store)) == [((2,), 2, NORM)]


class TestGroups:
    @staticmethod
    def mesh(off: Iterable[tuple[int, int, str]] = (), tensor: int = 2, data: int = 3) -> Replicas:
        """Ranks on a grid: `tensor` parts of a matrix, each held by `data` replicas."""
        made, wrong = Replicas(), set(off)
        for step in range(4):
            for rank in range(tensor * data):
                part, replica = rank % tensor, rank // tensor
                contents = {
                    "AllReduce.forward.output.0": 10_000 * (step + 1) + replica,
                    WEIGHT: 20_000 * (step + 1) + part,
                    NORM: 30_000 * (step + 1),
                    ACTIVATION: 50_000 * (step + 1) + rank,
                }
                made.put(
                    rank,
                    step,
                    {
                        name: content + 500 * ((rank, step, name) in wrong)
                        for name, content in contents.items()
                    },
                )
        return made

    def test_each_tensor_has_its_own_replicas(self) -> None:
        """Parts of a matrix are held by some ranks, normalisation by all, activations by the others."""
        found = divergence(self.mesh().store)
        assert found.agree
        assert {one.ranks for one in found.groups} == {
            (0, 1, 2, 3, 4, 5),
            (0, 2, 4),
            (1, 3, 5),
            (0, 1),
            (2, 3),
            (4, 5),
        }

    @pytest.mark.parametrize("name", [WEIGHT, NORM])
    def test_the_odd_rank_is_found_within_its_replicas(self, name: str) -> None:
        assert summary(divergence(self.mesh([(3, 2, name)]).store)) == [((3,), 2, name)]

    def test_stages_of_a_pipeline_share_no_tensors(self) -> None:
        made = Replicas()
        for step in range(3):
            for rank in range(4):
                stage = rank // 2
                made.put(rank, step, {f"Adam.stage{stage}.input.0": 10 * step + stage + 1})
        found = divergence(made.store)
        assert found.agree
        assert {one.ranks for one in found.groups} == {(0, 1), (2, 3)}

    def test_parts_that_begin_equal_are_no_replicas(self) -> None:
        """Zeros agree whatever the ranks do."""
        made = Replicas()
        for rank in range(4):
            made.put(rank, 0, {WEIGHT: 1, STATE: 2}, constant=True)
            for step in (1, 2):
                made.put(rank, step, {WEIGHT: 10 * step + rank % 2, STATE: 100 * step + rank % 2})
        found = divergence(made.store)
        assert found.agree
        assert {one.ranks for one in found.groups} == {(0, 2), (1, 3)}

    def test_batches_that_are_dumped_as_parameters_are_not_compared(self) -> None:
        made = replicas()
        for step in range(4, 8):
            for rank in range(4):
                made.put(rank, step, {WEIGHT: step, "Parameter.x.output.0": 100 * step + rank})
        found = divergence(made.store)
        assert not found.differences
        assert any("Parameter.x.output.0" in note for note in found.notes)

    def test_given_groups_are_believed(self) -> None:
        """Two ranks that never agree are replicas where it is said so."""
        made = replicas(
            range(2), off=[(1, step, name) for step in range(4) for name in (WEIGHT, STATE, NORM, REDUCED)]
        )
        assert not divergence(made.store).groups
        found = divergence(made.store, [[0, 1]])
        assert summary(found) == [((0, 1), 0, WEIGHT)]
        assert found.groups[0].how == "given"

    def test_a_rank_of_a_given_group_that_is_not_there_is_missed(self) -> None:
        found = divergence(replicas().store, [range(6)])
        assert absent(found) == [("missing", "rank", (4,), ""), ("missing", "rank", (5,), "")]

    def test_a_rank_that_may_be_missing_is_said(self) -> None:
        assert divergence(replicas([0, 1, 3]).store).notes == ("there is nothing of rank 2 in the store",)
        # Ranks may have any number, and most of them are not counted then.
        assert divergence(replicas([0, 1, 10**15]).store).notes == ()
        assert divergence(replicas([0, 8, 16]).store).notes == ()

    def test_ranks_of_no_group_are_said(self) -> None:
        found = divergence(replicas(off=[(3, 1, WEIGHT)]).store, [[0, 1, 2]])
        assert found.agree
        assert "rank 3 is in no group" in found.notes[0]

    @pytest.mark.parametrize("groups", [[[7, 8]], [[0]], [[0, 1], [1, 2]], [[3, 9]]])
    def test_a_group_that_is_not_there_is_refused(self, groups: list[list[int]]) -> None:
        with pytest.raises(UsageError):
            divergence(replicas().store, groups)

    @pytest.mark.parametrize("texts", [["0"], ["a"], ["3-1"], ["0-2", "2,3"], [""], ["0-99999999"], ["-1,2"]])
    def test_what_is_no_group_is_refused(self, texts: list[str]) -> None:
        with pytest.raises(UsageError):
            parse_groups(texts)

    def test_groups_are_written_as_spans_and_lists(self) -> None:
        assert parse_groups(["0-2", "4,6, 8-9"]) == [[0, 1, 2], [4, 6, 8, 9]]

    def test_one_rank_alone_is_refused(self) -> None:
        with pytest.raises(UsageError, match="nothing to agree with"):
            divergence(replicas([3]).store)


class TestEvidence:
    def test_any_tensor_that_agreed_long_enough_is_missed(self) -> None:
        made = Replicas()
        for step in range(5):
            for rank in range(2):
                made.put(
                    rank, step, {"Mul.scale.output.0": step + 1 + 100 * (rank and step == 4), WEIGHT: step}
                )
        found = divergence(made.store)
        assert summary(found) == [((0, 1), 4, "Mul.scale.output.0")]
        assert found.odd[0].first.why == "agreed before"

    def test_a_tensor_that_agreed_once_is_not(self) -> None:
        made = Replicas()
        for step in range(5):
            for rank in range(2):
                made.put(rank, step, {"Mul.scale.output.0": step + 1 + 100 * (rank and step), WEIGHT: step})
        assert divergence(made.store).agree

    def test_a_mask_that_agreed_is_not(self) -> None:
        made = Replicas()
        for step in range(6):
            for rank in range(2):
                made.put(rank, step, {"Less.mask.output.0": 1 + (rank and step == 5)}, constant=True)
        assert not divergence(made.store).differences

    def test_inputs_that_hold_a_weight_are_weights(self) -> None:
        made = Replicas()
        for step in range(2):
            for rank in range(2):
                contents = {"MatMul.fc.input.1": 5 + step, WEIGHT: 5 + step}
                made.put(rank, step, contents | ({"MatMul.fc.input.1": 9} if rank and step else {}))
        found = divergence(made.store)
        assert summary(found) == [((0, 1), 1, "MatMul.fc.input.1")]
        assert found.odd[0].first.why == "parameter"

    def test_bits_that_no_statistic_sees_are_said(self) -> None:
        made = replicas(steps=range(3))
        contents = {WEIGHT: 1, STATE: 2, REDUCED: 3, NORM: 4}
        for rank in range(4):
            made.put(rank, 3, contents | {REDUCED: 3 + (rank == 1)}, statistics=contents)
        (found,) = divergence(made.store).differences
        assert found.same_statistics
        assert found.ranks == (1,)

    def test_what_is_only_reported_is_compared_by_statistics(self) -> None:
        made = Replicas()
        for step in range(3):
            for rank in range(3):
                made.put(rank, step, {WEIGHT: step + 1 + 50 * (rank == 2 and step == 1)}, reported=True)
        (found,) = divergence(made.store).differences
        assert (found.ranks, found.first_step, found.by) == ((2,), 1, "statistics")

    def test_digests_and_statistics_are_not_held_against_each_other(self) -> None:
        made = replicas(steps=range(2))
        for rank in range(4):
            made.put(rank, 2, {WEIGHT: 1, STATE: 2, REDUCED: 3, NORM: 4}, reported=rank == 1)
        assert divergence(made.store).agree

    def test_partial_steps_are_left_out_and_named(self) -> None:
        made = replicas(steps=range(3))
        contents = {WEIGHT: 1, STATE: 2, REDUCED: 3, NORM: 4}
        for rank in range(4):
            made.put(
                rank, 3, contents | {WEIGHT: 1 + (rank == 2)}, status="partial" if rank == 2 else "complete"
            )
        found = divergence(made.store)
        assert found.agree
        assert [str(one.key) for one in found.left_out] == ["rank 2 step 3"]
        assert summary(divergence(made.store, include_partial=True)) == [((2,), 3, WEIGHT)]


class TestAbsent:
    def test_a_tensor_an_operator_and_a_step_are_missed(self) -> None:
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
        assert {(one.first_step, one.last_step, one.steps) for one in found.missing} == {(2, 2, 1)}

    def test_what_one_rank_alone_has_is_extra(self) -> None:
        made = replicas(steps=range(2))
        for rank in range(4):
            more = {"Print.log.output.0": 1} if rank == 0 else {}
            made.put(rank, 2, {WEIGHT: 1, STATE: 2, REDUCED: 3, NORM: 4, ACTIVATION: rank, **more})
        assert absent(divergence(made.store)) == [("extra", "operator", (0,), "Print.log")]

    def test_ranks_that_number_operators_otherwise_are_said(self) -> None:
        made = Replicas()
        for step in range(3):
            for rank in range(2):
                named = {f"ReLU.op{number + 20 * rank}.output.0": number + 1 for number in range(20)}
                made.put(rank, step, {WEIGHT: step + 1, **named})
        found = divergence(made.store)
        assert found.agree
        assert any("names of tensors in common" in note for note in found.notes)


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
    patterns = Patterns(len(ranks))
    found = patterns_of(Block(3, ranks, row, statistics, digest), ranks, patterns)
    for tensor in range(codes.shape[1]):
        expected = [
            min(j for j in range(len(codes)) if present[j, tensor] and codes[j, tensor] == codes[i, tensor])
            if present[i, tensor]
            else ABSENT
            for i in range(len(codes))
        ]
        assert patterns[found.by_content[tensor]].tolist() == expected


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
    found = divergence(TestGroups.mesh(off, parts, copies).store)
    ranks = {row.ranks for row in found.differences}
    # Where a part agreed in no step, nothing shows who its replicas are.
    if len(off) < 4 or parts == 1 or name == NORM:
        assert summary(found) == [((rank,), first, name)]
        assert found.odd[0].steps == len(off)
        assert found.odd[0].healed == (off[-1][1] < 3)
    else:
        assert ranks <= {(rank,)}


@settings(max_examples=100, deadline=None)
@given(value=st.floats(-1e3, 1e3), other=st.floats(-1e3, 1e3), size=st.integers(3, 50), data=st.data())
def test_what_holds_two_values_tells_nothing(
    value: float, other: float, size: int, data: st.DataObject
) -> None:
    """A mask agrees by accident; what holds three values that are far apart does not."""
    from workers.arrays.statistics import summarise

    which = data.draw(arrays.arrays(np.bool_, size))
    two = np.where(which, value, other)
    three = np.concatenate([[-3.0, 0.5, 3.0], two])
    statistics = np.array([[summarise(two).as_row(), summarise(three).as_row()]])
    block = Block(0, (0,), np.zeros((1, 2), np.int32), statistics, np.ones((1, 2, 16), np.uint8))
    assert not patterns_of(block, (0,), Patterns(1)).tells[0]
