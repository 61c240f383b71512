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
names of files, see `ingest.layouts.pytorch_names`.

The forward hooks save a pass before they have the outputs of its outermost modules: those stand at the front
of the next file. They belong to the graph `previous_pass` here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

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
)
from ingest.layouts.pattern import parse
from ingest.layouts.pytorch_names import (
    module_type,
    parse_aoti_name,
    parse_sglang_names,
    parse_te_name,
    parse_trt_llm_name,
    parse_vllm_names,
    trt_llm_order,
)
from workers.dump.formats.header import Container
from workers.dump.model import TensorName
from workers.model import SourceFile

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
#: A module has the name of its class, or one of its own.
_TRT_LLM_CALL = r"\d+\.[^-]+(?:-\d+\.[^-]+)*"
#: The outermost module, by the names that models of SGLang have for it, and what they run after it.
_PREVIOUS = re.compile(
    r"model|language_model|llm|transformer|thinker|bert|roberta|lm_head|logits_processor|pooler|score|classifier"
    r"|(?:.+\.)?pp_proxy_tensors\..+",
    re.DOTALL,
)


_below_value = below("value", join_slot)


def _as_written(files: Sequence[SourceFile]) -> list[str]:
    """Return paths in the order in which the files were written, for writers that do not number them."""
    return [file.path for file in sorted(files, key=lambda file: (file.mtime_ns, file.path))]


class SglangDumper(Layout):
    """The files of SGLang's dumper, which Megatron-based trainers use, too: all ranks in one directory."""

    name = "sglang"
    patterns = tuple(map(parse, (*(run + _SGLANG_DIRECTORY for run in _SGLANG_RUNS), *_SGLANG_FIRST)))
    file_patterns = tuple(
        parse(pattern, of_files=True)
        for pattern in (
            *(run + _SGLANG_FILE for run in _SGLANG_RUNS),
            *(f"{first}.pt" for first in _SGLANG_FIRST),
        )
    )
    implied = {"step": "0"}  # noqa: RUF012  (a ClassVar in `Layout`)
    run_field = "time"
    systems = (
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
    )

    def describe(self, place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:  # noqa: ARG002
        """Describe the files of one place; see `Layout.describe`. Reads none of them."""
        return Description(
            {
                path: TensorFile(name, Container.PT, name_member=_below_value)
                for path, name in parse_sglang_names(_as_written(files)).items()
            }
        )


class ForwardHooks(Layout):
    """The passes that the forward hooks of SGLang and vLLM save: one dictionary each."""

    name = "forward_hooks"
    patterns = ()
    file_patterns = (
        parse(r"TP{tp:\d+}_PP{pp:\d+}_Rank{rank}_pid{process:\d+}/Pass{step:\d{5,18}}.pt", of_files=True),
    )
    run_field = "process"
    systems = (
        System(
            "SGLang and vLLM, forward hooks",
            "TP1_PP0_Rank1_pid4711/Pass00008.pt",
            "pt, a dictionary",
        ),
    )

    def describe(self, place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:  # noqa: ARG002
        """Describe the files of one place; see `Layout.describe`. Reads none of them."""
        name_member = _first_pass_member if int(place.fields["step"]) == 0 else _pass_member
        return Description(
            {file.path: TensorFile(TensorName(), Container.PT, name_member=name_member) for file in files}
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


class TransformerEngine(Layout):
    """The tensors that the debug feature DumpTensors of TransformerEngine saves."""

    name = "transformer_engine"
    patterns = (parse("tensor_dumps!/rank_{rank}/iter_{step}"),)
    systems = (
        System("TransformerEngine, DumpTensors", "tensor_dumps/rank_1/iter_000008", "pt, a dictionary"),
    )

    def describe(self, place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:  # noqa: ARG002
        """Describe the files of one place; see `Layout.describe`. Reads none of them."""
        return Description(
            {
                file.path: TensorFile(
                    parse_te_name(file.path.rpartition("/")[2]),
                    Container.PT,
                    name_member=below("high_precision", join_member),
                )
                for file in files
                if file.path.endswith(".pt")
            }
        )


class TensorRtLlm(Layout):
    """The files of TensorRT-LLM's debug hook, which does not name their step: step 0."""

    name = "tensorrt_llm"
    patterns = ()
    file_patterns = tuple(
        parse(
            rf"{above}rank{{rank}}/{{call:\d+\.[^-]+(?:-\d+\.[^-]+)*-(?:input|output)\..+}}.pt", of_files=True
        )
        for above in ("", "data_dump/")
    )
    implied = {"step": "0"}  # noqa: RUF012  (a ClassVar in `Layout`)
    systems = (System("TensorRT-LLM, debug hook", "data_dump/rank1/1.Model-2.Linear-output.0.pt", "pt"),)

    def describe(self, place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:  # noqa: ARG002
        """Describe the files of one place; see `Layout.describe`. Reads none of them."""
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


class AotInductor(Layout):
    """The buffers that AOTInductor saves before and after each kernel: of one process, and of no step."""

    name = "aot_inductor"
    patterns = ()
    file_patterns = tuple(
        parse(rf"{above}{writer}{{buffer:(?:before|after)_launch_.+}}.pt", of_files=True)
        for above in ("", "tmp/")
        for writer in ("aoti_torch/", "aoti_torch", "jit_inductor/")
    )
    implied = {"step": "0"}  # noqa: RUF012  (a ClassVar in `Layout`)
    systems = (System("AOTInductor, debug printer", "tmp/aoti_torch/after_launch_add_buf0_cpu.pt", "pt"),)

    def describe(self, place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:  # noqa: ARG002
        """Describe the files of one place; see `Layout.describe`. Reads none of them."""
        named = {}
        for number, path in enumerate(_as_written(files)):
            name = parse_aoti_name(path.rpartition("/")[2])
            if path.endswith(".pt"):
                named[path] = TensorFile(name and name._replace(sequence=number), Container.PT)
        return Description(named)


class Vllm(Layout):
    """The step tree of vLLM's intermediate logging."""

    name = "vllm"
    patterns = (parse("step_{step}"),)
    evidence = re.compile(r"module_calls\.txt")
    needs_evidence = True
    systems = (System("vLLM, intermediate logging", "step_8", "pt, `module_calls.txt`"),)

    def describe(self, place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:
        """Describe the files of one place; see `Layout.describe`. Reads `module_calls.txt`."""
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


class OnnxRuntime(Layout):
    """The tensors that a debug build of ONNX Runtime dumps: of the last run, which has no number."""

    name = "onnx_runtime"
    patterns = ()
    file_patterns = tuple(
        parse(f"{above}{name}.tensorproto", of_files=True)
        for above in ("", r"{before:(?:.*[._-])?}step{sep:[._-]?}{step}/")
        for name in ("{tensor}_default_rank_{rank}", "{tensor}_rank_{rank}", "{tensor}")
    )
    implied = {"step": "0"}  # noqa: RUF012  (a ClassVar in `Layout`)
    systems = (System("ONNX Runtime, debug_node_inputs_outputs", "logits_rank_1.tensorproto", "tensorproto"),)

    def describe(self, place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:  # noqa: ARG002
        """Describe the files of one place; see `Layout.describe`. Reads none of them."""
        named = {}
        for file in files:
            tensor = re.sub(
                r"(?:_default)?_rank_\d+\Z", "", file.path.rpartition("/")[2].removesuffix(".tensorproto")
            )
            # A tensor is an output of one node, and the input of others: the file does not tell which.
            name = TensorName(op_type="Tensor", op_name=tensor, io="output", slot=0)
            named[file.path] = TensorFile(name, Container.TENSOR_PROTO)
        return Description(named)
