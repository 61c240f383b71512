"""Which dump systems a configuration can be written for, and which of them made a dump."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ingest.dump_configs.model import DumpRequest, WrittenConfig
from ingest.dump_configs.writing.cann import write_acl, write_tensorflow, write_torchair
from ingest.dump_configs.writing.mindspore import write_mindspore
from ingest.dump_configs.writing.msprobe import write_msprobe
from ingest.dump_configs.writing.pytorch import write_sglang, write_transformer_engine
from workers.errors import UsageError

#: By the name that `--system` takes.
WRITERS: Mapping[str, Callable[[DumpRequest], WrittenConfig]] = {
    "mindspore": write_mindspore,
    "msprobe": write_msprobe,
    "acl": write_acl,
    "torchair": write_torchair,
    "tensorflow": write_tensorflow,
    "sglang": write_sglang,
    "te": write_transformer_engine,
}
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
