"""Rewrites PromQL, so that each selector names one release of the chart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

#: What the chart replaces by the namespace and name of its release.
RELEASE = 'namespace="__NAMESPACE__",run="__RELEASE__"'
_TOKEN = re.compile(
    r"""
    (?P<text> "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*' | `[^`]*` | \#[^\n]* )
    | (?P<number> [0-9][0-9A-Za-z_.]* )
    | (?P<name> [A-Za-z_:][A-Za-z0-9_:]* )
    | (?P<space> \s+ )
    | (?P<sign> . )
    """,
    re.VERBOSE | re.DOTALL,
)
#: These are followed by label names in parentheses.
_WITH_LABELS = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
_WORDS = _WITH_LABELS | {"and", "or", "unless", "atan2", "bool", "offset", "start", "end", "inf", "nan"}
#: These may stand before `by`, without parentheses after them.
_AGGREGATIONS = frozenset({
    "avg", "bottomk", "count", "count_values", "group", "limit_ratio", "limitk", "max", "min", "quantile",
    "stddev", "stdvar", "sum", "topk",
})  # fmt: skip


def with_matchers(expression: str, matchers: str) -> str:
    """Return a PromQL expression with label matchers added to each of its selectors."""
    tokens = [(match.lastgroup or "", match[0]) for match in _TOKEN.finditer(expression)]
    return "".join(_written(tokens, matchers))


def of_one_release(rules: str) -> str:
    """Return a file of Prometheus rules in which each selector has the matchers of `RELEASE`. Comments go."""
    groups: Mapping[str, Any] = yaml.safe_load(rules)
    for group in groups["groups"]:
        for rule in group["rules"]:
            rule["expr"] = with_matchers(rule["expr"], RELEASE)
    head = "# Made by helm/generate.py from deploy/prometheus/rules.yml.\n"
    return head + yaml.dump(groups, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as such."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _written(tokens: list[tuple[str, str]], matchers: str) -> Iterator[str]:
    in_labels = in_selector = False
    for place, (kind, text) in enumerate(tokens):
        following = _next(tokens, place)
        yield text
        if in_labels:
            in_labels = text != ")"
        elif in_selector:
            in_selector = text != "}"
        elif text == "{":
            in_selector = True
            yield matchers if following == "}" else f"{matchers},"
        elif kind == "name" and text.lower() in _WITH_LABELS:
            in_labels = following == "("
        elif kind == "name" and _is_metric(text, following):
            yield f"{{{matchers}}}"


def _is_metric(name: str, following: str) -> bool:
    """Return whether a name is a selector without braces."""
    return name.lower() not in _WORDS | _AGGREGATIONS and following not in {"(", "{"}


def _next(tokens: list[tuple[str, str]], place: int) -> str:
    """Return the first character after a token that is not white space; "" at the end."""
    return next((text[0] for kind, text in tokens[place + 1 :] if kind != "space"), "")
