"""What a configuration asks for, as values that all dump systems share.

Also the keys that a section may have, with their values, and what the content of a configuration asks for:
there, what cannot be read is left at its default, and what is wrong is the business of `check`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from functools import cached_property
from typing import Any, Generic, TypeVar

from ingest.layouts.mindspore import parse_iterations

#: What file names have instead of these characters.
_REPLACED = re.compile(r"[/\\. ]")


class Io(StrEnum):
    """Which tensors of an operator are dumped."""

    BOTH = "inputs and outputs"
    INPUTS = "inputs"
    OUTPUTS = "outputs"

    def includes(self, io: str) -> bool:
        """Return whether a tensor is dumped, given its `io`."""
        if self is Io.BOTH:
            return True
        return io.startswith("input" if self is Io.INPUTS else "output")


class Match(StrEnum):
    """How an entry of a list of operators is compared with the name of an operator."""

    NAME = "name"
    """With the full name, as files and the framework spell it."""
    TYPE = "type"
    """The type in the name contains it, in lower or upper case."""
    REGEX = "regex"
    """It is a regular expression for the full name."""
    PART = "part"


@dataclass(frozen=True)
class OperatorPattern:
    """One entry of a list of operators."""

    text: str
    match: Match
    expression: str = ""

    def matches(self, op_type: str, op_name: str) -> bool:
        """Return whether it chooses an operator, given its type and its name in the store."""
        if self.match is Match.NAME:
            return self._flat in (flatten(op_name), flatten(f"{op_type}.{op_name}"))
        if self.match is Match.TYPE:
            return self.text.lower() in op_type.lower()
        if self.match is Match.PART:
            return self.text in op_name
        return self._regex is not None and self._regex.fullmatch(op_name) is not None

    @cached_property
    def _flat(self) -> str:
        return flatten(self.text)

    @cached_property
    def _regex(self) -> re.Pattern[str] | None:
        """The expression for names in which `_` stands for `/`; None if Python does not understand it."""
        try:
            return re.compile(self.expression.replace("/", "[/_]"))
        except re.error:
            return None


@dataclass(frozen=True, slots=True)
class AskedDump:
    """What a configuration asks for."""

    steps: frozenset[int] | None = None
    """None: all, or not known."""
    operators: tuple[OperatorPattern, ...] | None = None
    devices: frozenset[int] | None = None
    """Ranks or device ids; None: all."""
    io: Io = Io.BOTH
    tensors: bool = True
    statistics: bool = False
    categories: tuple[str, ...] = ()
    """The statistics, as the configuration names them; empty for the default."""
    sample: int = 0
    """How many elements of each tensor are dumped at its beginning and its end; 0: all."""
    directory: str = ""
    only: str = ""
    """What else limits it, in words, such as `operators that overflow`."""

    @property
    def saved(self) -> str:
        """What is saved of each tensor, in words."""
        kinds = [*(["elements"] * self.tensors), *(["statistics"] * self.statistics)]
        return " and ".join(kinds) or "nothing"


class Severity(StrEnum):
    """What a finding in a configuration means for the job."""

    REFUSED = "refused"
    """The job ends with an error, or dumps nothing."""
    WARNING = "warning"
    """Something is ignored, or is not what it seems."""


@dataclass(frozen=True, slots=True)
class ConfigFinding:
    """Something wrong in a configuration."""

    severity: Severity
    key: str
    message: str
    source: str
    """The URL of the document or source file that says so."""

    def __str__(self) -> str:
        return f"{self.key}: {self.message}"


@dataclass(frozen=True, slots=True)
class RequestedOperator:
    """An operator that the next dump is to hold."""

    net: str
    graph: str
    op_type: str
    op_name: str
    """As the store has it."""
    full_name: str = ""
    """As the framework spells it; "" if that is not known."""


@dataclass(frozen=True, slots=True)
class DumpRequest:
    """What the next dump is to hold."""

    operators: tuple[RequestedOperator, ...]
    """The most important one first."""
    steps: tuple[int, ...]
    ranks: tuple[int, ...]
    job_ranks: tuple[int, ...]
    directory: str
    version: str = ""
    """The version of the dump system; "" if that is not known."""
    device: str = ""
    """`CPU`, `GPU` or `Ascend`; "" if that is not known."""
    former: Mapping[str, Any] = field(default_factory=dict)
    """The configuration of the dump in the store; empty if it is not there."""
    level: str = ""
    """For msProbe: the level of the dump in the store."""


@dataclass(frozen=True, slots=True)
class WrittenConfig:
    """The configuration of the next dump."""

    system: str
    file_name: str
    text: str
    use: str
    """How the job is given it, in one sentence."""
    ranks: tuple[int, ...]
    """The ranks that will dump: more than was asked for if the system cannot choose."""
    steps: tuple[int, ...]
    notes: tuple[str, ...] = ()


def version_numbers(text: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version; empty if there are none.

    >>> version_numbers("2.7.0rc1")
    (2, 7, 0)
    """
    numbers = re.match(r"\d{1,9}(?:\.\d{1,9})*", text)
    return tuple(map(int, numbers[0].split("."))) if numbers else ()


def flatten(name: str) -> str:
    """Return a name as file names have it.

    >>> flatten("Default/net/Log-op0")
    'Default_net_Log-op0'
    """
    return _REPLACED.sub("_", name)


_View = TypeVar("_View")


class Kind(Enum):
    """What a value is."""

    COUNT = "a whole number from 0"
    TEXT = "a text"
    SWITCH = "true or false"
    TEXTS = "a list of texts"
    LIST = "a list"
    SECTION = "an object"

    def fits(self, value: Any) -> bool:
        """Return whether a value of JSON is of this kind."""
        if self is Kind.COUNT:
            return isinstance(value, int) and not isinstance(value, bool) and value >= 0
        if self is Kind.TEXTS:
            return isinstance(value, list) and all(isinstance(item, str) for item in value)
        types = {Kind.TEXT: str, Kind.SWITCH: bool, Kind.LIST: list, Kind.SECTION: dict}
        return isinstance(value, types[self])


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key of a section."""

    name: str
    kind: Kind
    values: Collection[Any] = ()
    """What the value, or each item of a list, may be; empty for anything of its kind."""
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class ConfigRule(Generic[_View]):
    """Something that must not be in a configuration."""

    severity: Severity
    key: str
    message: str
    """What is wrong; `{}` stands for what `broken` returns."""
    source: str
    broken: Callable[[_View], object]
    """Returns a true value if the rule is broken: True, or a text for the message."""


def refuse(key: str, message: str, source: str, broken: Callable[[_View], object]) -> ConfigRule[_View]:
    """Return a rule whose breach ends the job, or makes it dump nothing."""
    return ConfigRule(Severity.REFUSED, key, message, source, broken)


def warn(key: str, message: str, source: str, broken: Callable[[_View], object]) -> ConfigRule[_View]:
    """Return a rule whose breach means that something is ignored or has another effect than it seems."""
    return ConfigRule(Severity.WARNING, key, message, source, broken)


def check_rules(view: _View, rules: Sequence[ConfigRule[_View]]) -> Iterator[ConfigFinding]:
    """Yield the rules that a configuration breaks, in their order."""
    for rule in rules:
        broken = rule.broken(view)
        if broken:
            yield ConfigFinding(rule.severity, rule.key, rule.message.format(broken), rule.source)


def with_rules(
    findings: Iterable[ConfigFinding], view: _View, rules: Sequence[ConfigRule[_View]]
) -> Iterator[ConfigFinding]:
    """Yield mistakes in keys and values; if no key or value is refused, also the rules that are broken.

    Args:
        findings: those of `check_fields`.
        view: what the rules look at. They rely on values of the right kinds.
        rules: the rules.
    """
    is_usable = True
    for finding in findings:
        is_usable &= finding.severity is not Severity.REFUSED
        yield finding
    if is_usable:
        yield from check_rules(view, rules)


def check_fields(
    section: Mapping[str, Any], fields: Sequence[ConfigKey], source: str, *, prefix: str = ""
) -> Iterator[ConfigFinding]:
    """Yield keys that are missing or not known, and values that are not what they must be."""
    known = {wanted.name: wanted for wanted in fields}
    for wanted in fields:
        key = f"{prefix}{wanted.name}"
        if wanted.name not in section:
            if wanted.is_required:
                yield ConfigFinding(Severity.REFUSED, key, "is missing", source)
        elif (problem := _problem(section[wanted.name], wanted)) is not None:
            yield ConfigFinding(Severity.REFUSED, key, problem, source)
    for name in section:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            meant = f"; is {near[0]} meant?" if near else ""
            yield ConfigFinding(
                Severity.WARNING, f"{prefix}{name}", f"is not a key, and ignored{meant}", source
            )


def _problem(value: Any, field: ConfigKey) -> str | None:
    if not field.kind.fits(value):
        return f"must be {field.kind.value}, not {value!r:.60}"
    if not field.values:
        return None
    items = value if isinstance(value, list) else [value]
    wrong = [item for item in items if item not in field.values]
    if not wrong:
        return None
    allowed = ", ".join(str(item) for item in field.values)
    return f"{wrong[0]!r:.60} is not one of {allowed}"


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
