"""Check a configuration of any dump system: its system, what it asks for, what is wrong with it.

Here are also the rules for the variables of SGLang's dumper, and for the debug YAML of TransformerEngine.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import yaml

from ingest.dump_configs.ascend import TORCHAIR, check_acl, check_mindspore
from ingest.dump_configs.model import (
    AskedDump,
    ConfigFinding,
    ConfigKey,
    ConfigRule,
    Kind,
    Severity,
    check_fields,
    check_rules,
    read_acl,
    read_mindspore,
    read_msprobe,
    read_options,
    refuse,
    section,
    version_numbers,
    warn,
)
from ingest.dump_configs.msprobe import check_msprobe
from workers.errors import UsageError

SGLANG = "https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/debug_utils/dumper.py"
TE = "https://github.com/NVIDIA/TransformerEngine/blob/main/transformer_engine/debug/features/dump_tensors.py"
_PREFIX = "DUMPER_"
_TEXTS = (
    *("FILTER", "DIR", "EXP_NAME", "SERVER_PORT", "NON_INTRUSIVE_MODE", "SOURCE_PATCHER_CONFIG"),
    *(
        "GRAFTER_ROLE",
        "GRAFTER_B2T_FILTER",
        "GRAFTER_T2B_FILTER",
        "GRAFTER_MASTER_ADDRESS",
        "GRAFTER_BACKEND",
    ),
    *("GRAFTER_GROUP_NAME", "GRAFTER_TRANSFORM_PATH"),
)
_SWITCHES = (
    *("ENABLE", "ENABLE_OUTPUT_FILE", "ENABLE_OUTPUT_CONSOLE", "ENABLE_VALUE", "ENABLE_GRAD"),
    *("ENABLE_MODEL_VALUE", "ENABLE_MODEL_GRAD", "CLEANUP_PREVIOUS", "GRAFTER_ENABLE"),
    "INCLUDE_PARALLEL_RANK_IN_FILENAME",
)
_COUNTS = (
    *("COLLECTIVE_TIMEOUT", "GRAFTER_MASTER_PORT", "GRAFTER_BASELINE_WORLD_SIZE"),
    *("GRAFTER_TARGET_WORLD_SIZE", "GRAFTER_TIMEOUT"),
)
_VARIABLES = tuple(ConfigKey(f"{_PREFIX}{name}", Kind.TEXT) for name in (*_TEXTS, *_SWITCHES, *_COUNTS))
_MODES = ("off", "core", "all")
_TENSORS = ("activation", "gradient", "weight", "output", "wgrad", "dgrad")
_TE_TENSOR = (
    ConfigKey("tensor", Kind.TEXT, _TENSORS, is_required=True),
    ConfigKey("high_precision_tensor", Kind.SWITCH),
    ConfigKey("quantized_tensor", Kind.SWITCH),
    ConfigKey("dump_quantized_internals", Kind.SWITCH),
    ConfigKey("extended_quantized_tensor_log", Kind.SWITCH),
    ConfigKey("freq", Kind.COUNT),
    ConfigKey("start_step", Kind.COUNT),
    ConfigKey("end_step", Kind.COUNT),
    ConfigKey("start_end_list", Kind.LIST),
)
_SELECTORS = ("layer_types", "layer_name_regex_pattern", "layer_numbers")


def check_sglang(variables: Mapping[str, str]) -> Iterator[ConfigFinding]:
    """Yield the mistakes in the variables of SGLang's dumper."""
    own = {name: value for name, value in variables.items() if name.startswith(_PREFIX)}
    yield from check_fields(own, _VARIABLES, SGLANG)
    # A blank one counts as one that is not set.
    yield from check_rules({name: value for name, value in variables.items() if value.strip()}, _SGLANG_RULES)


def variables_of(text: str) -> dict[str, str]:
    """Return the variables that lines of a shell set: `NAME=value`, also behind `export`."""
    variables: dict[str, str] = {}
    for line in text.replace("\\\n", " ").splitlines():
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            continue
        for word in words:
            name, equals, value = word.partition("=")
            if equals and name.isidentifier():
                variables.setdefault(name, value)
    return variables


def check_transformer_engine(content: Mapping[str, Any]) -> Iterator[ConfigFinding]:
    """Yield the mistakes in a debug YAML with the feature DumpTensors."""
    for name, entry in content.items():
        feature = section(section(content, name), "transformer_engine").get("DumpTensors")
        if not isinstance(feature, dict):
            continue
        yield from check_rules((entry, feature), _TE_RULES)
        if feature.get("tensors") and not feature.get("tensors_struct"):
            yield from _check_tensor(feature, f"{name}.DumpTensors.")  # the same options for all
        tensors = feature.get("tensors_struct", [])
        for number, tensor in enumerate(tensors if isinstance(tensors, list) else []):
            prefix = f"{name}.DumpTensors.tensors_struct[{number}]."
            if isinstance(tensor, dict):
                yield from check_fields(tensor, _TE_TENSOR, TE, prefix=prefix)
                yield from _check_tensor({**feature, **tensor}, prefix)
            else:
                yield ConfigFinding(Severity.REFUSED, prefix[:-1], "must be an object", TE)


def _check_tensor(tensor: Mapping[str, Any], prefix: str) -> Iterator[ConfigFinding]:
    for finding in check_rules(tensor, _TENSOR_RULES):
        yield ConfigFinding(finding.severity, f"{prefix}{finding.key}", finding.message, finding.source)


def _filter_names(variables: Mapping[str, str]) -> set[str] | None:
    try:
        tree = ast.parse(variables.get("DUMPER_FILTER", "") or "True", mode="eval")
    except (SyntaxError, ValueError, RecursionError):
        return None
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _tensor_names(feature: Mapping[str, Any]) -> list[Any]:
    names = feature.get("tensors") or []
    return names if isinstance(names, list) else [names]


_SGLANG_RULES: tuple[ConfigRule[Mapping[str, str]], ...] = (
    warn(
        "DUMPER_ENABLE",
        "is not 1: nothing is dumped until it is enabled by HTTP",
        SGLANG,
        lambda v: v.get("DUMPER_ENABLE", "").lower() not in ("1", "true"),
    ),
    refuse("DUMPER_FILTER", "is not an expression of Python", SGLANG, lambda v: _filter_names(v) is None),
    warn(
        "DUMPER_FILTER",
        "{} is not a tag that the filter knows: it is always None",
        SGLANG,
        lambda v: ", ".join(sorted((_filter_names(v) or set()) & {"step", "rank", "dump_index"})),
    ),
    refuse(
        "DUMPER_NON_INTRUSIVE_MODE",
        "{} is not one of off, core, all",
        SGLANG,
        lambda v: (
            repr(v["DUMPER_NON_INTRUSIVE_MODE"])
            if v.get("DUMPER_NON_INTRUSIVE_MODE", "core") not in _MODES
            else ""
        ),
    ),
    refuse(
        "DUMPER_COLLECTIVE_TIMEOUT",
        "{} is not a number",
        SGLANG,
        lambda v: (
            repr(v["DUMPER_COLLECTIVE_TIMEOUT"])
            if not v.get("DUMPER_COLLECTIVE_TIMEOUT", "60").strip().isdecimal()
            else ""
        ),
    ),
    warn(
        "DUMPER_ENABLE",
        "the prefix is DUMPER_: {} is not read",
        SGLANG,
        lambda v: next((name for name in v if name.startswith("SGLANG_DUMPER_")), ""),
    ),
)
_TE_RULES: tuple[ConfigRule[tuple[Mapping[str, Any], Mapping[str, Any]]], ...] = (
    warn("enabled", "is not True: nothing is dumped", TE, lambda pair: not pair[0].get("enabled")),
    warn(
        "DumpTensors.enabled", "is not True: nothing is dumped", TE, lambda pair: not pair[1].get("enabled")
    ),
    refuse(
        "layers",
        "must have layer_types or layer_name_regex_pattern",
        TE,
        lambda pair: not any(name in section(pair[0], "layers") for name in _SELECTORS),
    ),
    refuse(
        "DumpTensors",
        "must have tensors_struct or tensors",
        TE,
        lambda pair: not pair[1].get("tensors_struct") and not pair[1].get("tensors"),
    ),
    refuse(
        "DumpTensors.tensors",
        "{} is not a tensor of a layer",
        TE,
        lambda pair: next((repr(name) for name in _tensor_names(pair[1]) if name not in _TENSORS), ""),
    ),
)
_TENSOR_RULES: tuple[ConfigRule[Mapping[str, Any]], ...] = (
    warn(
        "high_precision_tensor",
        "and quantized_tensor are both off: nothing is dumped",
        TE,
        lambda t: not t.get("high_precision_tensor") and not t.get("quantized_tensor"),
    ),
    warn(
        "start_end_list",
        "is set: {} is ignored",
        TE,
        lambda t: next(
            (key for key in ("start_step", "end_step") if t.get("start_end_list") and key in t), ""
        ),
    ),
    refuse("freq", "must be at least 1", TE, lambda t: t.get("freq") == 0),
)


DEVICES = ("CPU", "GPU", "Ascend")
_MAX_NBYTES = 4 * 1024 * 1024
_MSPROBE_KEYS = {"task", "dump_path", "level"}


@dataclass(frozen=True, slots=True)
class CheckedConfig:
    """A configuration that was checked."""

    name: str
    """The path of its file."""
    system: str
    """The system that it is for, as `dump-ingest next --system` names it."""
    asked: AskedDump | None
    """What it asks for; None if nothing here can tell."""
    findings: tuple[ConfigFinding, ...]

    @property
    def refused(self) -> tuple[ConfigFinding, ...]:
        """What ends the job, or makes it dump nothing."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.REFUSED)

    @property
    def warnings(self) -> tuple[ConfigFinding, ...]:
        """What is ignored, or is not what it seems."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.WARNING)

    def to_dict(self) -> dict[str, Any]:
        """Return one object of plain values."""
        asked = self.asked
        return {
            "name": self.name,
            "system": self.system,
            "ok": not self.refused,
            "findings": [asdict(finding) for finding in self.findings],
            "asked": None
            if asked is None
            else {
                "steps": None if asked.steps is None else sorted(asked.steps),
                "operators": None
                if asked.operators is None
                else [pattern.text for pattern in asked.operators],
                "devices": None if asked.devices is None else sorted(asked.devices),
                "io": asked.io.value,
                "tensors": asked.tensors,
                "statistics": asked.statistics,
                "categories": list(asked.categories),
                "sample": asked.sample,
                "directory": asked.directory,
                "only": asked.only,
            },
        }


def check_dump_config(path: str | PathLike[str], *, version: str = "", device: str = "") -> CheckedConfig:
    """Check the configuration of a dump before the job runs.

    Known are `data_dump.json` of MindSpore, `config.json` of msProbe, the JSON of ACL, lines of Python for
    TorchAir and TensorFlow on Ascend, variables of SGLang's dumper, and the debug YAML of TransformerEngine.

    Args:
        path: the file.
        version: the version of MindSpore, such as `2.10.0`: some rules depend on it.
        device: where the job runs: `CPU`, `GPU` or `Ascend`; some rules of MindSpore depend on it.

    Raises:
        UsageError: the file cannot be read, or is not a configuration of these systems.
    """
    if device and device not in DEVICES:
        raise UsageError(f"no device {device!r}", hint=f"Devices: {', '.join(DEVICES)}.")
    file = Path(path)
    try:
        data = file.read_bytes()[: _MAX_NBYTES + 1]
        text = data.decode("utf-8-sig")
    except OSError as exc:
        raise UsageError(f"{file}: cannot be read ({exc.strerror})", hint="Name the file.") from exc
    except UnicodeDecodeError as exc:
        raise UsageError(f"{file} is not text", hint="Name the configuration, not the dump.") from exc
    if len(data) > _MAX_NBYTES:
        raise UsageError(f"{file} is too large for a configuration", hint="Name the configuration.")
    return check_text(text, str(file), version=version, device=device)


def check_text(text: str, name: str, *, version: str = "", device: str = "") -> CheckedConfig:
    """Check a configuration that has been read; see `check_dump_config`."""
    if text.lstrip().startswith(("{", "[")):
        return _check_json(text, name, version, device)
    if (options := options_of(text)) is not None:
        system, values = options
        if system == "torchair":
            asked = read_options(values, usual_mode="all")
            return CheckedConfig(name, system, asked, tuple(check_torchair(values)))
        asked = read_options(values, usual_mode="output")
        return CheckedConfig(name, system, asked, tuple(check_tensorflow(values)))
    variables = variables_of(text)
    if any("DUMPER_" in variable for variable in variables):
        asked = AskedDump(directory=variables.get("DUMPER_DIR") or "/tmp/dumper")  # noqa: S108  (SGLang's default)
        return CheckedConfig(name, "sglang", asked, tuple(check_sglang(variables)))
    content = _yaml(text)
    if any(isinstance(entry, dict) and "transformer_engine" in entry for entry in content.values()):
        return CheckedConfig(name, "te", None, tuple(check_transformer_engine(content)))
    raise _unknown(name)


def _check_json(text: str, name: str, version: str, device: str) -> CheckedConfig:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise UsageError(
            f"{name} is not JSON: {exc}",
            hint="Look for a comma too many or too few: every system refuses it.",
        ) from exc
    if not isinstance(content, dict):
        raise _unknown(name)
    if {"common_dump_settings", "e2e_dump_settings"} & content.keys():
        findings = check_mindspore(content, version_numbers(version), device)
        return CheckedConfig(name, "mindspore", read_mindspore(content), tuple(findings))
    if isinstance(content.get("dump"), dict) or list(content) == ["dump"]:
        return CheckedConfig(name, "acl", read_acl(content), tuple(check_acl(content)))
    if _MSPROBE_KEYS & content.keys():
        return CheckedConfig(name, "msprobe", read_msprobe(content), tuple(check_msprobe(content)))
    raise _unknown(name)


def _yaml(text: str) -> Mapping[str, Any]:
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _unknown(name: str) -> UsageError:
    return UsageError(
        f"{name} is not the configuration of a dump system that is known here",
        hint="Known are data_dump.json (it must have common_dump_settings), msProbe's config.json, ACL's "
        "JSON, lines for TorchAir and TensorFlow, DUMPER_ variables and TransformerEngine's YAML.",
    )


def worst_first(findings: Iterable[ConfigFinding]) -> list[ConfigFinding]:
    """Return findings that are refused before warnings, otherwise in their order."""
    return sorted(findings, key=lambda finding: finding.severity is Severity.WARNING)


TORCHAIR_CODE = "https://github.com/Ascend/torchair/blob/master/python/torchair/configs/dump_config.py"
TENSORFLOW = "https://www.hiascend.com/document/detail/zh/TensorFlowCommercial/latest/migration/tfmigr1/tfmigr1_tfadapi_0043.html"
_OPTIONS = (
    ConfigKey("enable_dump", Kind.SWITCH),
    ConfigKey("dump_path", Kind.TEXT),
    ConfigKey("dump_mode", Kind.TEXT, ("input", "output", "all")),
    ConfigKey("dump_step", Kind.TEXT),
    ConfigKey("dump_layer", Kind.TEXT),
    ConfigKey("dump_data", Kind.TEXT, ("tensor", "stats")),
)
_TORCHAIR = (
    *_OPTIONS,
    ConfigKey("quant_dumpable", Kind.SWITCH),
    ConfigKey("dump_config_path", Kind.TEXT),
    ConfigKey("data_dump_stage", Kind.TEXT, ("original", "optimized")),
)
_TENSORFLOW = (
    *_OPTIONS,
    ConfigKey("enable_dump_debug", Kind.SWITCH),
    ConfigKey("dump_debug_mode", Kind.TEXT, ("aicore_overflow", "atomic_overflow", "all")),
    ConfigKey("quant_dumpable", Kind.TEXT, ("0", "1")),
    ConfigKey("enable_exception_dump", Kind.COUNT, (0, 1, 2)),
)
_TENSORFLOW_TARGET = re.compile(
    r".*parameter_map\[['\"](\w+)['\"]\]\.[sbi]|.*global_options\(\)\.dump_config\.(\w+)"
)
_TORCHAIR_TARGET = re.compile(r".*\bdump_config\.(\w+)")
#: What TensorFlow 1 passes to `NPURunConfig` of an Estimator.
_CONSTRUCTOR = re.compile(r"(?:.*\.)?DumpConfig")
#: Options of the session that are not about dumps.
_NOT_OF_DUMPS = re.compile(r"(?!.*dump)")
_STEP = re.compile(r"\d+(-\d+)?(\|\d+(-\d+)?)*")
_LAYER = re.compile(r'[0-9a-zA-Z_" /\\.-]*')


def check_torchair(options: Mapping[str, Any]) -> Iterator[ConfigFinding]:
    """Yield the mistakes in the options of `config.dump_config`."""
    yield from check_fields(options, _TORCHAIR, TORCHAIR_CODE, prefix="dump_config.")
    yield from check_rules(options, (*_RULES, *_TORCHAIR_RULES))


def check_tensorflow(options: Mapping[str, Any]) -> Iterator[ConfigFinding]:
    """Yield the mistakes in the options of `custom_op.parameter_map` or `global_options().dump_config`."""
    dump_options = {name: value for name, value in options.items() if not _NOT_OF_DUMPS.match(name)}
    yield from check_fields(dump_options, _TENSORFLOW, TENSORFLOW)
    yield from check_rules(options, (*_RULES, *_TENSORFLOW_RULES))


def options_of(text: str) -> tuple[str, dict[str, Any]] | None:
    """Return the options that lines of Python set, and whose they are: `torchair` or `tensorflow`.

    None if they set none, or are not Python. Nothing is executed: values other than literals are left out.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    of_torchair: dict[str, Any] = {}
    of_tensorflow: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            target, value = ast.unparse(node.targets[0]), _literal(node.value)
            if value is None or len(node.targets) > 1:
                continue
            if match := _TENSORFLOW_TARGET.fullmatch(target):
                of_tensorflow[match[1] or match[2]] = value
            elif match := _TORCHAIR_TARGET.fullmatch(target):
                of_torchair[match[1]] = value
        elif isinstance(node, ast.Call) and _CONSTRUCTOR.fullmatch(ast.unparse(node.func)):
            literals = {keyword.arg: _literal(keyword.value) for keyword in node.keywords if keyword.arg}
            of_tensorflow |= {name: value for name, value in literals.items() if value is not None}
    if of_torchair:
        return "torchair", of_torchair
    return ("tensorflow", of_tensorflow) if of_tensorflow else None


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Call) and len(node.args) == 1:  # tf.compat.as_bytes("...")
        node = node.args[0]
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError):
        return None


def _text(options: Mapping[str, Any], key: str) -> str:
    value = options.get(key)
    return value if isinstance(value, str) else ""


_RULES: tuple[ConfigRule[Mapping[str, Any]], ...] = (
    refuse(
        "dump_step",
        "{} must be groups N or FIRST-LAST, joined by |",
        TORCHAIR_CODE,
        lambda o: (
            repr(o["dump_step"])
            if _text(o, "dump_step") and not _STEP.fullmatch(_text(o, "dump_step"))
            else ""
        ),
    ),
    refuse(
        "dump_layer",
        "{} must be names with blanks between them",
        TORCHAIR_CODE,
        lambda o: repr(o["dump_layer"]) if not _LAYER.fullmatch(_text(o, "dump_layer")) else "",
    ),
)
_TORCHAIR_RULES: tuple[ConfigRule[Mapping[str, Any]], ...] = (
    warn(
        "dump_config.enable_dump",
        "is not True: no option has an effect",
        TORCHAIR,
        lambda o: o.get("enable_dump") is not True and "dump_config_path" not in o,
    ),
    warn(
        "dump_config.dump_config_path",
        "is overridden by {}: set one of the two",
        TORCHAIR,
        lambda o: (
            next((name for name in ("dump_layer", "dump_step", "dump_mode", "dump_data") if name in o), "")
            if "dump_config_path" in o
            else ""
        ),
    ),
)
_TENSORFLOW_RULES: tuple[ConfigRule[Mapping[str, Any]], ...] = (
    warn(
        "enable_dump",
        "is not True: no option has an effect",
        TENSORFLOW,
        lambda o: (
            o.get("enable_dump") is not True
            and o.get("enable_dump_debug") is not True
            and not o.get("enable_exception_dump")
        ),
    ),
    refuse(
        "enable_dump_debug",
        "and enable_dump exclude each other",
        TENSORFLOW,
        lambda o: o.get("enable_dump") is True and o.get("enable_dump_debug") is True,
    ),
    warn(
        "enable_exception_dump",
        "is 1: of networks with dynamic shapes, nothing but exceptions is dumped",
        TENSORFLOW,
        lambda o: (
            o.get("enable_exception_dump") == 1
            and (o.get("enable_dump") is True or o.get("enable_dump_debug") is True)
        ),
    ),
    warn(
        "dump_debug_mode",
        "has no effect without enable_dump_debug",
        TENSORFLOW,
        lambda o: "dump_debug_mode" in o and o.get("enable_dump_debug") is not True,
    ),
    refuse(
        "dump_path",
        "is missing",
        TENSORFLOW,
        lambda o: "dump_path" not in o and (o.get("enable_dump") or o.get("enable_dump_debug")),
    ),
)
