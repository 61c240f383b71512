"""The configuration with which a dump was made, as it lies in the dump."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ingest.doctor.check import Check
from ingest.dump_configs.checking.check import check_dump_config, worst_first
from ingest.reader.context.configuration import COPIES
from workers.errors import UsageError

_SHOWN = 3


def check_configuration(root: Path) -> list[Check]:
    """Say what is wrong in the configuration that a dump has of itself; nothing without one."""
    copies = sorted(root.glob(COPIES))
    if not copies:
        return []
    path = copies[0]
    about = _about(path.with_name("config.json"))
    version, device = str(about.get("ms_version", "")), str(about.get("device_target", ""))
    name = "dump configuration"
    try:
        checked = check_dump_config(path, version=version, device=device if device != "Davinci" else "Ascend")
    except UsageError as exc:
        return [Check(name, ok=False, detail=exc.message, hint=exc.hint)]
    if not checked.findings:
        return [Check(name, ok=True, detail=f"{path}: nothing is wrong with it")]
    shown = "; ".join(str(finding) for finding in worst_first(checked.findings)[:_SHOWN])
    hint = f"`dump-ingest check {path}` shows everything, with the sources."
    return [Check(name, ok=not checked.refused, detail=f"{path}: {shown}", hint=hint)]


def _about(path: Path) -> dict[str, Any]:
    """Read MindSpore's description of itself next to the configuration; {} if there is none."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
