"""The keys that a section of a configuration may have, and what their values may be."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from ingest.dump_configs.model import ConfigFinding, Severity

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
    """The URL that says so."""
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
    known = {field.name: field for field in fields}
    for field in fields:
        key = f"{prefix}{field.name}"
        if field.name not in section:
            if field.is_required:
                yield ConfigFinding(Severity.REFUSED, key, "is missing", source)
        elif (problem := _problem(section[field.name], field)) is not None:
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
