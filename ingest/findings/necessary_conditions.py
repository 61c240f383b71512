"""What a tensor must fulfil so that a rule about one step can fire, as a condition.

The consolidated view then tells in which steps a rule may fire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from workers.rules.values import Rule

#: By statistic of a rule and whether it must be above a threshold: what follows for stored statistics.
_BOUNDS: dict[tuple[str, bool], str] = {
    **{(name, True): f"{name} > {{0!r}}" for name in ("max", "min", "mean", "l2_norm")},
    **{(name, False): f"{name} < {{0!r}}" for name in ("max", "min", "mean", "l2_norm")},
    ("abs_max", True): "abs(min) > {0!r} or abs(max) > {0!r}",
    ("abs_max", False): "abs(min) < {0!r} and abs(max) < {0!r}",
    ("spread", True): "max - min > {0!r}",
    ("spread", False): "max - min < {0!r}",
}


def necessary_condition(rule: Rule) -> str:
    """Return a condition that each tensor fulfils on which a rule fires; "" if there is none."""
    of_kind = _OF_KINDS.get(rule.kind)
    parts = [f"({part})" for part in ("" if of_kind is None else of_kind(rule), rule.where) if part]
    return " and ".join(parts)


def _not_finite(rule: Rule) -> str:
    return _any_of(f"{what}_count > 0" for what in rule["of"]) if rule["count_gt"] >= 0 else ""


def _thresholds(rule: Rule) -> str:
    """Return the condition for bounds of statistics: `max_gt` is about `max`, and fires above."""
    alternatives = []
    for name, threshold in rule.parameters:
        statistic, _, ending = name.rpartition("_")
        if not isinstance(threshold, float) or ending not in ("gt", "lt", "ge", "le"):
            continue
        # `min_ge` and `max_le` say what is in order.
        bound = _BOUNDS.get((statistic, ending in ("gt", "le")))
        if bound is None:
            return ""
        alternatives.append(bound.format(threshold))
    return _any_of(alternatives)


def _zeros(rule: Rule) -> str:
    return f"zero_count / count >= {rule['share_ge']!r} and count >= {rule['elements_ge']!r}"


def _cast(rule: Rule) -> str:
    if rule["scaling"] != "none":
        return ""
    thresholds = {what: rule[f"{what}_gt"] for what in ("overflow", "underflow")}
    return _any_of(f"{what}_{rule['format']} > {gt!r}" for what, gt in thresholds.items() if gt is not None)


def _percentile(rule: Rule) -> str:
    percent = f"{rule['percent']:g}"
    if float(percent) != rule["percent"]:
        return ""  # a condition cannot name it
    column = f"{'abs_' if rule['magnitude'] else ''}p{percent}"
    thresholds = {">": rule["gt"], "<": rule["lt"]}
    return _any_of(f"{column} {sign} {value!r}" for sign, value in thresholds.items() if value is not None)


def _any_of(alternatives: Iterable[str]) -> str:
    return " or ".join(f"({alternative})" for alternative in alternatives)


_OF_KINDS: dict[str, Callable[[Rule], str]] = {
    "not_finite": _not_finite,
    "too_large": _thresholds,
    "too_small": _thresholds,
    "range": _thresholds,
    "zeros": _zeros,
    "cast": _cast,
    "percentile": _percentile,
}
