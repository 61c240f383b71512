"""What replicas share, judged by names."""

import pytest

from ingest.questions.placement.slot_kinds import SlotKind, slot_kind_of
from workers.store.consolidated.blocks import TensorKey


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
    assert slot_kind_of(TensorKey("", "0", op_type, "op", io, 0)) is kind


@pytest.mark.parametrize(
    ("op_name", "kind"),
    [
        (".param.layers.1.fc1.weight", SlotKind.PARAMETER),
        ("parameters/embed", SlotKind.PARAMETER),
        ("exp_avg_sq.layers.1.fc1.weight", SlotKind.PARAMETER),
        ("param.layers.1.fc1.weight.grad", SlotKind.OTHER),
        ("layers.1.param", SlotKind.OTHER),
        ("paramount.layer", SlotKind.OTHER),
    ],
)
def test_parameters_and_states_are_told_by_how_their_names_begin(op_name: str, kind: SlotKind) -> None:
    assert slot_kind_of(TensorKey("", "0", "Module", op_name, "output", 0)) is kind
