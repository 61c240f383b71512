"""What the dump in the store tells about the system that made it: its version and its configuration."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ingest.reader.catalog import Catalog
from ingest.reader.context.kept_files import KeptFiles
from workers.model import MIB

_CONFIGURATION = re.compile(r"data_dump\.json")
_ABOUT = re.compile(r"config\.json")


@dataclass(frozen=True, slots=True)
class FormerDump:
    """The dump that is in the store."""

    root: str
    """Where it was."""
    layouts: str
    """The names of its layouts, with `+` between several."""
    version: str = ""
    device: str = ""
    """`CPU`, `GPU` or `Ascend`; "" if that is not known."""
    configuration: Mapping[str, Any] = field(default_factory=dict)
    """The `data_dump.json` of MindSpore; empty if the dump does not have it."""

    @property
    def directory(self) -> str:
        """Where it was dumped to, as its configuration says; else where it was ingested from."""
        common = self.configuration.get("common_dump_settings")
        path = common.get("path") if isinstance(common, dict) else None
        return path if isinstance(path, str) and path else self.root


def former_dump(store: Catalog, rank: int, step: int) -> FormerDump:
    """Return what is known of the dump from which a step came."""
    source = store.step(rank, step).commit.record.source
    files = KeptFiles(store, rank)
    about = _object(files, _ABOUT)
    return FormerDump(
        source.root,
        source.layout,
        str(about.get("ms_version", "")),
        str(about.get("device_target", "")),
        _object(files, _CONFIGURATION),
    )


def _object(files: KeptFiles, name: re.Pattern[str]) -> Mapping[str, Any]:
    """Return the content of the first run file of a name; empty if it is none, or no JSON object."""
    for file in files.of_run(name)[:1]:
        data = files.read(file, limit=MIB)
        try:
            content = json.loads(data or b"null")
        except (ValueError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}
    return {}
