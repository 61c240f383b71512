"""Configurations of the next dump, written for each dump system.

Names of operators come from the names of files, in which `_` stands for `/`, `.` and blanks. ACL's JSON,
TorchAir's `CompilerConfig` and TensorFlow's session options name layers as the graph does; if only the name
of a file is known, that is what is written, with a note.

`data_dump.json`: if no graph in the dump has the name as MindSpore spells it, a regular expression stands for
it, in which `.` is any character: MindSpore deletes quotation marks and blanks from entries of `kernels`, and
doubles backslashes (MindSpore 2.10, `tools/data_dump/dump_json_parser.cc`).

`config.json` of msProbe: `list` chooses every call whose name contains an entry, so an entry is the whole
name of a call (msProbe 26.2, `core/dump/common_config.py` and `core/dump/data_dump/scope.py`).

Variables of SGLang's dumper: its filter sees the tags of a tensor, of which step and rank are none (SGLang
0.5.23, `srt/debug_utils/dumper.py`, `_dump_inner`). YAML of TransformerEngine: it chooses layers by a regular
expression and steps by pairs of first and last (`debug/features/dump_tensors.py`).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from ingest.dump_configs.model import (
    DumpRequest,
    RequestedOperator,
    WrittenConfig,
    flatten,
    section,
    version_numbers,
)
from workers.errors import UsageError
from workers.model import ranges_text

#: Systems that dump parameters with the whole graph, and not by name.
WITHOUT_PARAMETERS = frozenset({"mindspore", "acl", "torchair", "tensorflow"})
#: By the name of a layout.
_OF_LAYOUT = {
    "mindspore": "mindspore",
    "mindspore_async": "mindspore",
    "mindspore_raw": "mindspore",
    "msprobe": "msprobe",
    "cann": "acl",
    "torchair": "torchair",
    "sglang": "sglang",
    "transformer_engine": "te",
    "transformer_engine_statistics": "te",
}


def system_of(layouts: str, sources: Iterable[str]) -> str:
    """Return the system that made a dump.

    Args:
        layouts: the names of its layouts, as a commit record has them: with `+` between several.
        sources: the paths of some of its files.

    Raises:
        UsageError: no configuration can be written for it.
    """
    names = [_OF_LAYOUT[name] for name in layouts.split("+") if name in _OF_LAYOUT]
    if not names:
        raise UsageError(
            f"no configuration can be written for dumps of the layout {layouts}",
            hint=f"--system names another system: {', '.join(WRITERS)}.",
        )
    if names[0] == "acl" and any(path.startswith("worldsize") for path in sources):
        return "torchair"
    return names[0]


def write_config(system: str, request: DumpRequest) -> WrittenConfig:
    """Return the configuration that makes a system dump what is requested.

    Raises:
        UsageError: the system is unknown, or cannot dump that.
    """
    if system not in WRITERS:
        raise UsageError(f"no system {system!r}", hint=f"Systems: {', '.join(WRITERS)}.")
    return WRITERS[system](request)


_EVERY_RANK = "Every process that gets this configuration dumps: give it only to rank {ranks}."


def write_acl(request: DumpRequest) -> WrittenConfig:
    """Return the JSON for `aclInit` or `aclmdlSetDump` that dumps the requested layers."""
    layers: dict[str, list[str]] = {}
    for operator in request.operators:
        layers.setdefault(operator.net, []).append(operator.full_name or operator.op_name)
    content = {
        "dump": {
            "dump_path": request.directory,
            "dump_mode": "all",
            "dump_data": "tensor",
            "dump_op_switch": "off",
            "dump_step": ranges_text(request.steps, "|"),
            "dump_list": [
                {**({"model_name": net} if net else {}), "layer": list(dict.fromkeys(names))}
                for net, names in layers.items()
            ],
        }
    }
    return WrittenConfig(
        system="acl",
        file_name="acl.json",
        text=json.dumps(content, indent=4) + "\n",
        use="Give its path to aclInit or aclmdlSetDump, before the model is loaded.",
        ranks=request.ranks,
        steps=request.steps,
        notes=(*_notes(request), "The directory must exist."),
    )


def _lines(request: DumpRequest, *, template: str, system: str, use: str, first: str) -> WrittenConfig:
    """Return lines of Python for the configuration of a job."""
    names = dict.fromkeys(operator.full_name or operator.op_name for operator in request.operators)
    values = {
        "dump_path": request.directory,
        "dump_mode": "all",
        "dump_step": ranges_text(request.steps, "|"),
        "dump_layer": " ".join(names),
        "dump_data": "tensor",
    }
    text = first + "".join(template.format(key=key, value=value) + "\n" for key, value in values.items())
    notes = (*_notes(request), "The directory must exist.")
    return WrittenConfig(system, f"{system}_dump.py", text, use, request.ranks, request.steps, notes)


def _notes(request: DumpRequest) -> list[str]:
    ranks = ", ".join(map(str, request.ranks))
    flat = [operator.op_name for operator in request.operators if not operator.full_name]
    notes = [] if set(request.ranks) == set(request.job_ranks) else [_EVERY_RANK.format(ranks=ranks)]
    if flat:
        notes.append(
            f"The dump has no graph with the name of {flat[0]}"
            + (f" and {len(flat) - 1} more" if len(flat) > 1 else "")
            + ": compare with ge_proto_*_Build.txt; `_` may stand for / or a dot."
        )
    return notes


#: The first version whose `kernels` may hold regular expressions, by the documents of releases.
REGEX_SINCE = (2, 4)
_PATH = re.compile(r"/[A-Za-z0-9_/-]*")
_NOT_IN_NET = re.compile(r"[^A-Za-z0-9_-]")
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9-]")
_HOST_DEVICES = 8


def write_mindspore(request: DumpRequest) -> WrittenConfig:
    """Return the `data_dump.json` that dumps the requested operators.

    Raises:
        UsageError: the directory has a character that MindSpore refuses.
    """
    if not _PATH.fullmatch(request.directory):
        raise UsageError(
            f"{request.directory}: MindSpore refuses this directory",
            hint="Name one with --path: absolute, and made of letters, digits, _, - and / only.",
        )
    notes: list[str] = []
    kernels = _kernels(request, notes)
    former = section(request.former, "common_dump_settings")
    common: dict[str, Any] = {
        "op_debug_mode": 0,
        "dump_mode": 1,
        "path": request.directory,
        "net_name": _NOT_IN_NET.sub("_", str(former.get("net_name") or request.operators[0].net or "Net")),
        "iteration": ranges_text(request.steps, "|"),
        "saved_data": "tensor",
        "input_output": 0,
        "kernels": kernels,
        "support_device": _devices(request, notes),
    }
    common |= {key: former[key] for key in ("file_format", "initial_iteration") if key in former}
    content: dict[str, Any] = {"common_dump_settings": common}
    # The synchronous dump: as before, if that is known, but not sampled.
    e2e = request.former.get("e2e_dump_settings") if request.former else {"enable": True, "trans_flag": True}
    if isinstance(e2e, dict):
        kept = ("enable", "trans_flag", "save_kernel_args")
        content["e2e_dump_settings"] = {key: e2e[key] for key in kept if key in e2e}
    every_rank = request.device in ("", "CPU") and set(request.job_ranks) != set(request.ranks)
    if every_rank:
        where = "On CPU" if request.device else "If the job runs on CPU,"
        notes.append(f"{where} every rank dumps: MindSpore ignores support_device there.")
    return WrittenConfig(
        system="mindspore",
        file_name="data_dump.json",
        text=json.dumps(content, indent=4) + "\n",
        use="Start the job with MINDSPORE_DUMP_CONFIG set to the absolute path of this file.",
        ranks=request.job_ranks if request.device == "CPU" else request.ranks,
        steps=request.steps,
        notes=tuple(notes),
    )


def _kernels(request: DumpRequest, notes: list[str]) -> list[str]:
    version = version_numbers(request.version)
    has_regex = not version or version >= REGEX_SINCE
    by_type = [operator for operator in request.operators if not operator.full_name and not has_regex]
    if by_type:
        types = ", ".join(dict.fromkeys(operator.op_type for operator in by_type))
        notes.append(
            f"MindSpore {request.version} takes no regular expressions, and no graph in the dump has the "
            f"names: all operators of the types {types} are dumped."
        )
    return list(dict.fromkeys(_kernel(operator, has_regex=has_regex) for operator in request.operators))


def _kernel(operator: RequestedOperator, *, has_regex: bool) -> str:
    is_spelt = bool(operator.full_name) and flatten(operator.full_name) == flatten(operator.op_name)
    if has_regex and not is_spelt:
        return f"name-regex({_NOT_PLAIN.sub('.', operator.op_name)})"
    return operator.full_name or operator.op_type


def _devices(request: DumpRequest, notes: list[str]) -> list[int]:
    """Return the devices of the ranks that are to dump, for hosts with eight devices; on CPU, any."""
    if request.device == "CPU":
        return list(range(_HOST_DEVICES))
    if max(request.job_ranks, default=0) >= _HOST_DEVICES:
        notes.append(
            "support_device holds device ids, taken as rank modulo 8: the ranks with these devices dump on "
            "every host. Change it if your hosts have another number of devices."
        )
    return sorted({rank % _HOST_DEVICES for rank in request.ranks})


_MODULE = re.compile(r"(?:Module|Cell)\..+")
_GRADIENTS = re.compile(r"(?P<call>.+)\.parameters_grad(?:\.\d+)?")


def write_msprobe(request: DumpRequest) -> WrittenConfig:
    """Return the `config.json` that dumps the requested calls.

    Raises:
        UsageError: none of them is a call that msProbe can dump.
    """
    names = [operator.op_name for operator in request.operators]
    calls = [name for name in names if not name.endswith(".debug") and not _GRADIENTS.fullmatch(name)]
    if not calls:
        raise UsageError(
            f"msProbe cannot be told to dump {names[0]}",
            hint="It dumps gradients of parameters and what debugger.save is given in any case. Name a call.",
        )
    level = _level_of(calls)
    notes = ["At level mix, the calls inside of the chosen modules are dumped, too."] * (level == "mix")
    # A job of one process has no ranks for msProbe, and dumps nothing if one is named.
    ranks = [] if len(request.job_ranks) < 2 else list(request.ranks)
    content: dict[str, Any] = {
        "task": "tensor",
        "dump_path": request.directory,
        "rank": ranks,
        "step": list(request.steps),
        "level": level,
        "async_dump": False,
        "risk_level": "ALL",
        "tensor": {"scope": [], "list": calls, "data_mode": ["all"]},
    }
    return WrittenConfig(
        "msprobe",
        "config.json",
        json.dumps(content, indent=4) + "\n",
        "Give it to the debugger: PrecisionDebugger(config_path=...)"
        + (", and the model to debugger.start." if level != "L1" else "."),
        request.ranks if ranks else request.job_ranks,
        request.steps,
        tuple(notes),
    )


def _level_of(calls: Sequence[str]) -> str:
    modules = sum(_MODULE.fullmatch(name) is not None for name in calls)
    return "L1" if not modules else "L0" if modules == len(calls) else "mix"


#: Tags of a tensor of SGLang, at the end of its name in a store.
_TAGS = re.compile(r"(?:\.\w+=[^.]*)+$")
#: What TransformerEngine calls the tensors of a layer.
_TE_TENSORS = ("activation", "weight", "output", "gradient", "wgrad", "dgrad")


def write_sglang(request: DumpRequest) -> WrittenConfig:
    """Return the variables of the environment that make SGLang's dumper dump the requested modules."""
    # Not `"fc" in name`: that has all modules inside of `fc`, and `fc2`.
    names = list(dict.fromkeys(re.escape(_TAGS.sub("", operator.op_name)) for operator in request.operators))
    pattern = f"(?:^|__)(?:{'|'.join(names)})(?:[.](?:inputs|output)(?:[.]|$)|$)"
    expression = f"search({json.dumps(pattern)}, name)"
    if "model" in names:  # the outermost module, which has no name there
        expression += ' or search("__(?:inputs|output)(?:[.]|$)", name)'
    directory, _, experiment = request.directory.rstrip("/").rpartition("/")
    variables = {
        "DUMPER_ENABLE": "1",
        "DUMPER_NON_INTRUSIVE_MODE": "all",
        "DUMPER_DIR": directory or ".",
        "DUMPER_EXP_NAME": experiment,
        "DUMPER_FILTER": expression,
    }
    if any(operator.op_type == "Parameter" for operator in request.operators):
        variables["DUMPER_ENABLE_MODEL_VALUE"] = "1"
    if any(operator.op_type == "Gradient" for operator in request.operators):
        variables["DUMPER_ENABLE_GRAD"] = "1"
    steps = ", ".join(map(str, request.steps))
    ranks = ", ".join(map(str, request.ranks))
    note = (
        "The filter of SGLang's dumper knows neither step nor rank: all are dumped. Set DUMPER_ENABLE "
        f"for rank {ranks} alone, and end the job after step {request.steps[-1]}, or switch the dumper on "
        f"for the steps {steps} by POST to /dumper/configure."
    )
    return WrittenConfig(
        system="sglang",
        file_name="dumper.env",
        text="".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()),
        use="Source it before the job starts. SGLang reads these variables from version 0.5.10 on.",
        ranks=request.job_ranks,
        steps=tuple(range(request.steps[-1] + 1)),
        notes=(note,),
    )


def write_transformer_engine(request: DumpRequest) -> WrittenConfig:
    """Return the debug YAML with which TransformerEngine dumps the tensors of the requested layers."""
    layers = "|".join(dict.fromkeys(_NOT_PLAIN.sub(".", operator.op_name) for operator in request.operators))
    groups = [group.partition("-") for group in ranges_text(request.steps, "|").split("|")]
    pairs = ", ".join(f"[{first}, {last or first}]" for first, _, last in groups)
    lines = [
        "next_dump:",
        "  enabled: True",
        "  layers:",
        f"    layer_name_regex_pattern: '(?:{layers})'",
        "  transformer_engine:",
        "    DumpTensors:",
        "      enabled: True",
        "      tensors_struct:",
    ]
    for tensor in _TE_TENSORS:
        lines += [
            f"        - tensor: {tensor}",
            "          high_precision_tensor: True",
            "          quantized_tensor: False",
            f"          start_end_list: [{pairs}]",
        ]
    return WrittenConfig(
        "te",
        "debug.yaml",
        "\n".join(lines) + "\n",
        f"Give it to nvdlfw_inspect.api.initialize(config_file=..., log_dir={request.directory!r}).",
        request.job_ranks,
        request.steps,
        ("Every process that gets this configuration dumps.",)
        * (set(request.ranks) != set(request.job_ranks)),
    )


#: By the name that `--system` takes.
WRITERS: Mapping[str, Callable[[DumpRequest], WrittenConfig]] = {
    "mindspore": write_mindspore,
    "msprobe": write_msprobe,
    "acl": write_acl,
    "torchair": partial(  # for the `CompilerConfig` of TorchAir in max-autotune mode
        _lines,
        template="config.dump_config.{key} = {value!r}",
        system="torchair",
        use="Add the lines where the job makes its torchair.CompilerConfig, called `config`.",
        first="config.dump_config.enable_dump = True\n",
    ),
    "tensorflow": partial(  # for the session configuration of TensorFlow 1 on Ascend
        _lines,
        template='custom_op.parameter_map["{key}"].s = tf.compat.as_bytes({value!r})',
        system="tensorflow",
        use="Add the lines where the job configures its NpuOptimizer, called `custom_op`.",
        first='custom_op.parameter_map["enable_dump"].b = True\n',
    ),
    "sglang": write_sglang,
    "te": write_transformer_engine,
}
