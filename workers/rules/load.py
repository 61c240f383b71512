"""Rules from YAML: the built-in ones, and a file that adds to them, changes them or switches them off."""

from __future__ import annotations

import difflib
import fnmatch
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import xxhash
import yaml
from pydantic import ValidationError

from workers.errors import UsageError
from workers.rules.schema import MODELS, RULE, BaseRule
from workers.rules.suggest import near
from workers.rules.values import SERIES_KINDS, RuleSet

BUILTIN = Path(__file__).with_name("builtin.yml")
#: Raised when the same rules would find something else.
RULES_VERSION = 1
#: So that a wrong file name does not read a dump.
_MAX_NBYTES = 1024 * 1024
_MAX_RULES = 1000
_TOP = ("builtin", "rules")
_HINT = "`dump-ingest rules show` prints rules that are right; docs/rules.md has all kinds and fields."

_Raw: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LoadedRules:
    """Rules, and where each of them comes from."""

    rules: tuple[BaseRule, ...]
    """Those that are switched off, too."""
    origins: Mapping[str, str]
    """By name: `built-in`, or a file."""

    @property
    def enabled(self) -> RuleSet:
        """What is to be evaluated."""
        return rule_set([rule for rule in self.rules if rule.enabled])


@dataclass(slots=True)
class _Lines:
    """Which line of a file a field stands in."""

    path: str
    line: int = 1
    fields: dict[str, int] = field(default_factory=dict)

    def at(self, name: str = "") -> str:
        return f"{self.path}:{self.fields.get(name, self.line)}"


def load_rules(path: str | Path | None = None) -> LoadedRules:
    """Return the built-in rules, changed and added to by a file.

    Raises:
        UsageError: the file cannot be read, or something in it is wrong; the message names the line.
    """
    built_in = _built_in()
    if path is None:
        return built_in
    text = _read(Path(path))
    keep, entries = _entries(text, str(path))
    rules = {rule.name: rule for rule in built_in.rules} if keep else {}
    origins = dict.fromkeys(rules, "built-in")
    seen: dict[str, int] = {}
    for raw, lines in entries:
        name = raw.get("name")
        if isinstance(name, str) and name in seen:
            raise _wrong(lines.at("name"), f"rule {name} is there already, in line {seen[name]}")
        base = rules.get(name) if isinstance(name, str) else None
        rule = _rule(_joined(base, raw, lines), lines)
        seen[rule.name] = lines.fields.get("name", lines.line)
        rules[rule.name] = rule
        origins[rule.name] = str(path)
    return LoadedRules(tuple(rules.values()), origins)


def rules_like(patterns: Iterable[str], names: Sequence[str]) -> set[str]:
    """Return the names of rules that are meant by names and globs.

    Raises:
        UsageError: one of them means none; it names those that are near.
    """
    found: set[str] = set()
    for pattern in patterns:
        like = fnmatch.filter(names, pattern)
        if not like:
            raise UsageError(
                f"no rule is named like {pattern!r}", hint=f"Near: {', '.join(near(pattern, names))}"
            )
        found |= {*like}
    return found


def rule_set(rules: list[BaseRule]) -> RuleSet:
    """Return rules as the value that is evaluated."""
    compiled = tuple(rule.compiled() for rule in sorted(rules, key=lambda rule: rule.name))
    said = [[rule.name, {**rule.to_dict(), "description": ""}] for rule in compiled]
    text = json.dumps([RULES_VERSION, *said], sort_keys=True)
    return RuleSet(compiled, xxhash.xxh3_64_hexdigest(text.encode()))


@cache
def _built_in() -> LoadedRules:
    _, entries = _entries(BUILTIN.read_text("utf-8"), "built-in")
    rules = tuple(_rule(raw, lines) for raw, lines in entries)
    return LoadedRules(rules, dict.fromkeys((rule.name for rule in rules), "built-in"))


def _joined(base: BaseRule | None, raw: _Raw, lines: _Lines) -> _Raw:
    """Return a rule of the file with what it leaves to the built-in one of the same name."""
    if base is None or raw.get("kind", base.kind) != base.kind:
        if base is not None:
            raise _wrong(
                lines.at("kind"),
                f"rule {base.name} is built in and of kind {base.kind}",
                "Give yours another name, and switch this one off with `enabled: false`.",
            )
        return raw
    return {**base.model_dump(), **raw}


def _rule(raw: _Raw, lines: _Lines) -> BaseRule:
    kind = raw.get("kind")
    if kind is None:
        raise _wrong(
            lines.at(), f"rule {raw.get('name', '')} has no kind".replace("  ", " "), _allowed("kind", MODELS)
        )
    if kind not in MODELS:
        raise _wrong(
            lines.at("kind"), f"{kind!r} is no kind of rule{_near(kind, MODELS)}", _allowed("kind", MODELS)
        )
    try:
        return RULE.validate_python(raw)
    except ValidationError as exc:
        raise _explained(exc, kind, lines) from exc


def _explained(error: ValidationError, kind: str, lines: _Lines) -> UsageError:
    """Return the first thing that is wrong with a rule, and what is allowed in its place."""
    one = error.errors(include_url=False)[0]
    # The first place is the kind, by which the model was chosen.
    name = str(one["loc"][1]) if len(one["loc"]) > 1 else ""
    fields = MODELS[kind].model_fields
    if one["type"] == "extra_forbidden":
        hint = f"Fields of {kind}: {', '.join(fields)}."
        if name in ("dtype", "where") and kind in SERIES_KINDS:
            hint = f"{name} chooses among the tensors of one step; {kind} looks at several. {hint}"
        return _wrong(
            lines.at(name), f"{name} is no field of a rule of kind {kind}{_near(name, fields)}", hint
        )
    message = one["msg"].removeprefix("Value error, ")
    if one["type"] == "missing":
        return _wrong(lines.at(), f"the rule has no {name}", _meaning(kind, name))
    got = "" if one["type"] == "value_error" else f", got {one['input']!r}"
    what = f"{name}: " if name else ""
    return _wrong(
        lines.at(name), f"{what}{message[:1].lower()}{message[1:]}{got}"[:500], _meaning(kind, name)
    )


def _meaning(kind: str, name: str) -> str:
    found = MODELS[kind].model_fields.get(name)
    return f"{name}: {found.description}" if found is not None and found.description else _HINT


def _near(wanted: object, names: Any) -> str:
    found = difflib.get_close_matches(str(wanted), list(names), n=1)
    return f"; did you mean {found[0]}?" if found else ""


def _allowed(what: str, names: Any) -> str:
    return f"{what} is one of {', '.join(names)}."


def _wrong(where: str, message: str, hint: str = _HINT) -> UsageError:
    return UsageError(f"{where}: {message}", hint=hint)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_NBYTES + 1)
    except OSError as exc:
        raise UsageError(
            f"rules: {path}: {exc.strerror}", hint="Name a YAML file of rules with the setting `rules`."
        ) from exc
    if len(data) > _MAX_NBYTES:
        raise UsageError(f"rules: {path} has more than {_MAX_NBYTES} bytes", hint="Is it the right file?")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise UsageError(f"rules: {path} is no UTF-8 text", hint="Is it the right file?") from exc


def _entries(text: str, path: str) -> tuple[bool, list[tuple[_Raw, _Lines]]]:
    """Return whether the built-in rules stay, and each rule of a file with its lines.

    Raises:
        UsageError: it is no YAML, or not of this form.
    """
    root = _composed(text, path)
    if root is None:
        return True, []
    top = dict(_pairs(root, path, "a file of rules"))
    for name, (line, _) in top.items():
        if name not in _TOP:
            raise _wrong(
                f"{path}:{line}", f"{name} is not known here{_near(name, _TOP)}", _allowed("The top", _TOP)
            )
    keep = True
    if "builtin" in top:
        line, node = top["builtin"]
        keep = _plain(node, path)
        if not isinstance(keep, bool):
            raise _wrong(f"{path}:{line}", f"builtin must be true or false, got {keep!r}")
    line, rules = top.get("rules", (1, None))
    if rules is None or (isinstance(rules, yaml.ScalarNode) and _plain(rules, path) is None):
        return keep, []
    if not isinstance(rules, yaml.SequenceNode):
        raise _wrong(f"{path}:{line}", "rules must be a list: each rule begins with `- name: ...`")
    if len(rules.value) > _MAX_RULES:
        raise _wrong(f"{path}:{line}", f"more than {_MAX_RULES} rules")
    return keep, [_entry(node, path) for node in rules.value]


def _entry(node: yaml.Node, path: str) -> tuple[_Raw, _Lines]:
    lines = _Lines(path, node.start_mark.line + 1)
    raw: _Raw = {}
    for name, (at, value) in _pairs(node, path, "a rule"):
        lines.fields[name] = at
        raw[name] = _plain(value, path)
    return raw, lines


def _composed(text: str, path: str) -> yaml.Node | None:
    """Return the nodes of a file, which know their lines.

    Raises:
        UsageError: it is no YAML, or has aliases, by which a small file may stand for a huge one.
    """
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                line = event.start_mark.line + 1 if event.start_mark else 1
                raise _wrong(f"{path}:{line}", "an alias is not taken", "Write it out.")
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else path
        problem = getattr(exc, "problem", None) or " ".join(str(exc).split())
        raise _wrong(where, f"no YAML: {problem}", "Mind the indentation.") from exc
    except RecursionError as exc:
        raise _wrong(path, "nested too deeply") from exc


def _pairs(node: yaml.Node, path: str, what: str) -> Iterator[tuple[str, tuple[int, yaml.Node]]]:
    """Yield name, line and value of a mapping.

    Raises:
        UsageError: it is none, or a name is there twice: YAML would silently take the last.
    """
    if not isinstance(node, yaml.MappingNode):
        raise _wrong(f"{path}:{node.start_mark.line + 1}", f"{what} must be `name: value` lines")
    seen = set()
    for key, value in node.value:
        line = key.start_mark.line + 1
        name = str(key.value)
        if name in seen:
            raise _wrong(f"{path}:{line}", f"{name} is there twice")
        seen.add(name)
        yield name, (line, value)


def _plain(node: yaml.Node, path: str) -> Any:
    """Return what a node says, as safe YAML does it."""
    try:
        return yaml.constructor.SafeConstructor().construct_document(node)
    except (yaml.YAMLError, ValueError) as exc:
        raise _wrong(f"{path}:{node.start_mark.line + 1}", " ".join(str(exc).split())) from exc
