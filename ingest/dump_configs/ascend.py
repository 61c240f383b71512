"""Rules for the configurations of Ascend's own dumps, and for MindSpore's `data_dump.json`.

The former are the JSON of `aclInit`, `aclmdlSetDump` and TorchAir's `dump_config_path`.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ingest.dump_configs.model import (
    ConfigFinding,
    ConfigKey,
    ConfigRule,
    Kind,
    Severity,
    check_fields,
    refuse,
    section,
    warn,
    with_rules,
)

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


def _same_model(settings: _AclSettings) -> str:
    names = Counter(model.get("model_name") for model in settings.models)
    return next((repr(name) for name, count in names.items() if name and count > 1), "")


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
    refuse(
        "opname_range",
        "needs begin and end",
        RUNTIME,
        lambda s: any(
            not isinstance(entry, dict) or not entry.get("begin") or not entry.get("end")
            for _, entry in _ranges(s)
        ),
    ),
    warn(
        "pos",
        "{} of a blacklist is neither inputN nor outputN",
        RUNTIME,
        _bad_position,
    ),
    warn(
        "name",
        "or pos of an entry of a blacklist is empty: the entry is ignored",
        RUNTIME,
        lambda s: any(
            not isinstance(entry, dict) or not entry.get("name") or not entry.get("pos")
            for entries in _blacklists(s)
            for entry in entries
        ),
    ),
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


PARSER = (
    "https://atomgit.com/mindspore/mindspore/blob/master/mindspore/ccsrc/tools/data_dump/dump_json_parser.cc"
)
MINDSPORE_GUIDE = "https://www.mindspore.cn/tutorials/en/r2.10.0/debug/dump.html"
GUIDE_2_4 = "https://mindspore.cn/docs/zh-CN/r2.4.0/model_train/debug/dump.html"
OLD_PARSER = "https://github.com/mindspore-ai/mindspore/blob/master/mindspore/ccsrc/debug/data_dump/dump_json_parser.cc"

_CATEGORIES = (
    *("max", "min", "avg", "count", "negative zero count", "positive zero count", "nan count"),
    *("negative inf count", "positive inf count", "zero count", "md5", "l2norm", "hash"),
    *("hash:sha1", "hash:md5"),
)
_ON_DEVICE = ("max", "min", "avg", "l2norm")
_COMMON = (
    ConfigKey("dump_mode", Kind.COUNT, (0, 1, 2), is_required=True),
    ConfigKey("path", Kind.TEXT),
    ConfigKey("net_name", Kind.TEXT, is_required=True),
    ConfigKey("iteration", Kind.TEXT, is_required=True),
    ConfigKey("input_output", Kind.COUNT, (0, 1, 2), is_required=True),
    ConfigKey("kernels", Kind.TEXTS, is_required=True),
    ConfigKey("support_device", Kind.LIST, is_required=True),
    ConfigKey("op_debug_mode", Kind.COUNT, (0, 1, 2, 3, 4)),
    ConfigKey("saved_data", Kind.TEXT, ("tensor", "statistic", "full")),
    ConfigKey("statistic_category", Kind.TEXTS, _CATEGORIES),
    ConfigKey("file_format", Kind.TEXT, ("npy", "bin")),
    ConfigKey("overflow_number", Kind.COUNT),
    ConfigKey("initial_iteration", Kind.COUNT),
)
_E2E = (
    ConfigKey("enable", Kind.SWITCH),
    ConfigKey("trans_flag", Kind.SWITCH),
    ConfigKey("save_kernel_args", Kind.SWITCH),
    ConfigKey("stat_calc_mode", Kind.TEXT, ("host", "device")),
    ConfigKey("device_stat_precision_mode", Kind.TEXT, ("high", "low")),
    ConfigKey("sample_mode", Kind.COUNT, (0, 1)),
    ConfigKey("sample_num", Kind.COUNT),
)
_SECTIONS = (
    ConfigKey("common_dump_settings", Kind.SECTION, is_required=True),
    ConfigKey("e2e_dump_settings", Kind.SECTION),
)
_ITERATION = re.compile(r"[0-9|-]+")
_GROUP = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")
_REGEX = re.compile(r"name-regex\((.*)\)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _MindSporeSettings:
    """A `data_dump.json` whose values are of the right kinds, and where it will be used."""

    common: Mapping[str, Any]
    e2e: Mapping[str, Any] | None
    version: tuple[int, ...]
    device: str

    def get(self, key: str, default: Any = None) -> Any:
        return self.common.get(key, default)

    def of_e2e(self, key: str, default: Any = None) -> Any:
        return (self.e2e or {}).get(key, default)

    @property
    def debug(self) -> int:
        """`op_debug_mode`, as newer versions take it: 1 and 2 are 3."""
        mode = int(self.get("op_debug_mode", 0))
        return 3 if mode in (1, 2) else mode

    @property
    def saves_statistics(self) -> bool:
        return self.get("saved_data", "tensor") in ("statistic", "full")

    def is_before(self, *version: int) -> bool:
        return bool(self.version) and self.version < version


def check_mindspore(
    content: Mapping[str, Any], version: tuple[int, ...] = (), device: str = ""
) -> Iterator[ConfigFinding]:
    """Yield the mistakes in a `data_dump.json`.

    Args:
        content: its content.
        version: the version of MindSpore as numbers; empty if it is not known.
        device: `CPU`, `GPU` or `Ascend`; "" if that is not known.
    """
    findings = [
        *check_fields(content, _SECTIONS, PARSER),
        *check_fields(
            section(content, "common_dump_settings"), _COMMON, PARSER, prefix="common_dump_settings."
        ),
        *check_fields(section(content, "e2e_dump_settings"), _E2E, PARSER, prefix="e2e_dump_settings."),
    ]
    e2e = section(content, "e2e_dump_settings") if "e2e_dump_settings" in content else None
    settings = _MindSporeSettings(section(content, "common_dump_settings"), e2e, version, device)
    yield from with_rules(findings, settings, _MINDSPORE_RULES)


def _groups(settings: _MindSporeSettings) -> str:
    """Return the first group of `iteration` that no iteration is in."""
    text = settings.get("iteration")
    if text == "all" or not _ITERATION.fullmatch(text):
        return ""
    for group in text.split("|"):
        match = _GROUP.fullmatch(group)
        if match is None or (match[2] is not None and int(match[2]) < int(match[1])):
            return repr(group)
    return ""


def _kernels(settings: _MindSporeSettings) -> list[str]:
    return [kernel.replace(" ", "") for kernel in settings.get("kernels") if kernel.strip()]


def _bad_regex(settings: _MindSporeSettings) -> str:
    for kernel in _kernels(settings):
        if match := _REGEX.fullmatch(kernel):
            try:
                re.compile(match[1])
            except re.error as exc:
                return f"{kernel}: {exc}"
    return ""


def _is_listed(settings: _MindSporeSettings) -> bool:
    return bool(settings.get("dump_mode") == 1 and settings.debug == 0)


def _duplicate(settings: _MindSporeSettings) -> str:
    counts = Counter(_kernels(settings)) if _is_listed(settings) else Counter()
    return next((kernel for kernel, count in counts.items() if count > 1), "")


def _devices(settings: _MindSporeSettings) -> str:
    wrong = [item for item in settings.get("support_device") if not Kind.COUNT.fits(item)]
    return repr(wrong[0]) if wrong else ""


_MINDSPORE_RULES: tuple[ConfigRule[_MindSporeSettings], ...] = (
    refuse(
        "path",
        "{} is not absolute, and MindSpore ends with an error",
        PARSER,
        lambda s: repr(s.get("path")) if s.get("path") and not s.get("path").startswith("/") else "",
    ),
    refuse(
        "path",
        "{} has characters other than letters, digits, _, - and /",
        PARSER,
        lambda s: repr(s.get("path")) if re.search(r"[^A-Za-z0-9_/-]", s.get("path", "")) else "",
    ),
    warn(
        "path",
        "is empty: the dump goes to MS_DIAGNOSTIC_DATA_PATH/debug_dump; without that variable the job ends",
        PARSER,
        lambda s: not s.get("path"),
    ),
    refuse(
        "net_name",
        "{} must be made of letters, digits, - and _",
        PARSER,
        lambda s: repr(s.get("net_name")) if not re.fullmatch(r"[A-Za-z0-9_-]+", s.get("net_name")) else "",
    ),
    refuse(
        "iteration",
        "{} must be made of digits, - and |, without blanks, or be all",
        PARSER,
        lambda s: (
            repr(s.get("iteration"))
            if s.get("iteration") != "all" and not _ITERATION.fullmatch(s.get("iteration"))
            else ""
        ),
    ),
    warn("iteration", "no iteration is in the group {}, which must be N or FIRST-LAST", PARSER, _groups),
    refuse("support_device", "{} is not a device id", PARSER, _devices),
    refuse(
        "support_device",
        "is empty: no device dumps anything",
        PARSER,
        lambda s: s.get("support_device") == [] and s.device not in ("", "CPU"),
    ),
    warn(
        "support_device",
        "is ignored on CPU: every rank dumps",
        MINDSPORE_GUIDE,
        lambda s: s.device == "CPU" and s.get("support_device") not in ([], list(range(8))),
    ),
    refuse(
        "dump_mode",
        "2 (set_dump) is for Ascend: on {} MindSpore ends with an error",
        PARSER,
        lambda s: s.device if s.get("dump_mode") == 2 and s.device in ("CPU", "GPU") else "",
    ),
    warn(
        "kernels",
        "is empty although dump_mode is 1: every operator is dumped",
        PARSER,
        lambda s: _is_listed(s) and not _kernels(s),
    ),
    warn(
        "kernels",
        "is ignored, because dump_mode is {} and not 1",
        PARSER,
        lambda s: "2" if s.get("dump_mode") == 2 and _kernels(s) else "",
    ),
    refuse("kernels", "is not a regular expression: {}", PARSER, _bad_regex),
    warn(
        "kernels",
        r"has a backslash, which MindSpore doubles: use [.] instead of \. in {}",
        PARSER,
        lambda s: next((kernel for kernel in _kernels(s) if _is_listed(s) and "\\" in kernel), ""),
    ),
    warn(
        "kernels",
        "{}: versions before 2.4 know no regular expressions, and look for an operator of that name",
        GUIDE_2_4,
        lambda s: next((k for k in _kernels(s) if s.is_before(2, 4) and k.startswith("name-regex(")), ""),
    ),
    warn("kernels", "has {} twice", PARSER, _duplicate),
    refuse(
        "op_debug_mode",
        "4 is not known to versions before 2.3, which end with an error",
        OLD_PARSER,
        lambda s: s.is_before(2, 3) and s.get("op_debug_mode") == 4,
    ),
    warn(
        "op_debug_mode",
        "{} is taken as 3: all overflows",
        PARSER,
        lambda s: (
            str(s.get("op_debug_mode")) if s.get("op_debug_mode") in (1, 2) and not s.is_before(2, 3) else ""
        ),
    ),
    warn(
        "op_debug_mode",
        "is {}: dump_mode and kernels are ignored, dump_mode is set to 0",
        PARSER,
        lambda s: str(s.debug) if s.debug and s.get("dump_mode") != 0 else "",
    ),
    warn(
        "op_debug_mode",
        "is {}, which nothing supports on CPU and GPU: no data will be saved",
        MINDSPORE_GUIDE,
        lambda s: str(s.debug) if s.debug and s.device in ("CPU", "GPU") else "",
    ),
    warn(
        "input_output",
        "is ignored, because op_debug_mode is 3: inputs and outputs are saved",
        PARSER,
        lambda s: s.debug == 3 and s.get("input_output") != 0,
    ),
    warn(
        "iteration",
        "is ignored, because op_debug_mode is 4: all iterations are watched",
        PARSER,
        lambda s: s.debug == 4 and s.e2e is not None and s.get("iteration") != "all",
    ),
    warn(
        "saved_data",
        "is taken as tensor, because op_debug_mode is 4",
        PARSER,
        lambda s: s.debug == 4 and s.e2e is not None and s.saves_statistics,
    ),
    refuse(
        "overflow_number",
        "may be set only if op_debug_mode is 3",
        PARSER,
        lambda s: "overflow_number" in s.common and s.debug != 3,
    ),
    refuse(
        "saved_data",
        "statistics are not supported on CPU: save tensor, `dump-ingest` computes statistics",
        PARSER,
        lambda s: s.device == "CPU" and s.saves_statistics,
    ),
    refuse(
        "saved_data",
        "statistics of the asynchronous dump on Ascend need file_format npy",
        PARSER,
        lambda s: (
            s.saves_statistics
            and s.device == "Ascend"
            and s.e2e is None
            and s.get("file_format", "bin") != "npy"
        ),
    ),
    refuse(
        "saved_data",
        "statistics of the synchronous dump on Ascend are not supported before 2.3",
        OLD_PARSER,
        lambda s: s.saves_statistics and s.device == "Ascend" and s.e2e is not None and s.is_before(2, 3),
    ),
    warn(
        "statistic_category",
        "{} is computed on the host alone, and left out because stat_calc_mode is device",
        PARSER,
        lambda s: ", ".join(
            item
            for item in s.get("statistic_category", ())
            if s.of_e2e("stat_calc_mode") == "device" and item not in _ON_DEVICE
        ),
    ),
    warn(
        "file_format",
        "is ignored by the synchronous dump, which writes npy",
        MINDSPORE_GUIDE,
        lambda s: s.e2e is not None and s.get("file_format") == "bin",
    ),
    warn(
        "stat_calc_mode",
        "device is taken as host, because saved_data is {}",
        PARSER,
        lambda s: (
            s.get("saved_data", "tensor")
            if s.of_e2e("stat_calc_mode") == "device" and s.get("saved_data", "tensor") != "statistic"
            else ""
        ),
    ),
    warn(
        "stat_calc_mode",
        "device is for Ascend, and taken as host on {}",
        PARSER,
        lambda s: s.device if s.of_e2e("stat_calc_mode") == "device" and s.device in ("CPU", "GPU") else "",
    ),
    refuse("sample_num", "must be at least 1", PARSER, lambda s: s.of_e2e("sample_num") == 0),
    warn(
        "sample_num",
        "is ignored, because sample_mode is not 1",
        PARSER,
        lambda s: (
            s.of_e2e("sample_num") is not None
            and s.of_e2e("sample_mode", 0) != 1
            and s.of_e2e("sample_num") != 100
        ),
    ),
    warn(
        "sample_mode",
        "1 is for Ascend (ms_backend), and not supported on {}",
        MINDSPORE_GUIDE,
        lambda s: s.device if s.of_e2e("sample_mode") == 1 and s.device in ("CPU", "GPU") else "",
    ),
    warn(
        "sample_mode",
        "is ignored, because op_debug_mode is {}",
        MINDSPORE_GUIDE,
        lambda s: str(s.debug) if s.of_e2e("sample_mode") == 1 and s.debug else "",
    ),
    warn(
        "save_kernel_args",
        "needs enable: true",
        MINDSPORE_GUIDE,
        lambda s: s.of_e2e("save_kernel_args") is True and s.of_e2e("enable") is not True,
    ),
)
