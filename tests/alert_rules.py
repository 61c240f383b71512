"""The alert rules that are shipped, and a copy in which time passes faster."""

import re
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parent.parent / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
PROMETHEUS = DEPLOY / "prometheus" / "prometheus.yml"
ALERTMANAGER = DEPLOY / "alertmanager" / "alertmanager.yml"

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
#: Every range must contain at least two scrapes; tests scrape once a second.
_SHORTEST_RANGE_MS = 4000


def alerts() -> list[dict[str, Any]]:
    """Return all alerts that the shipped rules define."""
    return [rule for rule in _rules() if "alert" in rule]


def recorded() -> set[str]:
    """Return the names of all series that the shipped rules record."""
    return {rule["record"] for rule in _rules() if "record" in rule}


@cache
def _rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def quickened(factor: float, into: Path, *, unchanged: Collection[str] = ()) -> Path:
    """Write a copy of the rules with every duration divided by `factor`, and return its path.

    In an expression, the durations are the ranges, the offsets, and the products with 60 or 3600.

    Args:
        factor: how many times as fast time passes.
        into: the directory of the copy.
        unchanged: groups in which it passes as it does.
    """
    rules = yaml.safe_load(RULES.read_text())
    for group in rules["groups"]:
        for rule in group["rules"] if group["name"] not in unchanged else ():
            rule["expr"] = re.sub(
                r"\b(\d+) \* (60|3600)\b", lambda m: f"{int(m[1]) * int(m[2]) / factor:g}", rule["expr"]
            )
            rule["expr"] = re.sub(
                r"(\[|offset )(\d+)([smhd])\b", lambda m: f"{m[1]}{_range_ms(m, factor)}ms", rule["expr"]
            )
            if "for" in rule:
                seconds = int(rule["for"][:-1]) * _UNITS[rule["for"][-1]]
                rule["for"] = f"{int(1000 * seconds / factor)}ms"
    path = into / "quickened.yml"
    path.write_text(yaml.safe_dump(rules))
    return path


def _range_ms(match: re.Match[str], factor: float) -> int:
    """Return a range divided by `factor`, but not less than the shortest one that works."""
    return max(int(1000 * int(match[2]) * _UNITS[match[3]] / factor), _SHORTEST_RANGE_MS)
