"""Configurations of tools of the PyTorch world: variables of SGLang's dumper, YAML of TransformerEngine.

The filter of SGLang's dumper sees the tags of a tensor, of which step and rank are none (SGLang 0.5.23,
`srt/debug_utils/dumper.py`, `_dump_inner`). TransformerEngine chooses layers by a regular expression and
steps by pairs of first and last (`debug/features/dump_tensors.py`).
"""

from __future__ import annotations

import json
import re
import shlex

from ingest.dump_configs.model import DumpRequest, WrittenConfig

_NOT_PLAIN = re.compile(r"[^A-Za-z0-9-]")
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
    groups: list[list[int]] = []
    for step in sorted(request.steps):
        if groups and groups[-1][1] == step - 1:
            groups[-1][1] = step
        else:
            groups.append([step, step])
    pairs = ", ".join(f"[{first}, {last}]" for first, last in groups)
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
