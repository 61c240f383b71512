"""Rules for msProbe's `config.json`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ingest.dump_configs.model import (
    ConfigFinding,
    ConfigKey,
    ConfigRule,
    Kind,
    check_fields,
    refuse,
    section,
    warn,
    with_rules,
)

_CODE = "https://gitcode.com/Ascend/msprobe/blob/26.2.0/python/msprobe"
COMMON = f"{_CODE}/core/dump/common_config.py"
DEBUGGER = f"{_CODE}/pytorch/dump/debugger/debugger_config.py"
SCOPE = f"{_CODE}/core/dump/data_dump/scope.py"
UTILS = f"{_CODE}/core/common/utils.py"
GUIDE = "https://gitcode.com/Ascend/msprobe/blob/26.0.0/docs/en/dump/config_json_introduct.md"

_TASKS = (
    *("statistics", "tensor", "structure", "acc_check", "overflow_check", "exception_dump"),
    *("nan_check", "diff_check", "free_benchmark", "run_ut", "grad_probe"),
)
#: Tasks of older releases, whose sections are not checked here.
_FORMER_TASKS = ("overflow_check", "free_benchmark", "run_ut", "grad_probe")
_UNCHECKED_TASKS = (*_FORMER_TASKS, "acc_check")
#: At these keys, null is refused; at all others, it means the default.
_NOT_NULL = ("async_dump", "extra_info", "precision", "load", *_TASKS)
_MODES = ("all", "input", "output", "forward", "backward")
_SUMMARIES = (
    *("statistics", "md5", "xor", "max", "min", "mean", "l2norm", "count", "hash", "zero count", "nan count"),
    *("negative zero count", "positive zero count", "negative inf count", "positive inf count"),
)
_FIELDS = (
    ConfigKey("task", Kind.TEXT, _TASKS),
    ConfigKey("dump_path", Kind.TEXT, is_required=True),
    ConfigKey("rank", Kind.LIST),
    ConfigKey("step", Kind.LIST),
    ConfigKey("level", Kind.TEXT, ("L0", "L1", "L2", "mix", "debug")),
    ConfigKey("async_dump", Kind.SWITCH),
    ConfigKey("dump_enable", Kind.SWITCH),
    ConfigKey("extra_info", Kind.SWITCH),
    ConfigKey("precision", Kind.TEXT, ("high", "low")),
    ConfigKey("risk_level", Kind.TEXT, ("ALL", "CORE", "FOCUS")),
    ConfigKey("custom_op_namespaces", Kind.TEXTS),
    ConfigKey("seed", Kind.COUNT),
    ConfigKey("is_deterministic", Kind.SWITCH),
    ConfigKey("enable_dataloader", Kind.SWITCH),
    ConfigKey("acl_config", Kind.TEXT),
    ConfigKey("load", Kind.SECTION),
    *(ConfigKey(task, Kind.SECTION) for task in _TASKS),
)
_OF_TASK = (
    ConfigKey("scope", Kind.TEXTS),
    ConfigKey("list", Kind.TEXTS),
    ConfigKey("tensor_list", Kind.TEXTS),
    ConfigKey("data_mode", Kind.TEXTS, _MODES),
    ConfigKey("file_format", Kind.TEXT, ("npy", "bin")),
    ConfigKey("bench_path", Kind.TEXT),
    ConfigKey("slice", Kind.LIST),
    ConfigKey("request_id", Kind.TEXT),
    ConfigKey("custom_api", Kind.TEXTS),  # of AclGraphDumper
    ConfigKey("device", Kind.TEXT, ("device", "host")),
    ConfigKey("precision", Kind.TEXT, ("high", "low")),
)
#: Keys whose values have no single kind: they have rules of their own.
_OF_SEVERAL_KINDS = ("summary_mode", "diff_nums")
_API = re.compile(r".+\.\d+\.(?:forward|backward)")
_MODULE = re.compile(r"(?:Cell|Module)\..+\.(?:forward|backward)\.\d+")
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")
#: The highest rank or step.
_MAX_NUMBER = 1_000_000


@dataclass(frozen=True, slots=True)
class _MsProbeSettings:
    content: Mapping[str, Any]

    @property
    def task(self) -> str:
        return str(self.content.get("task") or "statistics")

    @property
    def level(self) -> str:
        return str(self.content.get("level") or "L1")

    def of_task(self, key: str, default: Any = None) -> Any:
        """Return a value of the section of the task; or the default, as for null."""
        value = None if self.task in _UNCHECKED_TASKS else section(self.content, self.task).get(key)
        return default if value is None else value

    @property
    def is_async(self) -> bool:
        return self.content.get("async_dump") is True


def check_msprobe(content: Mapping[str, Any]) -> Iterator[ConfigFinding]:
    """Yield what is wrong in a `config.json` of msProbe."""
    given = {key: value for key, value in content.items() if value is not None or key in _NOT_NULL}
    findings = list(check_fields(given, _FIELDS, COMMON))
    settings = _MsProbeSettings(given)
    if settings.task not in _UNCHECKED_TASKS:
        of_task = section(given, settings.task).items()
        plain = {key: value for key, value in of_task if value is not None and key not in _OF_SEVERAL_KINDS}
        findings += check_fields(plain, _OF_TASK, COMMON, prefix=f"{settings.task}.")
    yield from with_rules(findings, settings, _RULES)


def _bad_number(items: list[Any]) -> str:
    for item in items:
        match = _RANGE.fullmatch(str(item)) if Kind.COUNT.fits(item) or isinstance(item, str) else None
        if match is None or not int(match[1]) <= int(match[2] or match[1]) <= _MAX_NUMBER:
            return repr(item)
    return ""


def _bad_slice(items: list[Any]) -> str:
    """Return the first item that is not an object of whole numbers, or has a negative `dim` or `size`."""
    for item in items:
        if not isinstance(item, dict) or not all(isinstance(value, int) for value in item.values()):
            return repr(item)
        if item.get("dim", 0) < 0 or item.get("size", 0) < 0:
            return repr(item)
    return ""


def _bad_scope(settings: _MsProbeSettings) -> str:
    patterns = {"L1": (_API,), "L0": (_MODULE,), "mix": (_API, _MODULE)}.get(settings.level, ())
    names = settings.of_task("scope", [])
    return next(
        (name for name in names if patterns and not any(pattern.fullmatch(name) for pattern in patterns)), ""
    )


def _summaries(settings: _MsProbeSettings) -> list[Any]:
    mode = settings.of_task("summary_mode", [])
    return mode if isinstance(mode, list) else [mode]


_RULES: tuple[ConfigRule[_MsProbeSettings], ...] = (
    warn(
        "task",
        "{} is known to older releases alone: msProbe 26.2 refuses it, although its guide has it",
        f"{_CODE}/core/common/const.py",
        lambda s: s.task if s.task in _FORMER_TASKS else "",
    ),
    warn(
        "task",
        "is missing: msProbe 26.2 ends with an error, unless PrecisionDebugger is given a task",
        f"{_CODE}/pytorch/dump/pt_config.py",
        lambda s: not s.content.get("task"),
    ),
    refuse("dump_path", "is empty", DEBUGGER, lambda s: not s.content.get("dump_path")),
    refuse(
        "rank",
        "{} is neither a rank up to 1000000 nor a range such as 4-6",
        UTILS,
        lambda s: _bad_number(s.content.get("rank") or []),
    ),
    refuse(
        "step",
        "{} is neither a step up to 1000000 nor a range such as 4-6",
        UTILS,
        lambda s: _bad_number(s.content.get("step") or []),
    ),
    refuse(
        "scope",
        "must have two names, the first and the last, not {}",
        SCOPE,
        lambda s: str(len(s.of_task("scope"))) if len(s.of_task("scope", [])) not in (0, 2) else "",
    ),
    refuse("scope", "{} is not the whole name of a call at this level", SCOPE, _bad_scope),
    refuse(
        "data_mode",
        "all cannot be combined with others",
        COMMON,
        lambda s: "all" in s.of_task("data_mode", []) and len(s.of_task("data_mode")) > 1,
    ),
    refuse(
        "summary_mode",
        "{} is not a statistic",
        COMMON,
        lambda s: next((repr(mode) for mode in _summaries(s) if mode not in _SUMMARIES), ""),
    ),
    warn(
        "summary_mode",
        "a list is for MindSpore: with PyTorch, msProbe ends with an error",
        COMMON,
        lambda s: isinstance(s.of_task("summary_mode"), list) and s.task in ("tensor", "statistics"),
    ),
    refuse(
        "diff_nums",
        "must be -1 or at least 1",
        GUIDE,
        lambda s: (
            s.of_task("diff_nums", 1) != -1
            and not (Kind.COUNT.fits(s.of_task("diff_nums", 1)) and s.of_task("diff_nums", 1))
        ),
    ),
    refuse(
        "list",
        "is empty, which async_dump does not allow for the task tensor",
        DEBUGGER,
        lambda s: s.is_async and s.task == "tensor" and s.level != "debug" and not s.of_task("list"),
    ),
    refuse(
        "summary_mode",
        "md5 is not possible with async_dump",
        DEBUGGER,
        lambda s: s.is_async and s.of_task("summary_mode") == "md5",
    ),
    refuse(
        "level",
        "must be L1 for the task nan_check",
        DEBUGGER,
        lambda s: s.task == "nan_check" and s.level != "L1",
    ),
    refuse(
        "data_mode",
        "the task nan_check looks at outputs: input alone is not supported",
        DEBUGGER,
        lambda s: (
            s.task == "nan_check"
            and "input" in s.of_task("data_mode", [])
            and not {"output", "all"} & set(s.of_task("data_mode", []))
        ),
    ),
    refuse(
        "scope",
        "cannot be set at level L2",
        DEBUGGER,
        lambda s: s.level == "L2" and s.task in ("tensor", "statistics") and s.of_task("scope"),
    ),
    warn(
        "list",
        "must have exactly one name at level L2 with PyTorch; only MindSpore in static graphs takes others",
        DEBUGGER,
        lambda s: s.level == "L2" and s.task in ("tensor", "diff_check") and len(s.of_task("list", [])) != 1,
    ),
    warn(
        "task",
        "must be tensor at level L2 with PyTorch; only MindSpore in static graphs takes others",
        DEBUGGER,
        lambda s: s.level == "L2" and s.task in ("statistics", "diff_check"),
    ),
    warn(
        "level",
        "is taken as mix, because the task is structure",
        DEBUGGER,
        lambda s: s.task == "structure" and s.level not in ("L0", "mix"),
    ),
    warn(
        "list",
        "{} is a regular expression, which MindSpore in static graphs alone knows",
        SCOPE,
        lambda s: next(
            (name for name in s.of_task("list", []) if name.startswith("name-regex(") and s.level != "L2"), ""
        ),
    ),
    warn(
        "list",
        "{} is not the whole name of a call: every call whose name contains it is dumped",
        GUIDE,
        lambda s: next(
            (
                name
                for name in s.of_task("list", [])
                if s.level == "L1" and "." in name and not _API.fullmatch(name) and "(" not in name
            ),
            "",
        ),
    ),
    warn(
        "tensor_list",
        "is for the task statistics, and ignored",
        COMMON,
        lambda s: s.task == "tensor" and s.of_task("tensor_list"),
    ),
    warn(
        "tensor_list",
        "is ignored at level debug",
        DEBUGGER,
        lambda s: s.task == "statistics" and s.level == "debug" and s.of_task("tensor_list"),
    ),
    warn(
        "bench_path",
        "needs summary_mode md5, in this dump and in that one",
        GUIDE,
        lambda s: s.of_task("bench_path") and s.of_task("summary_mode") != "md5",
    ),
    refuse(
        "slice",
        "{} is not an object of whole numbers, or has a negative dim or size",
        UTILS,
        lambda s: _bad_slice(s.of_task("slice", [])),
    ),
    warn(
        "slice",
        "is ignored at level {}: it is for L0, L1 and mix",
        DEBUGGER,
        lambda s: s.level if s.of_task("slice") and s.level not in ("L0", "L1", "mix") else "",
    ),
    warn(
        "task",
        "the section {} is missing: the defaults dump everything",
        COMMON,
        lambda s: s.task if s.task == "tensor" and s.task not in s.content else "",
    ),
)
