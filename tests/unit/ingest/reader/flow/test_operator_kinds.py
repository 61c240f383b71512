"""Operators are known in the spellings of all frameworks."""

import pytest

from ingest.reader.operator_kinds import is_collective, slots_written_in_place


@pytest.mark.parametrize(
    "name",
    [
        "AllReduce",
        "HcomAllReduce",
        "all_reduce",
        "Distributed.all_reduce",
        "c10d_functional.all_reduce.default",
        "AllGather",
        "hcom_all_gather",
        "ReduceScatter",
        "HcomReduceScatter",
        "Broadcast",
        "HcomBroadcast",
        "AlltoAll",
        "AlltoAllV",
        "AllToAllv",
        "HcomAllToAllV",
        "Send",
        "Receive",
        "HcomSend",
        "HcomReceive",
        "MintDistributed.broadcast",
        "MatMulAllReduce",
        "AllGatherMatmul",
        "NeighborExchange",
        "Distributed.isend",
        "InnerCommAllReduce",
    ],
)
def test_collectives_are_known_in_every_spelling(name: str) -> None:
    assert is_collective(name)


@pytest.mark.parametrize(
    "name",
    [
        "BroadcastTo",
        "ReduceSum",
        "ReduceAll",
        "Gather",
        "GatherD",
        "ScatterNd",
        "Torch.broadcast_to",
        "ReduceMean",
        "Functional.gather",
        "Tensor.scatter_",
        "SparseGatherV2",
        "Add",
    ],
)
def test_operators_that_sound_like_collectives_are_none(name: str) -> None:
    assert not is_collective(name)


W, S = (4, 3), ()


@pytest.mark.parametrize(
    ("op_type", "shapes", "written"),
    [
        ("ApplyMomentum", (W, W, S, W, S), {0, 1}),
        ("Adam", (W, W, W, S, S, S, S, S, S, W), {0, 1, 2}),
        ("AdamWeightDecay", (W, W, W, S, S, S, S, S, W), {0, 1, 2}),
        ("SGD", (W, W, S, W, S, W), {0, 3, 5}),
        ("ApplyFtrl", (W, W, W, W, S), {0, 1, 2}),
        ("ApplyCenteredRMSProp", (W, W, W, W, W, S), {0, 1, 2, 3}),
        ("ApplyAdagrad", (W, W, S, W), {0, 1}),
        ("Assign", (W, W), {0}),
        ("Tensor.add_", (W, W), {0}),
        ("AllReduce", (W, W), {0, 1}),
        ("MatMul", (W, W), set()),
        ("Adam", (), set()),
    ],
)
def test_optimizers_write_into_parameter_and_states(
    op_type: str, shapes: tuple[tuple[int, ...], ...], written: set[int]
) -> None:
    assert slots_written_in_place(op_type, dict(enumerate(shapes))) == written
