"""What the recorder wrote, for tests of it."""

import json
from pathlib import Path
from typing import Any

from ingest.layouts.recorder import STATISTICS_FILE, STEP_FILE


def lines(rank_directory: Path, step: int) -> list[dict[str, Any]]:
    """Return the lines of a step."""
    text = (rank_directory / f"step_{step}" / STATISTICS_FILE).read_text()
    return [json.loads(line) for line in text.splitlines()]


def mark(rank_directory: Path, step: int) -> dict[str, Any]:
    """Return what the last file of a step says."""
    told: dict[str, Any] = json.loads((rank_directory / f"step_{step}" / STEP_FILE).read_text())
    return told


def names(rank_directory: Path, step: int) -> list[str]:
    """Return the names of all tensors of a step, in order, with `*` for those that ran again."""
    return [
        f"{line['op_name']}.{line['io']}.{line['slot']}{'*' if line.get('graph') else ''}"
        if line["op_type"].startswith("Module")
        else f"{line['op_type']}.{line['op_name']}"
        for line in lines(rank_directory, step)
    ]


def steps(rank_directory: Path) -> list[int]:
    """Return the steps that a rank has."""
    return sorted(int(path.name.removeprefix("step_")) for path in rank_directory.iterdir())
