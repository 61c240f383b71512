"""Rules for the JSON of `aclInit`, `aclmdlSetDump` and TorchAir's `dump_config_path`."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ingest.dump_configs.checking.fields import (
    ConfigKey,
    ConfigRule,
    Kind,
    check_fields,
    refuse,
    warn,
    with_rules,
)
from ingest.dump_configs.model import ConfigFinding, Severity
from ingest.dump_configs.reading import section

GUIDE = (
    "https://www.hiascend.com/document/detail/zh/canncommercial/800/apiref/appdevgapi/aclcppdevg_03_0315.html"
)
RUNTIME = "https://github.com/hicann/runtime/blob/master/docs/api_docs/aclmdlSetDump.md"
TORCHAIR = (
    "https://www.hiascend.com/document/detail/en/Pytorch/2610/devguide/TorchAir/docs/en/ascend_ir/features/"
    "advanced/data_dump.md"
)
_SCENES = ("lite_exception", "aic_err_brief_dump", "aic_err_norm_dump", "aic_err_detail_dump", "watcher")
_SWITCH = ("on", "off")
#: What Ascend C kernels print.
_KERNEL_DATA = frozenset({"all", "printf", "tensor", "assert", "timestamp"})
_MAX_BLACKLIST = 100
_POSITION = re.compile(r"(?:input|output)\d+")
_BLACKLISTS = ("optype_blacklist", "opname_blacklist")
_STATS = ("Max", "Min", "Avg", "Nan", "Negative Inf", "Positive Inf", "L2norm")
_FIELDS = (
    ConfigKey("dump_path", Kind.TEXT),
    ConfigKey("dump_mode", Kind.TEXT, ("input", "output", "all")),
    ConfigKey("dump_list", Kind.LIST),
    ConfigKey("dump_op_switch", Kind.TEXT, _SWITCH),
    ConfigKey("dump_debug", Kind.TEXT, _SWITCH),
    ConfigKey("dump_scene", Kind.TEXT, _SCENES),
    ConfigKey("dump_data", Kind.TEXT, ("tensor", "stats")),
    ConfigKey("dump_stats", Kind.TEXTS, _STATS),
    ConfigKey("dump_level", Kind.TEXT, ("op", "kernel", "all")),
    ConfigKey("dump_step", Kind.TEXT),
    ConfigKey("dump_kernel_data", Kind.TEXT),
    ConfigKey("dump_status", Kind.TEXT),
)
_OF_MODEL = (
    ConfigKey("model_name", Kind.TEXT),
    ConfigKey("layer", Kind.TEXTS),
    ConfigKey("watcher_nodes", Kind.TEXTS),
    ConfigKey("optype_blacklist", Kind.LIST),
    ConfigKey("opname_blacklist", Kind.LIST),
    ConfigKey("opname_range", Kind.LIST),
)
_MAX_GROUPS = 100
_MAX_PATH = 512
#: In scenes of exceptions, in this order.
_COUNTS_MORE = ("NPU_COLLECT_PATH", "ASCEND_WORK_PATH")
_NOT_IN_PATH = re.compile(r"[^A-Za-z0-9\-=\[\];\\,./!@#$%^&*()_+{}:?]")


@dataclass(frozen=True, slots=True)
class _AclSettings:
    """The object `dump` of a configuration, with values of the right kinds."""

    dump: Mapping[str, Any]

    def get(self, key: str, default: Any = None) -> Any:
        return self.dump.get(key, default)

    @property
    def models(self) -> list[dict[str, Any]]:
        return [model for model in self.get("dump_list", []) if model]

    @property
    def scene(self) -> str:
        return str(self.get("dump_scene", ""))

    @property
    def is_normal(self) -> bool:
        """Whether it dumps models or single operators, not overflows or a scene."""
        return not self.scene and self.get("dump_debug") != "on"


def check_acl(content: Mapping[str, Any]) -> Iterator[ConfigFinding]:
    """Yield the mistakes in an ACL configuration."""
    findings = list(check_fields(content, (ConfigKey("dump", Kind.SECTION, is_required=True),), RUNTIME))
    # Other sections of the same file configure other features.
    findings = [finding for finding in findings if finding.severity is Severity.REFUSED]
    dump = section(content, "dump")
    findings += check_fields(dump, _FIELDS, RUNTIME, prefix="dump.")
    for number, model in enumerate(
        dump.get("dump_list", []) if isinstance(dump.get("dump_list"), list) else []
    ):
        prefix = f"dump.dump_list[{number}]."
        if isinstance(model, dict):
            findings += check_fields(model, _OF_MODEL, RUNTIME, prefix=prefix)
        else:
            findings.append(ConfigFinding(Severity.REFUSED, prefix[:-1], "must be an object", RUNTIME))
    yield from with_rules(findings, _AclSettings(dump), _RULES)


def _bad_group(settings: _AclSettings) -> str:
    text = settings.get("dump_step", "")
    return (
        next((repr(group) for group in text.split("|") if not re.fullmatch(r"\d+(-\d+)?", group)), "")
        if text
        else ""
    )


def _reversed_group(settings: _AclSettings) -> str:
    for group in settings.get("dump_step", "").split("|"):
        match = re.fullmatch(r"(\d{1,18})-(\d{1,18})", group)
        if match is not None and int(match[1]) >= int(match[2]):
            return repr(group)
    return ""


def _watched(settings: _AclSettings, key: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield each name that a key of a model lists, with its model; nothing but in the scene watcher."""
    for model in settings.models if settings.scene == "watcher" else ():
        for name in model.get(key, []):
            yield model, name


def _ranges(settings: _AclSettings) -> list[tuple[dict[str, Any], Any]]:
    return [(model, entry) for model in settings.models for entry in model.get("opname_range", [])]


def _blacklists(settings: _AclSettings) -> Iterator[list[Any]]:
    for model in settings.models:
        yield from (model[key] for key in _BLACKLISTS if isinstance(model.get(key), list))


def _bad_position(settings: _AclSettings) -> str:
    """Return the first input or output of a blacklist that CANN does not understand."""
    for entries in _blacklists(settings):
        for entry in entries:
            positions = entry.get("pos", []) if isinstance(entry, dict) else []
            for position in positions if isinstance(positions, list) else [positions]:
                if not (isinstance(position, str) and _POSITION.fullmatch(position)):
                    return repr(position)
    return ""


def _empty_entry(settings: _AclSettings) -> bool:
    return any(
        not isinstance(entry, dict) or not entry.get("name") or not entry.get("pos")
        for entries in _blacklists(settings)
        for entry in entries
    )


def _same_model(settings: _AclSettings) -> str:
    names = Counter(model.get("model_name") for model in settings.models)
    return next((repr(name) for name, count in names.items() if name and count > 1), "")


def _half_range(settings: _AclSettings) -> bool:
    return any(
        not isinstance(entry, dict) or not entry.get("begin") or not entry.get("end")
        for _, entry in _ranges(settings)
    )


_RULES: tuple[ConfigRule[_AclSettings], ...] = (
    refuse(
        "dump_path",
        "is missing or empty",
        GUIDE,
        lambda s: not s.get("dump_path") and (not s.scene or s.scene == "watcher"),
    ),
    refuse(
        "dump_path",
        "{} has a character that CANN refuses",
        RUNTIME,
        lambda s: repr(s.get("dump_path")) if _NOT_IN_PATH.search(s.get("dump_path", "")) else "",
    ),
    refuse(
        "dump_path",
        "names a host and no directory behind it",
        RUNTIME,
        lambda s: s.get("dump_path", "").endswith(":"),
    ),
    refuse(
        "dump_path",
        f"is longer than {_MAX_PATH} characters",
        RUNTIME,
        lambda s: len(s.get("dump_path", "")) > _MAX_PATH,
    ),
    refuse("dump_step", "{} is neither a step nor a range", RUNTIME, _bad_group),
    refuse(
        "dump_step",
        f"has more than {_MAX_GROUPS} groups",
        RUNTIME,
        lambda s: len(s.get("dump_step", "").split("|")) > _MAX_GROUPS,
    ),
    warn("dump_step", "the range {} does not rise", RUNTIME, _reversed_group),
    refuse(
        "dump_scene",
        "{} and dump_debug exclude each other",
        RUNTIME,
        lambda s: s.scene if s.get("dump_debug") == "on" else "",
    ),
    refuse(
        "dump_scene",
        "{} and dump_op_switch exclude each other",
        RUNTIME,
        lambda s: s.scene if s.get("dump_op_switch") == "on" else "",
    ),
    refuse(
        "dump_mode",
        "must be output in the scene watcher",
        RUNTIME,
        lambda s: s.scene == "watcher" and s.get("dump_mode", "output") != "output",
    ),
    warn(
        "watcher_nodes",
        "are not named: the scene watcher dumps nothing",
        TORCHAIR,
        lambda s: s.scene == "watcher" and not any(model.get("watcher_nodes") for model in s.models),
    ),
    warn(
        "watcher_nodes",
        "are ignored without dump_scene: watcher",
        TORCHAIR,
        lambda s: s.scene != "watcher" and any(model.get("watcher_nodes") for model in s.models),
    ),
    warn(
        "model_name",
        "is not supported in the scene watcher",
        TORCHAIR,
        lambda s: s.scene == "watcher" and any("model_name" in model for model in s.models),
    ),
    warn(
        "watcher_nodes",
        "{} is watched after itself alone: it is in layer, too",
        TORCHAIR,
        lambda s: next(
            (node for model, node in _watched(s, "watcher_nodes") if node in model.get("layer", [])), ""
        ),
    ),
    warn(
        "layer",
        "{} is a collective, after which the scene watcher dumps nothing",
        TORCHAIR,
        lambda s: next((layer for _, layer in _watched(s, "layer") if layer.startswith("Hcom")), ""),
    ),
    refuse(
        "dump_list",
        "must be empty if dump_debug is on",
        RUNTIME,
        lambda s: s.get("dump_debug") == "on" and not s.scene and s.get("dump_list"),
    ),
    refuse("dump_stats", "is empty", RUNTIME, lambda s: s.get("dump_stats") == []),
    refuse(
        "dump_stats",
        "needs dump_data: stats",
        RUNTIME,
        lambda s: s.get("dump_stats") and s.get("dump_data", "tensor") != "stats",
    ),
    refuse(
        "opname_range",
        "needs dump_level: op",
        RUNTIME,
        lambda s: _ranges(s) and s.get("dump_level", "all") != "op",
    ),
    refuse(
        "opname_range",
        "needs a model_name",
        RUNTIME,
        lambda s: any(not model.get("model_name") for model, _ in _ranges(s)),
    ),
    refuse("opname_range", "needs begin and end", RUNTIME, _half_range),
    warn(
        "pos",
        "{} of a blacklist is neither inputN nor outputN",
        RUNTIME,
        _bad_position,
    ),
    warn("name", "or pos of an entry of a blacklist is empty: the entry is ignored", RUNTIME, _empty_entry),
    refuse(
        "optype_blacklist",
        f"or opname_blacklist has more than {_MAX_BLACKLIST} entries",
        RUNTIME,
        lambda s: any(len(entries) > _MAX_BLACKLIST for entries in _blacklists(s)),
    ),
    warn("model_name", "{} is named twice", RUNTIME, _same_model),
    warn(
        "dump_kernel_data",
        "{} is not one of all, printf, tensor, assert, timestamp",
        RUNTIME,
        lambda s: next(
            (
                repr(name)
                for name in s.get("dump_kernel_data", "").split(",")
                if "dump_kernel_data" in s.dump and name.strip() not in _KERNEL_DATA
            ),
            "",
        ),
    ),
    refuse(
        "dump_op_switch",
        "and dump_debug exclude each other",
        RUNTIME,
        lambda s: s.get("dump_debug") == "on" and s.get("dump_op_switch") == "on",
    ),
    warn(
        "dump_list",
        "and the scene {} exclude each other",
        RUNTIME,
        lambda s: s.scene if s.scene not in ("", "watcher") and s.get("dump_list") else "",
    ),
    warn(
        "optype_blacklist",
        "and opname_blacklist need dump_level: op, and are ignored",
        RUNTIME,
        lambda s: (
            s.get("dump_level", "all") != "op" and any(set(_BLACKLISTS) & model.keys() for model in s.models)
        ),
    ),
    warn(
        "model_name",
        "is empty: this model is left out",
        RUNTIME,
        lambda s: any(model.get("model_name") == "" for model in s.models),
    ),
    warn(
        "layer",
        "is empty: this model is left out. Without the key, all of the model is dumped",
        RUNTIME,
        lambda s: any(model.get("layer") == [] for model in s.models),
    ),
    warn(
        "dump_list",
        "is missing, and dump_op_switch is off: nothing is dumped",
        RUNTIME,
        lambda s: (
            s.is_normal
            and not {"dump_list", "dump_kernel_data"} & s.dump.keys()
            and s.get("dump_op_switch", "off") == "off"
        ),
    ),
    warn(
        "dump_path",
        "is ignored: {} is set in this environment and takes precedence",
        RUNTIME,
        lambda s: (
            next((name for name in _COUNTS_MORE if os.environ.get(name)), "")
            if s.scene not in ("", "watcher") and s.get("dump_path")
            else ""
        ),
    ),
)
