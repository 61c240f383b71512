"""Rules for the variables of SGLang's dumper, and for the debug YAML of TransformerEngine."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from ingest.dump_configs.model import (
    ConfigFinding,
    ConfigKey,
    ConfigRule,
    Kind,
    Severity,
    check_fields,
    check_rules,
    refuse,
    section,
    warn,
)

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
    """Return the names in the filter; None if it is not Python."""
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
