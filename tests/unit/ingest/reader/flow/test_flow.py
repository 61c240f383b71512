"""The flow of tensors through the operators of a step, and what operators do."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from ingest.api import open_store
from ingest.reader.operator_kinds import is_collective, is_parameter, slots_written_in_place
from ingest.reader.step_flow import BY_BOTH, BY_CONTENT, BY_GRAPH
from ingest.reader.tensor import Tensor
from tests.stores import DumpLibrary, MadeDump, ingest_directly, tensor_name

# Who wrote what a tensor holds, and who read it, in real dumps.


WORKING = ["inf-explode-1rank", "lenet-4rank", "nan-log-2rank", "nan-mask-1rank", "tinybert-2rank"]


@pytest.fixture(scope="module")
def nan_store(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a run with a logarithm of values that are not positive."""
    store = tmp_path_factory.mktemp("nan") / "run.zarr"
    ingest_directly(dumps["nan-log-2rank"] / "dump", store)
    return store


@pytest.mark.parametrize("name", WORKING)
def test_edges_of_content_and_graph_agree_in_real_dumps(
    name: str, dumps: DumpLibrary, tmp_path: Path
) -> None:
    """The graph alone names only parameters: they are dumped after their update."""
    store = tmp_path / "run.zarr"
    ingest_directly(dumps[name] / "dump", store)
    tensors = open_store(store).tensors(rank=0)
    passings = [
        (neighbour, tensor) for tensor in tensors if tensor.io == "input" for neighbour in tensor.producers
    ]
    assert sum(neighbour.by == BY_BOTH for neighbour, _ in passings) > len(passings) // 2
    for neighbour, tensor in passings:
        if neighbour.by == BY_GRAPH:
            assert is_parameter(neighbour.tensor.op_type)
        else:
            assert neighbour.tensor.digest == tensor.digest
        assert tensor.row in [consumer.tensor.row for consumer in neighbour.tensor.consumers]


def test_neighbours_of_the_operator_that_went_wrong(nan_store: Path) -> None:
    (log,) = open_store(nan_store).tensors("Log.*.input.0", rank=1, step=2)
    (producer,) = log.producers
    assert (producer.tensor.op_type, producer.by, producer.is_certain) == ("Add", BY_BOTH, True)
    assert [operand.io for operand in log.operands] == ["input", "output"]
    (output,) = [operand for operand in log.operands if operand.io == "output"]
    assert {consumer.tensor.op_type for consumer in output.consumers} >= {"ReduceMean"}
    assert output.producers == ()


def test_an_input_updated_in_place_is_what_later_operators_read(made: MadeDump, store: Path) -> None:
    """It has no producer: its bytes before the update are not in the dump."""
    updated = np.array([1.5, 2.5], np.float32)
    made.add(updated, tensor_name("ApplyMomentum.m", io="input", slot=0, time=1))
    made.add(np.array([7.0], np.float32), tensor_name("ApplyMomentum.m", io="output", slot=0, time=2))
    made.add(updated, tensor_name("Cast.c", io="input", slot=0, time=3))
    ingest_directly(made.root, store)
    weight, _, cast = _in_order(open_store(store).tensors())
    assert weight.producers == ()
    assert [consumer.tensor.name for consumer in weight.consumers] == [cast.name]
    assert [producer.by for producer in cast.producers] == [BY_CONTENT]


def test_in_another_process_content_alone_counts(nan_store: Path) -> None:
    (log,) = open_store(nan_store).tensors("Log.*.input.0", rank=1, step=2)
    sent = pickle.loads(pickle.dumps(log))  # noqa: S301  (made by this test)
    assert [producer.by for producer in sent.producers] == [BY_CONTENT]


def _in_order(tensors: list[Tensor]) -> list[Tensor]:
    return sorted(tensors, key=lambda tensor: tensor.timestamp)


# Operators are known in the spellings of all frameworks.


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
