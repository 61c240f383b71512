"""Rules from YAML: the built-in ones, and a file that adds to them, changes them or switches them off."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import xxhash
from pydantic import ValidationError

from workers.errors import UsageError
from workers.host.yaml_file import YamlFile, parse, read_text
from workers.rules.names import matching
from workers.rules.schema import MODELS, RULE, BaseRule
from workers.rules.values import RuleSet, Scope

BUILTIN = Path(__file__).with_name("builtin.yml")
#: Raised when the same rules would find something else.
RULES_VERSION = 3
#: So that a wrong file name does not read a dump.
_MAX_NBYTES = 1024 * 1024
_MAX_RULES = 1000
_TOP = ("builtin", "rules")
_HINT = "`dump-ingest rules show` prints valid rules; docs/rules.md lists all kinds and fields."
_FILE_HINT = "Name a YAML file of rules, with --rules or the setting `rules`."


@dataclass(frozen=True, slots=True)
class LoadedRules:
    """Rules, and where each of them comes from."""

    rules: tuple[BaseRule, ...]
    """Includes those that are switched off."""
    origins: Mapping[str, str]
    """By name: `built-in`, or a file."""

    @property
    def enabled(self) -> RuleSet:
        """The rules that are evaluated."""
        return rule_set([rule for rule in self.rules if rule.enabled])


@dataclass(frozen=True, slots=True)
class _Entry:
    """One rule of a file."""

    file: YamlFile
    number: int
    fields: dict[str, Any]

    def at(self, field: str = "") -> str:
        """Return `path:line` of a field, or of the rule if it does not have the field."""
        return self.file.at("rules", self.number, field)


def load_rules(path: str | Path | None = None) -> LoadedRules:
    """Return the built-in rules, with the changes and additions of a file.

    Raises:
        UsageError: the file cannot be read, or something in it is wrong; the message names the line.
    """
    built_in = _built_in()
    if path is None:
        return built_in
    keep_built_in, entries = _entries(_parsed(Path(path)))
    rules = {rule.name: rule for rule in built_in.rules} if keep_built_in else {}
    origins = dict.fromkeys(rules, "built-in")
    seen: dict[str, str] = {}
    for entry in entries:
        name = str(entry.fields.get("name"))
        if name in seen:
            raise _wrong(entry.at("name"), f"rule {name} is there already, at {seen[name]}")
        rule = _rule(entry, rules.get(name))
        seen[name] = entry.at("name")
        rules[rule.name] = rule
        origins[rule.name] = str(path)
    return LoadedRules(tuple(rules.values()), origins)


def rules_like(patterns: Iterable[str], names: Sequence[str]) -> set[str]:
    """Return the names of rules that names and globs choose.

    Raises:
        UsageError: a pattern chooses none of them; the hint lists names that are near.
    """
    return {names[place] for pattern in patterns for place in matching(pattern, names, "rule")}


def rule_set(rules: Iterable[BaseRule]) -> RuleSet:
    """Return rules as the value that is evaluated."""
    compiled = tuple(rule.compiled() for rule in sorted(rules, key=lambda rule: rule.name))
    definitions = [[rule.name, {**rule.to_dict(), "description": ""}] for rule in compiled]
    text = json.dumps([RULES_VERSION, *definitions], sort_keys=True)
    return RuleSet(compiled, xxhash.xxh3_64_hexdigest(text.encode()))


@cache
def _built_in() -> LoadedRules:
    _, entries = _entries(parse(BUILTIN.read_text("utf-8"), "built-in"))
    rules = tuple(_rule(entry) for entry in entries)
    return LoadedRules(rules, dict.fromkeys((rule.name for rule in rules), "built-in"))


def _parsed(path: Path) -> YamlFile:
    try:
        text = read_text(path, max_nbytes=_MAX_NBYTES, hint=_FILE_HINT)
    except UsageError as exc:
        raise UsageError(f"rules: {exc.message}", hint=exc.hint) from exc
    return parse(text, str(path), hint=_HINT)


def _entries(file: YamlFile) -> tuple[bool, list[_Entry]]:
    """Return whether the built-in rules apply as well, and the rules of a file.

    Raises:
        UsageError: the file does not have this form.
    """
    top = {} if file.value is None else _mapping(file.value, "a file of rules", file.at())
    for name in top:
        if name not in _TOP:
            raise _wrong(
                file.at(name), f"{name} is not known here{_near(name, _TOP)}", _allowed("The top", _TOP)
            )
    keep_built_in = top.get("builtin", True)
    if not isinstance(keep_built_in, bool):
        raise _wrong(file.at("builtin"), f"builtin must be true or false, got {keep_built_in!r}")
    rules = top.get("rules")
    if rules is None:
        return keep_built_in, []
    if not isinstance(rules, list):
        raise _wrong(file.at("rules"), "rules must be a list: each rule begins with `- name: ...`")
    if len(rules) > _MAX_RULES:
        raise _wrong(file.at("rules"), f"more than {_MAX_RULES} rules")
    return keep_built_in, [
        _Entry(file, number, _mapping(rule, "a rule", file.at("rules", number)))
        for number, rule in enumerate(rules)
    ]


def _mapping(value: Any, what: str, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(where, f"{what} must be `name: value` lines")
    return {str(name): entry for name, entry in value.items()}


def _rule(entry: _Entry, base: BaseRule | None = None) -> BaseRule:
    """Return a rule. Missing fields are taken from the built-in rule with the same name, if there is one."""
    fields = entry.fields
    if base is not None:
        if fields.get("kind", base.kind) != base.kind:
            raise _wrong(
                entry.at("kind"),
                f"rule {base.name} is built in, and its kind is {base.kind}",
                "Give yours another name, and switch this one off with `enabled: false`.",
            )
        fields = {**base.model_dump(), **fields}
    kind = fields.get("kind")
    if kind is None:
        name = f" {fields['name']}" if "name" in fields else ""
        raise _wrong(entry.at(), f"rule{name} has no kind", _allowed("kind", MODELS))
    if not isinstance(kind, str) or kind not in MODELS:
        message = f"{kind!r} is not a kind of rule{_near(kind, MODELS)}"
        raise _wrong(entry.at("kind"), message, _allowed("kind", MODELS))
    try:
        return RULE.validate_python(fields)
    except ValidationError as exc:
        raise _explained(exc, kind, entry) from exc


def _explained(error: ValidationError, kind: str, entry: _Entry) -> UsageError:
    """Return the first thing that is wrong with a rule, and what is allowed in its place."""
    first = error.errors(include_url=False)[0]
    # The place begins with the kind, by which the model was chosen.
    name = str(first["loc"][1]) if len(first["loc"]) > 1 else ""
    fields = MODELS[kind].model_fields
    if first["type"] == "extra_forbidden":
        hint = f"Fields of {kind}: {', '.join(fields)}."
        if name == "dtype" and MODELS[kind].scope is not Scope.STEP:
            hint = (
                f"dtype chooses among the tensors of one step; {kind} looks at {MODELS[kind].scope}. {hint}"
            )
        message = f"{name} is not a field of a rule of kind {kind}{_near(name, fields)}"
        return _wrong(entry.at(name), message, hint)
    if first["type"] == "missing":
        return _wrong(entry.at(), f"the rule has no {name}", _meaning(kind, name))
    message = first["msg"].removeprefix("Value error, ")
    got = "" if first["type"] == "value_error" else f", got {first['input']!r}"
    message = f"{name + ': ' if name else ''}{message[:1].lower()}{message[1:]}{got}"
    return _wrong(entry.at(name), message[:500], _meaning(kind, name))


def _meaning(kind: str, name: str) -> str:
    field = MODELS[kind].model_fields.get(name)
    return f"{name}: {field.description}" if field is not None and field.description else _HINT


def _near(wanted: object, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(wanted), list(names), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _allowed(what: str, names: Iterable[str]) -> str:
    return f"{what} is one of {', '.join(names)}."


def _wrong(where: str, message: str, hint: str = _HINT) -> UsageError:
    return UsageError(f"{where}: {message}", hint=hint)
