"""What the names of the dump files of the PyTorch world say.

    step=0___rank=1___dump_index=7___name=param__fc.weight___layer_id=1.pt    SGLang, `debug_utils/dumper.py`
    1.Model-2.Linear-input.0.pt                                TensorRT-LLM, `_torch/debug/debug_hook.py`
    before_launch_{kernel}_{buffer}_{device}.pt                AOTInductor, `aoti_torch/shim_common.cpp`
    decoder_0_activation.pt                                    TransformerEngine, `features/dump_tensors.py`
    outputs_0_cuda_0.pt                                        vLLM, intermediate logging

A module is an operator of type `Module.{last part of its name}`, as msProbe names modules, because none of
these tools tells the class of a module. Parameters are of type `Parameter`, as in MindSpore's dumps, and
gradients of type `Gradient`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from workers.dump.model import TensorName

#: Tags of SGLang that do not belong to the name of a tensor: they say when it was dumped, and where.
_SGLANG_WHEN = frozenset(["step", "forward_pass_id", "rank", "dump_index", "name", "recompute_status"])
_SGLANG_WHERE = frozenset(
    f"{axis}_rank" for axis in ("pp", "tp", "cp", "ep", "etp", "dp", "sp", "edp", "vpp")
)
#: Where the tags begin in the path of a file, and where the next tag begins. A name may have slashes in it.
_SGLANG_TAGS = re.compile(r"(?:\A|/)(?=(?:step|forward_pass_id)=\w+___(?:rank|name)=)")
_SGLANG_NEXT_TAG = re.compile(r"___(?=(?:(?!___)\w)+=)", re.ASCII)
#: A positional argument by its number; a keyword, or a member of a sequence or of a batch, by its name.
_INPUT = re.compile(r"(?:(?P<module>.*?)\.)?inputs\.(?:(?P<slot>\d{1,9})|(?P<name>\w+(?:\.\w+)?))")
_OUTPUT = re.compile(r"(?P<module>.*?)\.?output(?:\.(?P<slot>\d{1,9}))?")
_TRT_LLM = re.compile(
    r"(?P<path>\d{1,9}\.[^-]+(?:-\d{1,9}\.[^-]+)*)-(?P<io>input|output)\.(?P<slot>.+)", re.DOTALL
)
_DEVICE = r"(?:cpu|(?:cuda|xpu|hip|npu|mps)(?:[_:]?\d+)?)"
_AOTI = tuple(
    re.compile(rf"(?P<when>before|after)_launch_(?P<kernel>.+?)_(?P<buffer>{buffer}){device}", re.DOTALL)
    for buffer in (r"buf\d+|arg\d+_\d+|primals_\d+|constant\d+", r"[^_]+")
    for device in (rf"_{_DEVICE}", "")
)
_TE = re.compile(r"(?P<layer>.+)_(?P<tensor>activation|gradient|weight|output|wgrad|dgrad)", re.DOTALL)
#: What TransformerEngine's tensors are to the forward call of their layer, or to the backward call.
_TE_IO = {
    "activation": ("", "input"),
    "weight": ("", "parameters.weight"),
    "output": ("", "output"),
    "gradient": (".backward", "input"),
    "dgrad": (".backward", "output"),
    "wgrad": (".backward", "parameters_grad.weight"),
}
_VLLM = re.compile(
    r"(?P<io>inputs|outputs|post_fwd_inputs)(?P<slot>(?:_.+?)?)_(?P<device>cuda_\d+|cpu|xpu_\d+|npu_\d+|hpu)",
    re.DOTALL,
)


_Operand: TypeAlias = tuple[str, str, str, int]
"""Type and name of an operator, and which of its tensors it is: fields of a `TensorName` in their order."""


def module_type(module: str) -> str:
    """Return the operator type of a module.

    >>> module_type("layers.0.attn.q_proj")
    'Module.q_proj'
    """
    for part in reversed(module.split(".")):
        if part and not part.isdecimal():
            return f"Module.{part}"
    return "Module"


def sglang_tags(path: str) -> dict[str, str]:
    """Return the tags in the path of a file of SGLang's dumper."""
    stem = _SGLANG_TAGS.split(path)[-1].removesuffix(".pt")
    pairs = (tag.partition("=") for tag in _SGLANG_NEXT_TAG.split(stem))
    return {key: value for key, is_tag, value in pairs if is_tag}


def parse_sglang_names(paths: Sequence[str]) -> dict[str, TensorName | None]:
    """Parse the paths of the files of one rank and step of SGLang's dumper; None for paths of another form.

    A process numbers its files; up to 0.4.9, their order in `paths` counts. If files have the same number,
    several processes called themselves by this rank: then their places in the mesh, if the paths have them,
    tell their tensors apart.
    """
    tags = {path: {"dump_index": str(place), **sglang_tags(path)} for place, path in enumerate(paths)}
    numbers = [told["dump_index"] for told in tags.values()]
    is_of_one = len({*numbers}) == len(numbers)
    return {path: _sglang_name(told, () if is_of_one else _SGLANG_WHERE) for path, told in tags.items()}


def _sglang_name(tags: Mapping[str, str], where: Collection[str]) -> TensorName | None:
    text, index = tags.get("name"), tags.get("dump_index", "")
    if text is None or not index.isdecimal():
        return None
    # A tensor of a forward pass that is run again for the backward pass is not the one of the first pass.
    graph = "recompute" if tags.get("recompute_status") == "recompute" else ""
    extra = _joined(tags, tags.keys() - _SGLANG_WHEN - _SGLANG_WHERE)
    op_type, op_name, io, slot = _sglang_operand(text, extra)
    return TensorName("", graph, op_type, op_name + _joined(tags, where), io, slot, sequence=int(index[:18]))


def _joined(tags: Mapping[str, str], keys: Collection[str]) -> str:
    return "".join(f".{key}={value}" for key, value in tags.items() if key in keys)


def _sglang_operand(text: str, extra: str) -> _Operand:
    is_gradient = text.startswith("grad__")
    text = text.removeprefix("grad__")
    if text.startswith("non_intrusive__"):
        text = text.removeprefix("non_intrusive__")
        return ("Gradient", text, "output", 0) if is_gradient else _module_operand(text)
    for prefix in ("param__", "dtensor__"):
        if text.startswith(prefix):
            kind = "Gradient" if is_gradient else "Parameter"
            return kind, text.removeprefix(prefix), "output", 0
    return "Gradient" if is_gradient else "dump", f"{text}{extra}", "output", 0


def _module_operand(text: str) -> _Operand:
    """Return which input or output of a module a text such as `layers.0.inputs.1` names.

    >>> _module_operand("layers.0.inputs.1")
    ('Module.layers', 'layers.0', 'input', 1)
    >>> _module_operand("layers.0.inputs.mask")
    ('Module.layers', 'layers.0', 'input.mask', 0)
    """
    match = _INPUT.fullmatch(text)
    io = "input" if match else "output"
    if match is not None and match["name"]:
        module = match["module"] or "model"
        return module_type(module), module, f"input.{match['name']}", 0
    match = match or _OUTPUT.fullmatch(text)
    if match is None:
        return module_type(text), text, "output", 0
    module = match["module"] or "model"
    return module_type(module), module, io, int(match["slot"] or 0)


def parse_trt_llm_name(file_name: str) -> TensorName | None:
    """Parse the name of a file of TensorRT-LLM's hook; return None if it has another form."""
    match = _TRT_LLM.fullmatch(file_name.removesuffix(".pt"))
    if match is None:
        return None
    path, slot = match["path"], match["slot"]
    op_type = f"Module.{path.rpartition('.')[2]}"
    if slot.isdecimal():
        return TensorName(op_type=op_type, op_name=path, io=match["io"], slot=int(slot[:9]))
    return TensorName(op_type=op_type, op_name=path, io=f"{match['io']}.{slot}")


def trt_llm_order(name: TensorName) -> tuple[tuple[int, ...], ...]:
    """Return a sort key: inputs before what is inside of a module, outputs after it."""
    calls = tuple((1, int(part.partition(".")[0])) for part in name.op_name.split("-"))
    return (*calls, (0,) if name.io.startswith("input") else (2,))


def parse_aoti_name(file_name: str) -> TensorName | None:
    """Parse the name of a file of AOTInductor's printer; return None if it has another form.

    Buffers before a launch are not inputs to be judged: the memory of an output holds anything then.
    """
    # Before torch 2.15, the printer forgets the `/` behind the name of its directory.
    stem = file_name.removesuffix(".pt").removeprefix("aoti_torch")
    match = next((match for pattern in _AOTI if (match := pattern.fullmatch(stem))), None)
    if match is None:
        return None
    kernel, buffer = match["kernel"], match["buffer"]
    io = f"output.{buffer}" if match["when"] == "after" else f"before.{buffer}"
    return TensorName(op_type=re.sub(r"_\d+\Z", "", kernel), op_name=kernel, io=io)


def parse_te_name(file_name: str) -> TensorName | None:
    """Parse the name of a file of DumpTensors; return None if it has another form."""
    match = _TE.fullmatch(file_name.removesuffix(".pt"))
    return None if match is None else te_tensor(match["layer"], match["tensor"])


def te_tensor(layer: str, tensor: str) -> TensorName:
    """Return the name of a tensor of a layer, by what TransformerEngine calls it: `activation`, `wgrad`..."""
    call, io = _TE_IO[tensor]
    return TensorName(op_type="Module", op_name=f"{layer}{call}", io=io, slot=0)


def parse_vllm_names(modules: Mapping[str, str]) -> dict[str, TensorName | None]:
    """Parse the paths of files of vLLM's intermediate logging, each given with its module; None if unknown.

    All ranks log into one directory: if there are files of several accelerators, these tell them apart.
    """
    matches = {path: _VLLM.fullmatch(path.rpartition("/")[2].removesuffix(".pt")) for path in modules}
    devices = {match["device"] for match in matches.values() if match and match["device"] != "cpu"}
    return {
        path: _vllm_name(modules[path], match, with_device=len(devices) > 1) if match else None
        for path, match in matches.items()
    }


def _vllm_name(module: str, match: re.Match[str], *, with_device: bool) -> TensorName:
    slot = match["slot"].removeprefix("_")
    io = {"inputs": "input", "outputs": "output"}.get(match["io"], match["io"])
    name = TensorName(
        op_type=module_type(module), op_name=f"{module}.{match['device']}" if with_device else module
    )
    if slot.isdecimal():
        return name._replace(io=io, slot=int(slot[:9]))
    return name._replace(io=f"{io}.{slot}" if slot else io, slot=-1 if slot else 0)
