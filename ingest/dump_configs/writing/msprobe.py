"""`config.json` of msProbe.

`list` chooses every call whose name contains an entry, so an entry is the whole name of a call.
(msProbe 26.2, `core/dump/common_config.py` and `core/dump/data_dump/scope.py`.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from ingest.dump_configs.model import DumpRequest, WrittenConfig
from workers.errors import UsageError

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
    """Return the level at which msProbe dumps modules, functions, or both."""
    modules = sum(_MODULE.fullmatch(name) is not None for name in calls)
    if not modules:
        return "L1"
    return "L0" if modules == len(calls) else "mix"
