"""The tables of docs/rules.md, made of the rules and their schema.

python -m workers.rules.table
"""

from __future__ import annotations

from workers.rules.load import load_rules
from workers.rules.schema import COMMON_FIELDS, MODELS, BaseRule
from workers.rules.values import SERIES_KINDS


def tables() -> list[str]:
    """Return the built-in rules, the kinds of rules, and the fields that all rules have, as Markdown."""
    return [_built_in(), _kinds(), _fields()]


def _built_in() -> str:
    rows = ["| Rule | Severity | What it asks | Meaning | Source |", "|---|---|---|---|---|"]
    rows += [
        f"| `{rule.name}` | {rule.severity} | {_asks(rule)} "
        f"| {_cell(rule.description)} | {_cell(rule.source)} |"
        for rule in load_rules().rules
    ]
    return "\n".join(rows) + "\n"


def _asks(rule: BaseRule) -> str:
    """Return the kind of a rule with what it has of its own."""
    values = rule.model_dump(mode="json")
    own = [name for name in MODELS[rule.kind].model_fields if name not in COMMON_FIELDS]
    given = [f"{name} {_value(values[name])}" for name in own if values[name] is not None]
    return f"`{rule.kind}`" + (f": {', '.join(given)}" if given else "")


def _kinds() -> str:
    rows = ["| Kind | Looks at | Fires for | Fields of its own, with defaults |", "|---|---|---|---|"]
    for kind, model in MODELS.items():
        looks_at = "steps or ranks" if kind in SERIES_KINDS else "one step"
        first = (model.__doc__ or "").strip().partition("\n")[0]
        own = {name: field for name, field in model.model_fields.items() if name not in COMMON_FIELDS}
        fields = [
            f"`{name}`"
            + ("" if field.is_required() or field.default is None else f" {_value(field.default)}")
            for name, field in own.items()
        ]
        rows.append(f"| `{kind}` | {looks_at} | {_cell(first)} | {', '.join(fields)} |")
    return "\n".join(rows) + "\n"


def _fields() -> str:
    rows = ["| Field | Meaning |", "|---|---|"]
    step_rule = MODELS["not_finite"].model_fields
    for name in (*BaseRule.model_fields, "dtype", "where"):
        said = step_rule[name].description or _SAID[name]
        only = " Not for kinds that look at several steps or ranks." if name in ("dtype", "where") else ""
        rows.append(f"| `{name}` | {_cell(said)}{only} |")
    return "\n".join(rows) + "\n"


_SAID = {
    "kind": "One of the kinds above. May be left out to change a built-in rule.",
    "severity": "`info`, `warning` (default) or `critical`.",
    "enabled": "`false` switches the rule off.",
    "exclude": "Patterns over the name, of which none may match.",
    "op_type": "Patterns over the type of the operator.",
    "exclude_op_type": "The same, of which none may match.",
    "io": "Patterns over `input`, `output`, ...",
    "graph": "Patterns over the graph.",
}


def _value(value: object) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(str, value)) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cell(text: str) -> str:
    return text.replace("|x|", "magnitudes").replace("|", "\\|")


if __name__ == "__main__":
    print("\n".join(tables()))  # noqa: T201  (for who edits the page)
