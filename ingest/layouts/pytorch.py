"""What the tools of the PyTorch world leave on disk.

    {name of the dump}/step={step}___rank={rank}___dump_index={n}___name={name}___....pt      SGLang's dumper
    sglang_dump_{time}/forward_pass_id={step}___rank={rank}___....pt                SGLang's dumper to 0.5.9
    sglang_dump_{time}_{rank}/forward_pass_id={step}___name={name}___....pt         SGLang's dumper to 0.4.9
    TP{tp}_PP{pp}_Rank{rank}_pid{pid}/Pass{step}.pt                     forward hooks of SGLang and vLLM
    tensor_dumps/rank_{rank}/iter_{step}/{layer}_{tensor}.pt            TransformerEngine
    rank{rank}/{i}.{Class}-{i}.{Class}-{input|output}.{slot}.pt         TensorRT-LLM
    tmp/aoti_torch/{before|after}_launch_{kernel}_{buffer}_{device}.pt  AOTInductor; torch 2.13 without `/`
    step_{step}/{module}[_{call}]/{inputs|outputs}[_{slot}]_{device}.pt vLLM's intermediate logging

    {tensor}[_rank_{rank}].tensorproto                                  ONNX Runtime

(SGLang 0.5.23 `srt/debug_utils`; TransformerEngine `debug/features/dump_tensors.py`; TensorRT-LLM
`_torch/debug/debug_hook.py`; torch 2.15 `_inductor/codegen/debug_utils.py`; vLLM `v1/intermediates`;
ONNX Runtime `core/framework/debug_node_inputs_outputs_utils.cc`.) For the
names of files, see `ingest.layouts.pytorch`.

The forward hooks save a pass before they have the outputs of its outermost modules: those stand at the front
of the next file. They belong to the graph `previous_pass` here.

What the names of the dump files of the PyTorch world say.

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

from ingest.layouts.base import (
    Description,
    Layout,
    Place,
    ReadSmall,
    System,
    TensorFile,
    below,
    join_member,
    join_slot,
    parse,
)
from workers.dump.formats.header import Container
from workers.dump.model import TensorName
from workers.model import SourceFile

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


_SGLANG = r"{counter:step|forward_pass_id}={step}___rank={rank}___"
_SGLANG_FILE = rf"{_SGLANG}{{tags:(?:name=.+___)?dump_index=\d+(?:___.+)?}}.pt"
#: If the name of a tensor has slashes, so does the path of its file.
_SGLANG_DIRECTORY = rf"{_SGLANG}{{tags}}"
#: A run makes one of these directories, unless the user names it.
_SGLANG_RUNS = ("", r"dump_{time:\d{8}_\d{6}_\d{6}}/", r"sglang_dump_{time:\d+\.\d+}/")
#: Up to 0.4.9, a directory is of one rank; what ran it told the number of the pass, or nothing.
_SGLANG_FIRST = tuple(
    rf"sglang_dump_{{time:\d+\.\d+}}_{{rank}}/forward_pass_id={number}___name={{name}}"
    for number in ("{step}", "None")
)
#: The outermost module, by the names that models of SGLang have for it, and what they run after it.
_PREVIOUS = re.compile(
    r"model|language_model|llm|transformer|thinker|bert|roberta|lm_head|logits_processor|pooler|score|classifier"
    r"|(?:.+\.)?pp_proxy_tensors\..+",
    re.DOTALL,
)


_below_value = below("value", join_slot)
_below_precision = below("high_precision", join_member)


def _as_written(files: Sequence[SourceFile]) -> list[str]:
    """Return paths in the order in which the files were written, for writers that do not number them."""
    return [file.path for file in sorted(files, key=lambda file: (file.mtime_ns, file.path))]


def _describe_sglang_dumper(_: Place, files: Sequence[SourceFile], _read: ReadSmall) -> Description:
    return Description(
        {
            path: TensorFile(name, Container.PT, name_member=_below_value)
            for path, name in parse_sglang_names(_as_written(files)).items()
        }
    )


#: The files of SGLang's dumper, which Megatron-based trainers use, too: all ranks in one directory.
SGLANG_DUMPER = Layout(
    name="sglang",
    patterns=tuple(map(parse, (*(run + _SGLANG_DIRECTORY for run in _SGLANG_RUNS), *_SGLANG_FIRST))),
    file_patterns=tuple(
        parse(pattern, of_files=True)
        for pattern in (
            *(run + _SGLANG_FILE for run in _SGLANG_RUNS),
            *(f"{first}.pt" for first in _SGLANG_FIRST),
        )
    ),
    implied={"step": "0"},
    run_field="time",
    systems=(
        System(
            "SGLang's dumper, also with Megatron",
            "dump_20260101_000000_000000/step=8___rank=1___dump_index=7___name=logits.pt",
            "pt with `value` and `meta`",
        ),
        System(
            "SGLang's dumper up to 0.5.9",
            "sglang_dump_1767225600.25/forward_pass_id=8___rank=1___name=logits___dump_index=7.pt",
            "pt",
        ),
        System(
            "SGLang's dumper up to 0.4.9",
            "sglang_dump_1767225600.25_1/forward_pass_id=8___name=logits.pt",
            "pt",
        ),
    ),
    of_place=_describe_sglang_dumper,
)


def _forward_hooks_file(place: Place, _: str) -> TensorFile:
    name_member = _first_pass_member if int(place.fields["step"]) == 0 else _pass_member
    return TensorFile(TensorName(), Container.PT, name_member=name_member)


#: The passes that the forward hooks of SGLang and vLLM save: one dictionary each.
FORWARD_HOOKS = Layout(
    name="forward_hooks",
    file_patterns=(
        parse(r"TP{tp:\d+}_PP{pp:\d+}_Rank{rank}_pid{process:\d+}/Pass{step:\d{5,18}}.pt", of_files=True),
    ),
    run_field="process",
    systems=(
        System(
            "SGLang and vLLM, forward hooks",
            "TP1_PP0_Rank1_pid4711/Pass00008.pt",
            "pt, a dictionary",
        ),
    ),
    of_path=_forward_hooks_file,
)


def _pass_member(name: TensorName, path: tuple[str, ...], number: int) -> TensorName:
    is_previous = bool(path) and _PREVIOUS.fullmatch(path[0]) is not None and number < _MAX_PREVIOUS
    return _first_pass_member(name, path, number)._replace(graph="previous_pass" if is_previous else "")


#: At most this many tensors at the front of a file belong to the pass before.
_MAX_PREVIOUS = 8


def _first_pass_member(name: TensorName, path: tuple[str, ...], number: int) -> TensorName:
    module, *indices = path or ("",)
    slot = int(indices[0][:9]) if indices and indices[0].isdecimal() else 0
    head, is_batch, argument = module.partition(".forward_batch_info.")
    if is_batch:
        return name._replace(op_type="ForwardBatch", op_name=head, io=f"input.{argument}", slot=0)
    return name._replace(op_type=module_type(module), op_name=module, io="output", slot=slot, sequence=number)


def _transformer_engine_file(_: Place, path: str) -> TensorFile | None:
    name = parse_te_name(path.rpartition("/")[2])
    return TensorFile(name, Container.PT, name_member=_below_precision) if path.endswith(".pt") else None


#: The tensors that the debug feature DumpTensors of TransformerEngine saves.
TRANSFORMER_ENGINE = Layout(
    name="transformer_engine",
    patterns=(parse("tensor_dumps!/rank_{rank}/iter_{step}"),),
    systems=(
        System("TransformerEngine, DumpTensors", "tensor_dumps/rank_1/iter_000008", "pt, a dictionary"),
    ),
    of_path=_transformer_engine_file,
)


def _describe_tensorrt_llm(_: Place, files: Sequence[SourceFile], _read: ReadSmall) -> Description:
    paths = [file.path for file in files if file.path.endswith(".pt")]
    names = {path: parse_trt_llm_name(path.rpartition("/")[2]) for path in paths}
    known = sorted((trt_llm_order(name), path) for path, name in names.items() if name is not None)
    place_of = {path: number for number, (_, path) in enumerate(known)}
    return Description(
        {
            path: TensorFile(name and name._replace(sequence=place_of[path]), Container.PT)
            for path, name in names.items()
        }
    )


#: The files of TensorRT-LLM's debug hook, which does not name their step: step 0.
TENSORRT_LLM = Layout(
    name="tensorrt_llm",
    file_patterns=tuple(
        parse(
            rf"{above}rank{{rank}}/{{call:\d+\.[^-]+(?:-\d+\.[^-]+)*-(?:input|output)\..+}}.pt", of_files=True
        )
        for above in ("", "data_dump/")
    ),
    implied={"step": "0"},
    systems=(System("TensorRT-LLM, debug hook", "data_dump/rank1/1.Model-2.Linear-output.0.pt", "pt"),),
    of_place=_describe_tensorrt_llm,
)


def _describe_aot_inductor(_: Place, files: Sequence[SourceFile], _read: ReadSmall) -> Description:
    named = {}
    for number, path in enumerate(_as_written(files)):
        name = parse_aoti_name(path.rpartition("/")[2])
        if path.endswith(".pt"):
            named[path] = TensorFile(name and name._replace(sequence=number), Container.PT)
    return Description(named)


#: The buffers that AOTInductor saves before and after each kernel: of one process, and of no step.
AOT_INDUCTOR = Layout(
    name="aot_inductor",
    file_patterns=tuple(
        parse(rf"{above}{writer}{{buffer:(?:before|after)_launch_.+}}.pt", of_files=True)
        for above in ("", "tmp/")
        for writer in ("aoti_torch/", "aoti_torch", "jit_inductor/")
    ),
    implied={"step": "0"},
    systems=(System("AOTInductor, debug printer", "tmp/aoti_torch/after_launch_add_buf0_cpu.pt", "pt"),),
    of_place=_describe_aot_inductor,
)


def _describe_vllm(place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:
    calls = (read(f"{place.path}/module_calls.txt") or b"").decode(errors="replace").splitlines()
    order = {call.strip(): number for number, call in enumerate(calls)}
    below = f"{place.path}/"
    paths = [file.path for file in files if file.path.endswith(".pt")]
    modules = {path: path.removeprefix(below).rpartition("/")[0] for path in paths}
    names = parse_vllm_names({path: module for path, module in modules.items() if module})
    return Description(
        {
            path: TensorFile(
                (name := names.get(path)) and name._replace(sequence=order.get(modules[path], -1)),
                Container.PT,
            )
            for path in paths
        }
    )


#: The step tree of vLLM's intermediate logging.
VLLM = Layout(
    name="vllm",
    patterns=(parse("step_{step}"),),
    evidence=re.compile(r"module_calls\.txt"),
    needs_evidence=True,
    systems=(System("vLLM, intermediate logging", "step_8", "pt, `module_calls.txt`"),),
    of_place=_describe_vllm,
)


def _onnx_runtime_file(_: Place, path: str) -> TensorFile:
    stem = path.rpartition("/")[2].removesuffix(".tensorproto")
    tensor = re.sub(r"(?:_default)?_rank_\d+\Z", "", stem)
    # A tensor is an output of one node, and the input of others: the file does not tell which.
    name = TensorName(op_type="Tensor", op_name=tensor, io="output", slot=0)
    return TensorFile(name, Container.TENSOR_PROTO)


#: The tensors that a debug build of ONNX Runtime dumps: of the last run, which has no number.
ONNX_RUNTIME = Layout(
    name="onnx_runtime",
    file_patterns=tuple(
        parse(f"{above}{name}.tensorproto", of_files=True)
        for above in ("", r"{before:(?:.*[._-])?}step{sep:[._-]?}{step}/")
        for name in ("{tensor}_default_rank_{rank}", "{tensor}_rank_{rank}", "{tensor}")
    ),
    implied={"step": "0"},
    systems=(System("ONNX Runtime, debug_node_inputs_outputs", "logits_rank_1.tensorproto", "tensorproto"),),
    of_path=_onnx_runtime_file,
)
