"""The configuration with which a dump was made, as the dump keeps it: what was asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest.dump_configs.model import AskedDump
from ingest.dump_configs.reading import read_acl, read_mindspore
from ingest.reader.context.files import NonTensorFile, NonTensorFiles
from workers.model import MIB

if TYPE_CHECKING:
    from ingest.reader.catalog import Catalog

_MINDSPORE = re.compile(r"data_dump\.json")
#: Where MindSpore copies it, below the directory of a rank.
COPIES = "rank_*/.dump_metadata/data_dump.json"
_ABOUT = re.compile(r"config\.json")
_ACL = re.compile(r"(?:acl_dump_\d+|acl|kernel_config_.+)\.json")


@dataclass(frozen=True, slots=True)
class DumpConfiguration:
    """What a dump says of how it was made."""

    source: str
    """The path of the configuration, relative to the dump; "" if the dump has none."""
    content: Mapping[str, Any] = field(default_factory=dict)
    asked: AskedDump = field(default_factory=AskedDump)
    version: str = ""
    """The version of MindSpore; "" if it is not known."""
    device: str = ""
    """`CPU`, `GPU` or `Ascend`; "" if it is not known."""


def configuration_of(store: Catalog, rank: int) -> DumpConfiguration:
    """Return the configuration of the dump of a rank; an empty one if the dump does not have it.

    That of another rank stands for it: MindSpore writes it for rank 0 alone. Reads two small files at most.
    """
    files = NonTensorFiles(store, rank)
    about, _ = _first(files, _ABOUT)
    version, device = str(about.get("ms_version", "")), str(about.get("device_target", ""))
    for name, read in ((_MINDSPORE, read_mindspore), (_ACL, read_acl)):
        content, file = _first(files, name)
        if file is not None and content:
            return DumpConfiguration(file.source, content, read(content), version, device)
    return DumpConfiguration("", version=version, device=device)


def sample_of(store: Catalog, rank: int) -> int:
    """Return how many elements the dump has of the beginning and of the end of a tensor; 0: all of them."""
    return configuration_of(store, rank).asked.sample


def sample_of_dump(root: Path) -> int:
    """Return the same for a dump that is read where it lies."""
    for path in sorted(root.glob(COPIES))[:1]:
        try:
            content = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return 0
        return read_mindspore(content).sample if isinstance(content, dict) else 0
    return 0


def _first(files: NonTensorFiles, name: re.Pattern[str]) -> tuple[Mapping[str, Any], NonTensorFile | None]:
    """Return the content of the first run file of a name that is a JSON object, and the file."""
    for file in files.of_run(name):
        data = files.read(file, limit=MIB)
        try:
            content = json.loads(data or b"null")
        except (ValueError, RecursionError):
            continue
        if isinstance(content, dict):
            return content, file
    return {}, None
