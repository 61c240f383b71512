"""Rules for MindSpore's `data_dump.json`."""

from __future__ import annotations

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
from ingest.dump_configs.model import ConfigFinding
from ingest.dump_configs.reading import section

PARSER = (
    "https://atomgit.com/mindspore/mindspore/blob/master/mindspore/ccsrc/tools/data_dump/dump_json_parser.cc"
)
GUIDE = "https://www.mindspore.cn/tutorials/en/r2.10.0/debug/dump.html"
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
    yield from with_rules(findings, settings, _RULES)


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


_RULES: tuple[ConfigRule[_MindSporeSettings], ...] = (
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
        GUIDE,
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
        GUIDE,
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
        GUIDE,
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
        GUIDE,
        lambda s: s.device if s.of_e2e("sample_mode") == 1 and s.device in ("CPU", "GPU") else "",
    ),
    warn(
        "sample_mode",
        "is ignored, because op_debug_mode is {}",
        GUIDE,
        lambda s: str(s.debug) if s.of_e2e("sample_mode") == 1 and s.debug else "",
    ),
    warn(
        "save_kernel_args",
        "needs enable: true",
        GUIDE,
        lambda s: s.of_e2e("save_kernel_args") is True and s.of_e2e("enable") is not True,
    ),
)
