"""Rules for lines of Python: options of TorchAir's `CompilerConfig`, and of TensorFlow's session."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ingest.dump_configs.checking.acl import TORCHAIR
from ingest.dump_configs.checking.fields import (
    ConfigKey,
    ConfigRule,
    Kind,
    check_fields,
    check_rules,
    refuse,
    warn,
)
from ingest.dump_configs.model import ConfigFinding

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
        if isinstance(node, ast.Assign):
            target, value = _assigned(node)
            if match := _TENSORFLOW_TARGET.fullmatch(target):
                of_tensorflow[match[1] or match[2]] = value
            elif match := _TORCHAIR_TARGET.fullmatch(target):
                of_torchair[match[1]] = value
        elif isinstance(node, ast.Call) and _CONSTRUCTOR.fullmatch(ast.unparse(node.func)):
            of_tensorflow |= _keywords(node)
    if of_torchair:
        return "torchair", of_torchair
    return ("tensorflow", of_tensorflow) if of_tensorflow else None


def _assigned(node: ast.Assign) -> tuple[str, Any]:
    """Return the attribute that a literal is assigned to, and the literal; "" and None for anything else."""
    if len(node.targets) != 1 or not isinstance(node.targets[0], ast.Attribute):
        return "", None
    value = _literal(node.value)
    return ("", None) if value is None else (ast.unparse(node.targets[0]), value)


def _keywords(node: ast.Call) -> dict[str, Any]:
    """Return the keyword arguments of a call that are literals."""
    literals = {keyword.arg: _literal(keyword.value) for keyword in node.keywords if keyword.arg}
    return {name: value for name, value in literals.items() if value is not None}


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
