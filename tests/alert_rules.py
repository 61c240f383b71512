"""The alert rules as they are shipped, and the same in a quicker time."""

import re
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parent.parent / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
PROMETHEUS = DEPLOY / "prometheus" / "prometheus.yml"
ALERTMANAGER = DEPLOY / "alertmanager" / "alertmanager.yml"

_UNITS = {"s": 1, "m": 60, "h": 3600}
#: Two scrapes, at one a second, must lie in every range.
_SHORTEST_RANGE_MS = 4000


def alerts() -> list[dict[str, Any]]:
    """Return all alerts."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def quickened(factor: float, into: Path) -> Path:
    """Write the rules into a file with every time in them divided by `factor`, and return the file.

    What is a time in an expression is a range, or a product with 60 or 3600: nothing else is.
    """
    rules = yaml.safe_load(RULES.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule["expr"] = re.sub(
                r"\b(\d+) \* (60|3600)\b", lambda m: f"{int(m[1]) * int(m[2]) / factor:g}", rule["expr"]
            )
            rule["expr"] = re.sub(r"\[(\d+)([smh])\]", lambda m: f"[{_range_ms(m, factor)}ms]", rule["expr"])
            if "for" in rule:
                seconds = int(rule["for"][:-1]) * _UNITS[rule["for"][-1]]
                rule["for"] = f"{int(1000 * seconds / factor)}ms"
    path = into / "quickened.yml"
    path.write_text(yaml.safe_dump(rules))
    return path


def _range_ms(match: re.Match[str], factor: float) -> int:
    return max(int(1000 * int(match[1]) * _UNITS[match[2]] / factor), _SHORTEST_RANGE_MS)
