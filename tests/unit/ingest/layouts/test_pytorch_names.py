"""Names of the dump files of the PyTorch world."""

import pytest

from ingest.layouts.pytorch import (
    module_type,
    parse_sglang_names,
    parse_te_name,
    parse_vllm_names,
)
from workers.dump.model import TensorName


@pytest.mark.parametrize(
    ("tags", "op_type", "op_name", "io", "slot"),
    [
        ("name=non_intrusive__layers.0.attn.inputs.1", "Module.attn", "layers.0.attn", "input", 1),
        ("name=non_intrusive__layers.0.output", "Module.layers", "layers.0", "output", 0),
        ("name=non_intrusive__layers.0.ln.output.1", "Module.ln", "layers.0.ln", "output", 1),
        ("name=non_intrusive__inputs.0", "Module.model", "model", "input", 0),
        ("name=non_intrusive__layers.0.attn.inputs.mask", "Module.attn", "layers.0.attn", "input.mask", 0),
        ("name=non_intrusive__layers.0.attn.inputs.0.1", "Module.attn", "layers.0.attn", "input.0.1", 0),
        ("name=non_intrusive__inputs.ids", "Module.model", "model", "input.ids", 0),
        ("name=non_intrusive__output", "Module.model", "model", "output", 0),
        ("name=param__fc.weight", "Parameter", "fc.weight", "output", 0),
        ("name=grad__param__fc.weight", "Gradient", "fc.weight", "output", 0),
        ("name=grad__non_intrusive__fc.output", "Gradient", "fc.output", "output", 0),
        ("name=grad__attn_k___layer_id=1", "Gradient", "attn_k.layer_id=1", "output", 0),
        ("name=logits___layer_id=3___tp_rank=1", "dump", "logits.layer_id=3", "output", 0),
        ("name=attn/a___b___layer_id=3", "dump", "attn/a___b.layer_id=3", "output", 0),
    ],
)
def test_names_of_sglang(tags: str, op_type: str, op_name: str, io: str, slot: int) -> None:
    name = sglang_name(f"run/step=2___rank=1___dump_index=7___{tags}.pt")
    assert name is not None
    assert (name.op_type, name.op_name, name.io, name.slot) == (op_type, op_name, io, slot)
    assert name.sequence == 7


def sglang_name(path: str) -> TensorName | None:
    return parse_sglang_names([path])[path]


@pytest.mark.parametrize("tags", ["name=logits___dump_index=7", "dump_index=7___name=logits"])
def test_names_of_sglang_that_count_passes(tags: str) -> None:
    """Up to 0.5.9; the name is first up to 0.5.8."""
    name = sglang_name(f"forward_pass_id=2___rank=1___{tags}___layer_id=3.pt")
    assert name is not None
    assert (name.op_name, name.sequence) == ("logits.layer_id=3", 7)


def test_files_of_sglang_without_numbers_are_in_their_order() -> None:
    """Up to 0.4.9; a pass may be unknown."""
    directory = "sglang_dump_1.5_0/forward_pass_id=None"
    names = parse_sglang_names([f"{directory}___name=z.pt", f"{directory}___name=a/b___layer_id=1.pt"])
    assert [name and (name.op_name, name.sequence) for name in names.values()] == [
        ("z", 0),
        ("a/b.layer_id=1", 1),
    ]


def test_tensor_of_a_pass_that_ran_again_is_another_one() -> None:
    again = sglang_name("step=0___rank=0___dump_index=1___name=x___recompute_status=recompute.pt")
    first = sglang_name("step=0___rank=0___dump_index=0___name=x___recompute_status=original.pt")
    assert again is not None
    assert first is not None
    assert (again.graph, first.graph) == ("recompute", "")


def test_processes_that_call_themselves_by_one_rank_are_told_apart() -> None:
    """A rank that is not known is 0. The places in the mesh are in the names if the user wants them there."""
    paths = [f"step=0___rank=0___dump_index=1___name=param__w___tp_rank={place}.pt" for place in range(2)]
    names = parse_sglang_names(paths)
    assert [name and name.op_name for name in names.values()] == ["w.tp_rank=0", "w.tp_rank=1"]


def test_names_of_other_tools() -> None:
    te = parse_te_name("decoder_0_mlp_wgrad.pt")
    assert te is not None
    assert (te.op_name, te.io) == ("decoder_0_mlp.backward", "parameters_grad.weight")
    path = "step_1/model.layers.0/inputs_1_cuda_0.pt"
    vllm = parse_vllm_names({path: "model.layers.0"})[path]
    assert vllm is not None
    assert (vllm.op_type, vllm.io, vllm.slot) == ("Module.layers", "input", 1)
    assert module_type("0.1") == "Module"


def test_ranks_that_log_into_one_directory_are_told_apart() -> None:
    """By their devices: vLLM writes no rank."""
    files = {f"step_1/fc/outputs_{device}.pt": "fc" for device in ("cuda_0", "cuda_1", "cpu")}
    names = parse_vllm_names(files).values()
    assert [name and name.op_name for name in names] == ["fc.cuda_0", "fc.cuda_1", "fc.cpu"]
    assert [name and name.op_type for name in names] == ["Module.fc"] * 3
    del files["step_1/fc/outputs_cuda_1.pt"]
    assert [name and name.op_name for name in parse_vllm_names(files).values()] == ["fc", "fc"]
