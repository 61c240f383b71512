"""`data_dump.json` of MindSpore.

Names of operators come from the names of files, in which `_` stands for `/`, `.` and blanks. If no graph in
the dump has the name as MindSpore spells it, a regular expression stands for it, in which `.` is any
character: MindSpore deletes quotation marks and blanks from entries of `kernels`, and doubles backslashes.
(MindSpore 2.10, `tools/data_dump/dump_json_parser.cc`.)
"""

from __future__ import annotations

import json
import re
from typing import Any

from ingest.dump_configs.model import DumpRequest, RequestedOperator, WrittenConfig, flatten
from ingest.dump_configs.steps import format_steps
from workers.errors import UsageError

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
    former = request.former.get("common_dump_settings")
    common: dict[str, Any] = {
        "op_debug_mode": 0,
        "dump_mode": 1,
        "path": request.directory,
        "net_name": _net_name(request, former if isinstance(former, dict) else {}),
        "iteration": format_steps(request.steps),
        "saved_data": "tensor",
        "input_output": 0,
        "kernels": kernels,
        "support_device": _devices(request, notes),
    }
    if isinstance(former, dict):
        common |= {key: former[key] for key in ("file_format", "initial_iteration") if key in former}
    content: dict[str, Any] = {"common_dump_settings": common}
    if (e2e := _e2e(request)) is not None:
        content["e2e_dump_settings"] = e2e
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
    """Return the entries of `kernels`."""
    has_regex = not request.version_numbers or request.version_numbers >= REGEX_SINCE
    by_type = [operator for operator in request.operators if not operator.full_name and not has_regex]
    if by_type:
        types = ", ".join(dict.fromkeys(operator.op_type for operator in by_type))
        notes.append(
            f"MindSpore {request.version} takes no regular expressions, and no graph in the dump has the "
            f"names: all operators of the types {types} are dumped."
        )
    return list(dict.fromkeys(_kernel(operator, has_regex=has_regex) for operator in request.operators))


def _kernel(operator: RequestedOperator, *, has_regex: bool) -> str:
    if operator.full_name and flatten(operator.full_name) == flatten(operator.op_name):
        return operator.full_name
    if not has_regex:
        return operator.full_name or operator.op_type
    return f"name-regex({_NOT_PLAIN.sub('.', operator.op_name)})"


def _net_name(request: DumpRequest, former: dict[str, Any]) -> str:
    name = former.get("net_name") or request.operators[0].net or "Net"
    return _NOT_IN_NET.sub("_", str(name))


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


def _e2e(request: DumpRequest) -> dict[str, Any] | None:
    """Return the settings of the synchronous dump: as before, if that is known, but not sampled."""
    if not request.former:
        return {"enable": True, "trans_flag": True}
    former = request.former.get("e2e_dump_settings")
    if not isinstance(former, dict):
        return None
    return {key: former[key] for key in ("enable", "trans_flag", "save_kernel_args") if key in former}
