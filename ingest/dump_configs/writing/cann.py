"""What CANN is told in three ways: ACL's JSON, TorchAir's `CompilerConfig`, TensorFlow's session options.

Layers are named as the graph names them. If only the name of a file is known, in which `_` stands for `/` and
`.`, that is what is written, with a note.
"""

from __future__ import annotations

import json
from typing import Any

from ingest.dump_configs.model import DumpRequest, WrittenConfig
from ingest.dump_configs.steps import format_steps

_EVERY_RANK = "Every process that gets this configuration dumps: give it only to rank {ranks}."


def write_acl(request: DumpRequest) -> WrittenConfig:
    """Return the JSON for `aclInit` or `aclmdlSetDump` that dumps the requested layers."""
    layers: dict[str, list[str]] = {}
    for operator in request.operators:
        layers.setdefault(operator.net, []).append(operator.full_name or operator.op_name)
    models: list[dict[str, Any]] = [
        {**({"model_name": net} if net else {}), "layer": list(dict.fromkeys(names))}
        for net, names in layers.items()
    ]
    content = {
        "dump": {
            "dump_path": request.directory,
            "dump_mode": "all",
            "dump_data": "tensor",
            "dump_op_switch": "off",
            "dump_step": format_steps(request.steps),
            "dump_list": models,
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


def write_torchair(request: DumpRequest) -> WrittenConfig:
    """Return the lines for the `CompilerConfig` of TorchAir in max-autotune mode."""
    return _lines(
        request,
        "config.dump_config.{key} = {value!r}",
        system="torchair",
        use="Add the lines where the job makes its torchair.CompilerConfig, called `config`.",
        first="config.dump_config.enable_dump = True\n",
    )


def write_tensorflow(request: DumpRequest) -> WrittenConfig:
    """Return the lines for the session configuration of TensorFlow 1 on Ascend."""
    return _lines(
        request,
        'custom_op.parameter_map["{key}"].s = tf.compat.as_bytes({value!r})',
        system="tensorflow",
        use="Add the lines where the job configures its NpuOptimizer, called `custom_op`.",
        first='custom_op.parameter_map["enable_dump"].b = True\n',
    )


def _lines(request: DumpRequest, template: str, *, system: str, use: str, first: str) -> WrittenConfig:
    """Return a line for each setting that TorchAir and TensorFlow have in common."""
    names = dict.fromkeys(operator.full_name or operator.op_name for operator in request.operators)
    values = {
        "dump_path": request.directory,
        "dump_mode": "all",
        "dump_step": format_steps(request.steps),
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
