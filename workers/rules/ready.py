"""The built-in rules as values that need no check, for runs without a file of rules.

`builtin.json` is made of `builtin.yml` by `make generated`. Reading it takes a
millisecond; reading YAML and checking it against pydantic models takes 0.15 s.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from workers.rules.values import Rule, RuleSet, Scope, Selector

READY = Path(__file__).with_name("builtin.json")


def rules_of(path: str | Path | None) -> RuleSet:
    """Return the rules that are evaluated: the built-in ones, as changed by a file.

    Raises:
        UsageError: the file cannot be read, or something in it is wrong; the message names the line.
    """
    if path is None:
        return _built_in()
    from workers.rules.schema import load_rules  # deferred: pydantic and the models take 0.15 s

    return load_rules(path).enabled


@cache
def _built_in() -> RuleSet:
    content = msgspec.json.decode(READY.read_bytes())
    return RuleSet(tuple(_rule(**rule) for rule in content["rules"]), content["digest"])


def _rule(selector: dict[str, list[Any]], parameters: list[list[Any]], scope: str, **fields: Any) -> Rule:
    return Rule(
        selector=Selector(**{name: _frozen(value) for name, value in selector.items()}),
        parameters=tuple((name, _frozen(value)) for name, value in parameters),
        scope=Scope(scope),
        **fields,
    )


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
