"""From the content of a configuration to what it asks for. What cannot be read is left at its default.

What is wrong in a configuration is the business of `ingest.dump_configs.checking`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ingest.dump_configs.model import AskedDump, Io, Match, OperatorPattern
from ingest.layouts.mindspore import parse_iterations

_REGEX = re.compile(r"name-regex\((?P<expression>.*)\)", re.DOTALL)
_OVERFLOW, _EXCEPTION = "operators that overflow", "inputs of an operator that fails"
_SCENE = "the scene "
#: `AskedDump.only` of the mode in which outputs are dumped again after other operators have run.
WATCHER = f"{_SCENE}watcher"
_IO = {1: Io.INPUTS, 2: Io.OUTPUTS, "input": Io.INPUTS, "output": Io.OUTPUTS}
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")
_MAX_RANGE = 1_000_000


def read_mindspore(content: Mapping[str, Any]) -> AskedDump:
    """Read which tensors a `data_dump.json` asks for."""
    common = section(content, "common_dump_settings")
    e2e = section(content, "e2e_dump_settings")
    saved = common.get("saved_data", "tensor")
    mode = common.get("op_debug_mode", 0)
    only = "operators marked by set_dump" if common.get("dump_mode") == 2 else ""
    if mode != 0:
        only = _EXCEPTION if mode == 4 else _OVERFLOW
    sample = e2e.get("sample_num", 100) if e2e.get("sample_mode") == 1 else 0
    return AskedDump(
        steps=parse_iterations(str(common.get("iteration", "all"))),
        operators=_kernels(common) if common.get("dump_mode") == 1 and mode == 0 else None,
        devices=_whole_numbers(common.get("support_device")),
        io=_io(common.get("input_output")),
        tensors=saved in ("tensor", "full"),
        statistics=saved in ("statistic", "full"),
        categories=tuple(map(str, _list(common.get("statistic_category")))),
        sample=sample if isinstance(sample, int) else 0,
        directory=str(common.get("path", "")),
        only=only,
    )


def _kernels(common: Mapping[str, Any]) -> tuple[OperatorPattern, ...] | None:
    """Return the entries of `kernels`, as MindSpore tells them apart; None for an empty list: that is all."""
    patterns = []
    for entry in _list(common.get("kernels")):
        text = str(entry).replace('"', "").replace(" ", "")
        if regex := _REGEX.fullmatch(text):
            patterns.append(OperatorPattern(text, Match.REGEX, regex["expression"]))
        elif text:
            is_type = "/" not in text and "-op" not in text
            patterns.append(OperatorPattern(text, Match.TYPE if is_type else Match.NAME))
    return tuple(patterns) or None


def read_msprobe(content: Mapping[str, Any]) -> AskedDump:
    """Read which tensors a `config.json` of msProbe asks for."""
    task = content.get("task") or "statistics"
    settings = section(content, str(task))
    names = [name for name in _list(settings.get("list")) if isinstance(name, str)]
    modes = settings.get("data_mode") or ["all"]
    io = _io(modes[0]) if isinstance(modes, list) and len(modes) == 1 else Io.BOTH
    scope = _list(settings.get("scope"))
    return AskedDump(
        steps=_ranges(content.get("step")),
        operators=tuple(OperatorPattern(name, Match.PART) for name in names) or None,
        devices=_ranges(content.get("rank")),
        io=io,
        tensors=task == "tensor",
        statistics=task in ("tensor", "statistics"),
        directory=str(content.get("dump_path", "")),
        only=f"from {scope[0]} to {scope[-1]}" if len(scope) == 2 else "",
    )


def read_acl(content: Mapping[str, Any]) -> AskedDump:
    """Read which tensors an ACL configuration asks for."""
    dump = section(content, "dump")
    scene = str(dump.get("dump_scene", ""))
    overflow = _OVERFLOW if dump.get("dump_debug") == "on" else ""
    return AskedDump(
        steps=parse_iterations(str(dump.get("dump_step") or "all")),
        operators=_layers(dump, is_watcher=scene == "watcher"),
        io=_io(dump.get("dump_mode", "output")),
        tensors=dump.get("dump_data", "tensor") != "stats",
        statistics=dump.get("dump_data") == "stats",
        categories=tuple(map(str, _list(dump.get("dump_stats")))),
        directory=str(dump.get("dump_path", "")),
        only=overflow or (f"{_SCENE}{scene}" if scene else ""),
    )


def _layers(dump: Mapping[str, Any], *, is_watcher: bool) -> tuple[OperatorPattern, ...] | None:
    """Return the operators in the models of `dump_list`; None for all, as where a model names none."""
    models = [model for model in _list(dump.get("dump_list")) if isinstance(model, dict)]
    watched = _names(models, "watcher_nodes")
    names = watched if is_watcher else _names(models, "layer")
    is_whole_model = any(not model.get("layer") for model in models)
    if not names or (is_whole_model and not watched):
        return None
    return tuple(OperatorPattern(name, Match.NAME) for name in names)


def _names(models: Iterable[Mapping[str, Any]], entry: str) -> list[str]:
    return [str(name) for model in models for name in _list(model.get(entry))]


def read_options(options: Mapping[str, Any], *, usual_mode: str) -> AskedDump:
    """Read what the options of TorchAir or TensorFlow ask for; `usual_mode` is the mode if none is set."""
    layers = str(options.get("dump_layer", "")).split()
    return AskedDump(
        steps=parse_iterations(str(options.get("dump_step") or "all")),
        operators=tuple(OperatorPattern(layer, Match.NAME) for layer in layers) or None,
        io=_io(options.get("dump_mode", usual_mode)),
        tensors=options.get("dump_data", "tensor") != "stats",
        statistics=options.get("dump_data") == "stats",
        directory=str(options.get("dump_path", "")),
    )


def section(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section of a configuration; empty if it is missing or not an object."""
    value = content.get(name)
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _io(value: Any) -> Io:
    return _IO.get(value, Io.BOTH) if isinstance(value, int | str) else Io.BOTH


def _whole_numbers(value: Any) -> frozenset[int] | None:
    numbers = [item for item in _list(value) if isinstance(item, int)]
    return frozenset(numbers) if isinstance(value, list) else None


def _ranges(value: Any) -> frozenset[int] | None:
    """Return the numbers in msProbe's lists, such as `[1, "4-6"]`; None for an empty list, which is all."""
    numbers: set[int] = set()
    for item in _list(value):
        if isinstance(item, int):
            numbers.add(item)
        elif isinstance(item, str) and (match := _RANGE.fullmatch(item)):
            first, last = int(match[1]), int(match[2] or match[1])
            numbers.update(range(first, min(last, first + _MAX_RANGE) + 1))
    return frozenset(numbers) or None
